# SPDX-License-Identifier: 0BSD
# A firmware for the board: add_firmware(NAME SOURCES…).
function(add_firmware name)
  add_executable(${name} ${ARGN} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/board.c)
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  set_target_properties(${name} PROPERTIES C_STANDARD 11 SUFFIX .elf)
  target_compile_options(${name} PRIVATE -O2 -Wall -Wextra -Werror)
  target_link_options(${name} PRIVATE -nostartfiles -T ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/link.ld)
endfunction()

# SPDX-License-Identifier: Apache-2.0
"""What generated code must do whatever the model, and the tests of mcugen's suite that show it."""

from __future__ import annotations

from typing import NamedTuple


class Requirement(NamedTuple):
    """`tests` are files below tests/ with a function each, as pytest names them."""

    id: str
    text: str
    tests: tuple[str, ...]


REQUIREMENTS = (
    Requirement(
        "API-1",
        "NAME_run returns MCUGEN_OK, or MCUGEN_ERROR_NULL or MCUGEN_ERROR_ALIGNMENT for an arena that cannot be used.",
        ("codegen/test_render.py::test_selftest_and_unusable_arenas",),
    ),
    Requirement(
        "API-2",
        "With --checked-arena, an arena that is too small and broken canaries are told.",
        ("codegen/test_checks.py::test_too_small_arenas_and_broken_canaries_are_told",),
    ),
    Requirement(
        "API-3",
        "NAME_selftest returns MCUGEN_OK for intact code and constants, and an error for a wrong result.",
        (
            "codegen/test_render.py::test_selftest_and_unusable_arenas",
            "codegen/test_render.py::test_selftest_finds_a_wrong_result",
            "codegen/test_render.py::test_selftest_finds_a_wrong_weight",
        ),
    ),
    Requirement(
        "API-4",
        "With --check-weights, each flipped bit of a constant that has a checksum is told, at once and in steps.",
        (
            "codegen/test_checks.py::test_every_flip_is_told",
            "codegen/test_checks.py::test_intact_constants_pass_in_steps_and_at_once",
        ),
    ),
    Requirement(
        "API-5",
        "The header tells types, shapes and bytes of inputs and outputs, and of the arena.",
        ("codegen/test_render.py::test_header_describes_the_tensors",),
    ),
    Requirement(
        "API-6",
        "A state is kept by the caller, and steps of a stream give what ONNX Runtime gives.",
        (
            "test_state.py::test_a_stream_gives_what_onnxruntime_gives_step_by_step",
            "test_state.py::test_a_stream_on_the_target",
        ),
    ),
    Requirement(
        "API-7",
        "Code and mcugen.h of different versions do not compile together.",
        ("codegen/test_render.py::test_another_runtime_version_is_refused_by_the_compiler",),
    ),
    Requirement(
        "API-8",
        "An arena that changes between --checked-steps is told, and so are outputs out of their --plausible ranges.",
        (
            "codegen/test_plausibility.py::test_an_arena_that_changes_between_steps_is_told",
            "codegen/test_plausibility.py::test_outputs_out_of_their_range_are_told",
        ),
    ),
    Requirement(
        "NUM-1",
        "Integer code gives the same bits on every board, and those of the numpy reference.",
        ("test_digits.py::test_every_board_gives_the_same_bytes",),
    ),
    Requirement(
        "NUM-2",
        "Results depend neither on the optimization level, nor on byte order, nor on the width of int.",
        (
            "codegen/test_any_compiler.py::test_results_do_not_depend_on_the_optimization_level",
            "test_portability.py::test_big_endian",
            "test_portability.py::test_int_of_16_bits",
        ),
    ),
    Requirement(
        "NUM-3",
        "No word is read at an address that the CPU cannot read it from.",
        ("test_portability.py::test_no_word_at_an_odd_address",),
    ),
    Requirement(
        "ASM-1",
        "Assembly keeps the registers that belong to its caller.",
        ("codegen/test_any_compiler.py::test_assembly_keeps_the_callers_registers",),
    ),
    Requirement(
        "MEM-1",
        "No run takes more stack than the bound that is told.",
        (
            "simulate/test_stack_bounds.py::test_no_run_takes_more",
            "simulate/test_stack_bounds.py::test_what_assembly_pushes_counts",
        ),
    ),
    Requirement(
        "MEM-2",
        "No damaged constant leads out of memory, with --checked-indices.",
        (
            "test_flipped_constants.py::test_no_flip_of_an_index_leads_astray",
            "test_flipped_constants.py::test_a_real_model",
        ),
    ),
    Requirement(
        "TIME-1",
        "Layers that are not told to vary take one number of instructions whatever the input.",
        ("simulate/test_timing.py::test_layers_that_are_not_told_to_vary_take_one_number",),
    ),
    Requirement(
        "DET-1",
        "The same model, board and options give the same bytes, without time, path or user.",
        (
            "codegen/test_render.py::test_two_processes_give_the_same_bytes",
            "codegen/test_render.py::test_no_path_user_or_time_in_the_output",
        ),
    ),
    Requirement(
        "C-1",
        "gcc, clang and g++ compile the code without warnings.",
        (
            "codegen/test_render.py::test_all_compilers_accept_it",
            "codegen/test_any_compiler.py::test_clang_takes_all_of_it",
        ),
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""Requirements on all generated code, and the tests of mcugen's suite that verify them."""

from __future__ import annotations

from typing import NamedTuple


class Requirement(NamedTuple):
    """A requirement on all generated code, with the tests that verify it.

    Attributes:
        id: Short identifier of the requirement.
        text: The requirement, as a sentence.
        tests: pytest node IDs of the tests, relative to tests/.
    """

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
            "codegen/test_checks.py::test_every_flip_of_the_addresses_is_told",
            "codegen/test_checks.py::test_tables_that_make_the_input_have_checksums",
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
            "lir/test_state.py::test_a_stream_gives_what_onnxruntime_gives_step_by_step",
            "lir/test_state.py::test_a_stream_on_the_target",
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
        "ASM-2",
        "Assembly is apart from C: whole functions, and names for few instructions, which have twins in C.",
        (
            "codegen/test_kernel_format.py::test_assembly_stands_in_functions_of_its_own",
            "codegen/test_words.py::test_instructions_on_words_do_what_their_twins_in_c_do",
        ),
    ),
    Requirement(
        "INT-1",
        "A run may be interrupted anywhere, and masks no interrupt.",
        (
            "test_interrupts.py::test_interrupts_change_no_bit",
            "test_interrupts.py::test_interrupts_within_every_kernel",
            "kernels/test_declarations.py::test_no_template_masks_interrupts",
        ),
    ),
    Requirement(
        "MEM-1",
        "No run takes more stack than the bound that is told.",
        (
            "simulation/test_stack_bounds.py::test_no_run_takes_more",
            "simulation/test_stack_bounds.py::test_what_assembly_pushes_counts",
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
        "MEM-3",
        "No tensor is overwritten while it is needed, and all lie within the arena.",
        ("memory/test_verify_plan.py::test_a_sound_plan_passes", "memory/test_verify_plan.py::test_sabotage_is_found"),
    ),
    Requirement(
        "MEM-4",
        "There is no heap, no input or output of files, and no end of the program in the code.",
        ("kernels/test_declarations.py::test_no_template_asks_for_a_heap_files_or_an_end",),
    ),
    Requirement(
        "TIME-1",
        "Layers that are not told to vary take one number of instructions whatever the input.",
        ("simulation/test_timing.py::test_layers_that_are_not_told_to_vary_take_one_number",),
    ),
    Requirement(
        "TIME-2",
        "No run takes more instructions than the bound that is told.",
        (
            "simulation/test_longest.py::test_no_run_exceeds_the_bound",
            "deploy/evidence/test_evidence.py::test_no_run_takes_more_than_the_bounds_that_are_told",
        ),
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
    Requirement(
        "C-2",
        "Rules of MISRA C:2012 that are required and that cppcheck decides are kept, or a deviation is annotated.",
        ("tools/test_lint_c.py::test_the_digits_break_no_required_rule_without_a_reason",),
    ),
    Requirement(
        "C-3",
        "With -DMCUGEN_PLAIN_C there is no assembly, no intrinsic and no computed jump, and results keep their bits.",
        ("test_plain_c.py::test_nothing_but_c_is_left_with_the_same_bits",),
    ),
)
"""All requirements on generated code, in the order in which requirements.md lists them."""

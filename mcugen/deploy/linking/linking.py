# SPDX-License-Identifier: Apache-2.0
"""The Python interface of `mcugen link`: several compilations, and their firmware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path

from mcugen.api.compilation import Compilation
from mcugen.api.model import Model
from mcugen.autotuning.step_latency import longest_steps, with_steps
from mcugen.codegen.bundle import Bundle
from mcugen.codegen.draft import Draft
from mcugen.codegen.firmware import Firmware, SharingPlan, render_firmware
from mcugen.codegen.identifiers import identifier
from mcugen.codegen.write import write_folder
from mcugen.core.errors import DoesNotFitError, ToolMissingError, UsageError, shortened
from mcugen.deploy.linking.figures import LinkFigure, LinkReport, memory_uses, require_room
from mcugen.driver.compiled import CompiledModel
from mcugen.measurement.evaluate import step_cycles
from mcugen.memory.shared_arena import Pair
from mcugen.simulation.simulation import linked_sizes, roots_of


@dataclass
class Linking:
    """Models for one board that are linked to one folder; each step runs once, on first use.

    All methods raise the errors of mcugen.core.errors.

        models = [mcugen.compile("digits.onnx", "stm32f411"), mcugen.compile("words.onnx", "stm32f411")]
        firmware = mcugen.Linking(models, "firmware", exclusive=[("digits", "words")])
        firmware.write("firmware")
        print(firmware.report().flash)

    Attributes:
        nets: The models, or their compilations.
        name: C name of the firmware.
        exclusive: Groups of names of models of which no two ever run at the same time, so that they share memory.
    """

    nets: Sequence[Model | Compilation]
    name: str
    exclusive: Sequence[Sequence[str]] = ()

    @property
    def _compilations(self) -> Sequence[Compilation]:
        """Return the compilations of the models."""
        return [model.compilation if isinstance(model, Model) else model for model in self.nets]

    @cached_property
    def models(self) -> list[CompiledModel]:
        """Return the compiled models.

        Raises:
            UsageError: The models are not for one board, or do not have distinct names.
            DoesNotFitError: A step takes longer in the firmware than --max-step-cycles allows.
        """
        return [self._bound_cycles(number) for number in range(len(self._separate_models))]

    def check(self) -> None:
        """Check the options of all models, without loading or quantizing a model.

        Raises:
            UsageError: There are no models, they are not for one board, or the options of one are wrong.
        """
        training = next((net.options.training for net in self._compilations if net.options.training), None)
        if training is not None:
            raise UsageError("models of a firmware do not learn yet", f"--train {training.layers}", "leave out --train")
        if not self._compilations:
            raise UsageError("a firmware must have models", "none", "give some")
        boards = list(dict.fromkeys(net.target.name for net in self._compilations))
        if len(boards) > 1:
            rule = "the models of a firmware must be for one board"
            raise UsageError(rule, " and ".join(boards), "compile them for one")
        for net in self._compilations:
            net.check()

    @cached_property
    def _separate_models(self) -> list[CompiledModel]:
        """Return the models, each compiled without the others."""
        self.check()
        models = [net.compiled for net in self._compilations]
        names = [model.bundle.name for model in models]
        used_names = [self._identifier, *names]
        twice = next((name for name in used_names if used_names.count(name) > 1), None)
        if twice is not None:
            remedy = "give another: --name of the firmware, or --set NUMBER:name=OTHER of a model, counted from 1"
            raise UsageError("models and their firmware must have names of their own", f"'{twice}' twice", remedy)
        return models

    @cached_property
    def plan(self) -> SharingPlan:
        """Return the plan of the functions, arrays and arenas that the models share.

        Raises:
            DoesNotFitError: The board has no room for all models.
        """
        plan = SharingPlan(self._identifier, [model.draft for model in self.models], self._pairs)
        require_room(memory_uses(plan), self.models[0].board)
        return plan

    @cached_property
    def firmware(self) -> Firmware:
        """Return the C files with a report of all figures that are known without a build."""
        return render_firmware(self.plan, self.report(build=False).to_json())

    def write(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the C files; an earlier result in the folder is replaced as a whole or left untouched.

        Args:
            folder: The folder, whose other files stay.
            force: Whether files that were edited, or that mcugen did not write, are overwritten.
        """
        return write_folder(self.firmware.bundle, Path(folder), force=force)

    def report(self, *, build: bool = True) -> LinkReport:
        """Return the figures of the firmware.

        Args:
            build: Whether to build the firmware and measure code and flash, if the compiler is installed.
        """
        report, bundles = self._describe(), [model.bundle for model in self.models]
        board = self.models[0].board
        library = next((model.options.library for model in self.models if model.options.library), None)
        if not build or not board.qemu:
            return report
        called = [lib.title for bundle in bundles for lib in bundle.libraries]
        if called and library is None:
            why = f"{called[0]} is not given, which the models call"
            return replace(report, notes=(*report.notes, f"flash of code was not measured: {why}"))
        try:
            alone = [linked_sizes(bundle, board, roots_of(bundle), library) for bundle in bundles]
            roots = [root for bundle in bundles for root in roots_of(bundle)]
            linked = linked_sizes(self.firmware.bundle, board, roots, library)
        except ToolMissingError as error:
            return replace(report, notes=(*report.notes, f"flash of code was not measured: {error}"))
        code = LinkFigure(sum(sizes.code for sizes in alone), linked.code)
        flash = LinkFigure(code.apart + sum(sizes.weights for sizes in alone), code.linked + linked.weights)
        return replace(report, model_code=[sizes.code for sizes in alone], code=code, flash=flash)

    def _bound_cycles(self, number: int) -> CompiledModel:
        """Return a model whose steps are bounded by their cycles in the firmware.

        There, shared kernels are no longer compiled for the model that calls them.
        """
        model = self._separate_models[number]
        limit = model.options.max_step_cycles
        if limit is None:
            return model

        def in_firmware(draft: Draft) -> Bundle:
            drafts = [draft if n == number else other.draft for n, other in enumerate(self._separate_models)]
            return render_firmware(SharingPlan(self._identifier, drafts, self._pairs), {}).models[number]

        layer_cycles = longest_steps(model, step_cycles(model, self._compilations[number].progress, in_firmware))
        if max(layer_cycles, default=0) > limit:
            name = model.bundle.name
            longest = f"{max(layer_cycles):,} in the firmware, where kernels are shared"
            remedy = (
                f"ask for some less of it alone: --set {name}:max-step-cycles={limit - (max(layer_cycles) - limit)}"
            )
            raise DoesNotFitError(f"a step of '{name}' must take {limit:,} cycles at most", longest, remedy)
        return with_steps(model, limit, layer_cycles)

    @property
    def _identifier(self) -> str:
        return identifier(self.name)

    @property
    def _pairs(self) -> set[Pair]:
        """Return the pairs of models that may share memory, by their numbers."""
        numbers = {model.bundle.name: number for number, model in enumerate(self._separate_models)}
        for name in (name for group in self.exclusive for name in group):
            if identifier(name) not in numbers:
                rule = "--exclusive must name models of the firmware"
                raise UsageError(rule, f"'{shortened(name, 80)}'", f"they are {', '.join(numbers)}")
        groups = [sorted({numbers[identifier(name)] for name in group}) for group in self.exclusive]
        return {pair for group in groups for pair in combinations(group, 2)}

    def _describe(self) -> LinkReport:
        """Return the figures that are known without building anything."""
        models, plan = self.models, self.plan
        memories = memory_uses(plan)
        return LinkReport(
            name=plan.name,
            board=models[0].board.name,
            cpu=models[0].board.cpu,
            models=[model.report for model in models],
            model_code=None,
            exclusive=[[models[a].bundle.name, models[b].bundle.name] for a, b in sorted(plan.exclusive)],
            arena=LinkFigure(sum(area.apart for area in plan.areas), plan.arena),
            arena_bound=sum(area.shared_arena.bound for area in plan.areas),
            state=sum(model.report.ram.state for model in models),
            weights=LinkFigure(sum(model.report.flash.weights for model in models), sum(m.weights for m in memories)),
            kernels=LinkFigure(*plan.functions),
            code=None,
            flash=None,
            memories=memories,
            notes=tuple(dict.fromkeys(note for model in models for note in model.report.notes)),
        )

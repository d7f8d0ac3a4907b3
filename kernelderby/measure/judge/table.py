"""The judge's data for one workload: the reference, the inputs' maker with its secret, and the bounds of a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import torch

from kernelderby.catalog import Catalog, Definition, Solution, Workload
from kernelderby.hardware import find_gpu
from kernelderby.measure.clock.timing import CUPTI, Timer, make_timer
from kernelderby.measure.judge import draws
from kernelderby.measure.judge.cases import Case, case_of_workload
from kernelderby.measure.judge.correctness import has_rows, judge, reference_outputs, some_rows
from kernelderby.measure.judge.definition import DefinitionFailed, module_of
from kernelderby.measure.judge.doubt import Claims, Judged, SecondLook, SessionClock, contradiction
from kernelderby.measure.judge.exchange import Exchange, References
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.judge.race import Race, larger_case, overtaken
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.wire.remote import RemoteExecutor
from kernelderby.measure.wire.replies import Verdict, Wrong
from kernelderby.roofline.floors import floors
from kernelderby.rows.measurement import Status

_OF_FLOOR = 0.9  # peaks are rounded, and a clock may boost above the rated one
_OF_EMPTY_KERNEL = 0.5

_timers: dict[str, Timer] = {}


@dataclass(slots=True)
class JudgesTable:
    definition: Definition
    workload: Workload | None
    maker: InputMaker
    module: ModuleType
    device: torch.device
    machine: Machine
    secret: str
    references: References = field(default_factory=References)

    @classmethod
    def of(
        cls, root: Path, definition: Definition, subject: Workload | Case, machine: Machine, secret: str
    ) -> JudgesTable:
        """For a workload, or a case that is none."""
        workload = subject if isinstance(subject, Workload) else None
        case = case_of_workload(definition, subject) if isinstance(subject, Workload) else subject
        device = torch.device("cuda", 0) if machine.device == "cuda" else torch.device("cpu")
        module = module_of(definition)
        maker = InputMaker(definition, module, case, device, root, secret)
        return cls(definition, workload, maker, module, device, machine, secret)

    def race(self, solution: Solution, executor: RemoteExecutor, number: int = 0) -> Race:
        """number: of its secret contents. Solutions of one author get different ones: their processes could tell each
        other the answers, and the second one would compute nothing."""
        definition, maker = self.definition, self.maker
        if solution.setup and definition.of_setup != definition.constants:
            definition = definition.with_setup()
            maker = InputMaker(definition, self.module, maker.case, self.device, maker.root, self.secret)
            maker.is_slow_to_generate = self.maker.is_slow_to_generate
        maker, in_place = maker.numbered(number), solution.in_place
        exchange = Exchange(definition, self.module, maker, executor, in_place, references=self.references)
        return Race(exchange, has_setup=bool(solution.setup))

    def breaks_alone(self) -> bool:
        """Whether the definition's own code fails on this case with no solution near it: any part that a race uses."""
        definition, module, maker = self.definition, self.module, self.maker
        try:
            maker.output_places()
            inputs = maker.make()
            for draw in draws.of_definition(definition, module):
                maker.write(inputs, 1, draw=draw)
                reference_outputs(definition, module, inputs)
            maker.write(inputs)
            maker.refresh(inputs, "alone")
            outputs = reference_outputs(definition, module, inputs)
            judge(definition, module, inputs, outputs)
            if has_rows(module) and len(next(iter(outputs.values()))):
                judge(definition, module, *some_rows(definition, module, inputs, outputs, [0]))
        except DefinitionFailed:
            return True
        except (MemoryError, torch.OutOfMemoryError):
            return False
        return False

    def overtaken(self, race: Race, catalog: Catalog) -> Verdict | None:
        """Of captured calls, after one of a larger workload. None where this case is the largest, or where the judge
        has no memory for a larger one. Failed where the solution's process ends."""
        case = larger_case(catalog, self.definition, self.maker.case)
        if case is None:
            return None
        larger = InputMaker(race.exchange.definition, self.module, case, self.device, catalog.root, self.secret)
        try:
            return overtaken(race.exchange, larger)
        except Wrong as wrong:
            return wrong.verdict
        except (MemoryError, torch.OutOfMemoryError):
            return None

    def timer(self) -> Timer:
        """The judge's own, for the reference."""
        if self.machine.protocol not in _timers:
            _timers[self.machine.protocol] = make_timer(self.machine.protocol, self.device)
        return _timers[self.machine.protocol]

    def release(self) -> None:
        self.references.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def doubt(self, race: Race, claims: Claims, solution: Solution, session: SessionClock) -> Judged:
        """What the judge's own clock, the records and the floor say of the claimed times."""
        judged = Judged()
        for kind, claimed in claims.medians.items():
            floor = self._floor_us(solution, (session.empty_kernel_us or {}).get(kind))
            if claimed < floor:
                why = f"{kind}: {claimed:.2f} us, where this GPU needs {floor:.2f} us"
                return Judged(Verdict(Status.BELOW_FLOOR, why))
            # Who writes into the outputs leaves nothing behind the window, who returns them a copy of each.
            copies = 0 if solution.destination_passing_style else len(self.definition.outputs)
            if why := contradiction(race.taken, kind, copies, self.machine.protocol == CUPTI):
                told = f"{kind}: its process claims {claimed:.1f} us, but {why}"
                return Judged(Verdict(Status.REWARD_HACK, told))
        returns_outputs = not solution.destination_passing_style
        race.batches.beside = session.beside
        look = SecondLook(race.relay, race.batches, self.device.type, session, returns_outputs)
        return look.at(claims, judged)

    def _floor_us(self, solution: Solution, empty_kernel_us: float | None) -> float:
        """What no kernel can beat here: the flops, and the bytes that have to be read (what is written may still lie
        in L2), at the vendor's peaks; and half an empty kernel."""
        gpu, cost = find_gpu(self.machine.name), self.workload.cost if self.workload else None
        least = _OF_EMPTY_KERNEL * (empty_kernel_us or 0.0) if self.device.type == "cuda" else 0.0
        if gpu is None or cost is None:
            return least
        limits = floors(cost, gpu)
        if limits is None:
            return least
        needed = cost.needed(bool(solution.in_place))
        read = needed / 2 if solution.in_place else max(0, needed - cost.bytes_written)
        return max(least, _OF_FLOOR * limits.compute_us, _OF_FLOOR * read / gpu.memory_bytes_per_second * 1e6)

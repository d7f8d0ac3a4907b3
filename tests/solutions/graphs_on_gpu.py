"""Whether a solution's captured graphs stay right whatever is called later: python graphs_on_gpu.py SOLUTION

1. Captured on stream A at a small workload, over two sets of buffers. Then a larger workload is called on A and on the
   default stream, what torch's allocator has free is filled with a pattern, and both graphs are replayed: outputs must
   be right, the pattern must stand.
2. Both graphs are replayed at the same time on two other streams while A gets eager calls, again and again.
One line for each finding; exit 1 with one."""

import sys
from pathlib import Path

import torch

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.judge.correctness import judge, make_ready
from kernelderby.measure.judge.definition import module_of
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.judge.race import larger_case
from kernelderby.measure.wire.shared import private_set
from kernelderby.measure.worker.build import load_setup, load_solution
from kernelderby.measure.worker.candidate import Candidate
from kernelderby.measure.worker.executor import Canaries
from kernelderby.rows.measurement import Status

ROOT = Path(__file__).resolve().parents[2]
DEVICE = torch.device("cuda", 0)
TIMES = 20


class Side:
    """One set of buffers of a case."""

    def __init__(self, candidate, module, case, variant=0):
        self.candidate, self.module = candidate, module
        self.maker = InputMaker(candidate.definition, module, case, DEVICE, ROOT)
        self.buffers = private_set(self.maker.places(), self.maker.output_places(), DEVICE)
        self.maker.write(self.buffers.inputs, variant)
        self.ready()
        self.prepared, _ = candidate.set_up(self.buffers.inputs, DEVICE)
        self.returned = None

    def ready(self):
        make_ready(self.buffers.inputs, self.buffers.outputs, self.candidate.in_place, 0xFF)
        torch.cuda.synchronize()

    def call(self):
        for output, name in self.candidate.in_place.items():  # captured too, so that each replay begins anew
            self.buffers.outputs[output].copy_(self.buffers.inputs[name])
        self.returned = self.candidate(self.buffers.inputs, self.buffers.outputs, self.prepared)

    def problem(self):
        """The complaint about the outputs; empty where they are right."""
        torch.cuda.synchronize()
        outputs = {name: tensor.clone() for name, tensor in self.outputs().items()}
        verdict = judge(self.candidate.definition, self.module, self.buffers.inputs, outputs)
        return "" if verdict.status is Status.PASSED else f"{verdict.status}: {verdict.message}"

    def outputs(self):
        if self.candidate.destination_passing_style:
            return self.buffers.outputs
        places = {name: (tuple(one.shape), one.dtype) for name, one in self.buffers.outputs.items()}
        return self.candidate.fitting(self.returned, places, DEVICE)


def workload_pair(catalog, definition):
    """The case with the fewest outputs, and the larger one."""
    cases = [case_of_workload(definition, each) for each in catalog.workloads(definition.name)]
    cases.sort(key=lambda case: sum(case.sizes[axis] for axis in definition.axes))
    return next((case, larger) for case in cases if (larger := larger_case(catalog, definition, case)))


def problems(name):
    catalog = Catalog.open(ROOT)
    solution = catalog.solution(name)
    definition = catalog.definition(solution.definition)
    module = module_of(definition)
    candidate = Candidate(
        load_solution(definition, solution),
        solution.destination_passing_style,
        definition,
        solution.in_place,
        load_setup(solution),
    )
    small, large = workload_pair(catalog, definition)
    sides = [Side(candidate, module, small, variant) for variant in range(2)]
    stream = torch.cuda.Stream()
    graphs = []
    for side in sides:
        with torch.cuda.stream(stream):
            side.call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                side.call()
        except RuntimeError as error:
            print(f"{name}: has no graph: {str(error).splitlines()[0]}")
            return
        graphs.append(graph)
    if problem := replayed(graphs, sides):
        yield f"at first: {problem}"
        return
    bigger = Side(candidate, module, large)
    for other in (stream, torch.cuda.default_stream()):
        with torch.cuda.stream(other):
            bigger.call()
        if problem := bigger.problem():
            yield f"the larger call: {problem}"
    bigger.returned = None
    canaries = Canaries(DEVICE)
    if problem := replayed(graphs, sides):
        yield f"after a larger call: {problem}"
    if changed := canaries.changed():
        yield f"after a larger call: {changed} bytes of {canaries.nbytes} written that were freed"
    del canaries
    yield from at_once(stream, graphs, sides, Side(candidate, module, small, 2))


def replayed(graphs, sides):
    for graph, side in zip(graphs, sides, strict=True):
        side.ready()
        graph.replay()
    return "; ".join(filter(None, (side.problem() for side in sides)))


def at_once(stream, graphs, sides, third):
    others = [torch.cuda.Stream() for _ in graphs]
    for _ in range(3):
        for side in (*sides, third):
            side.ready()
        for _ in range(TIMES):
            for graph, other in zip(graphs, others, strict=True):
                with torch.cuda.stream(other):
                    graph.replay()
            with torch.cuda.stream(stream):
                third.call()
        for what, side in (("a graph", sides[0]), ("another graph", sides[1]), ("an eager call", third)):
            if problem := side.problem():
                yield f"{what}, at the same time as others: {problem}"
                return


def main(name):
    found = list(problems(name))
    for each in found:
        print(f"{name}: {each}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

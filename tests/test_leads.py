"""One author against the best library on every shape, worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from rank_rows import row, workload

from kernelderby.errors import DerbyError
from kernelderby.rank.leads import leads
from kernelderby.report.leads import leads_answer, sentence
from kernelderby.trace import Timed

AUTHORS = {"a1": "ann", "a2": "ann", "b1": "bob", "c1": "cid", "plain": "baseline"}
# Operator -> solution -> (graph, eager) by workload.
TIMES = {
    "alpha": {
        "a1": [(10.0, 20.0), (40.0, 40.0)],
        "a2": [(20.0, 10.0), (50.0, 50.0)],
        "b1": [(20.0, 40.0), (20.0, 80.0)],
        "c1": [(40.0, 30.0), (None, 60.0)],
        "plain": [(1.0, 1.0), (1.0, 1.0)],  # no library, however fast
    },
    "beta": {"a1b": [(10.0, 10.0)], "b1b": [(80.0, 20.0)]},
    "gamma": {"a1c": [(5.0, 5.0)]},
}
WORKLOADS = {
    name: [workload(f"w{index}") for index in (1, 2, 3)[: len(next(iter(own.values())))]] for name, own in TIMES.items()
}
SOLUTIONS = {
    name: SimpleNamespace(
        name=name,
        author=AUTHORS[name if name in AUTHORS else name[:2]],
        has_code=f"hash of {name}".__eq__,
        has_kernels=f"hash of {name}".__eq__,
        in_place={},
    )
    for own in TIMES.values()
    for name in own
}


def rows(**changes):
    found = []
    for definition, solutions in TIMES.items():
        for name, times in solutions.items():
            for index, (graph, eager) in enumerate(times, start=1):
                one = row(name, f"w{index}", eager, definition=definition, **changes)
                kinds = {"eager": Timed(eager, ())} | ({"graph": Timed(graph, ())} if graph else {})
                found.append(replace(one, times=kinds, solution_hash=f"hash of {name}"))
    return found


def test_numbers_worked_out_by_hand():
    """alpha in graphs: 20/10 and 20/40; eager: 30/10 and 60/40. beta: 80/10, 20/10."""
    [found] = leads(rows(), WORKLOADS, SOLUTIONS)
    assert (found.author, found.gpu, found.alone) == ("ann", "NVIDIA H200", ("gamma",))
    alpha, beta = found.operators
    graph, eager = alpha.kinds["graph"], alpha.kinds["eager"]
    assert (graph.shapes, graph.faster, graph.least, graph.most) == (2, 1, 0.5, 2.0)
    assert graph.geomean == pytest.approx(1.0) and eager.geomean == pytest.approx((3.0 * 1.5) ** 0.5)
    assert beta.kinds["graph"].geomean == pytest.approx(8.0)
    assert found.total["graph"].geomean == pytest.approx(8.0**0.5) and found.total["graph"].shapes == 3
    assert found.total["eager"].faster == 3
    assert sentence(found) == (
        "ann against the best library on every shape, over 2 operators: replayed as CUDA graphs 2.83 times as fast "
        "(first on 2 of 3 shapes), launched by the host 2.06 times as fast (first on 3 of 3 shapes); geomean of the "
        "operators' geomeans."
    )


def test_the_sentence_says_how_many_times_are_of_former_sources():
    changed = [replace(each, solution_hash="former") if each.solution == "b1b" else each for each in rows()]
    [found] = leads(changed, WORKLOADS, SOLUTIONS)
    assert sentence(found).endswith("geomeans. 1 time is of sources that have changed since.")


def test_another_author_and_every_gpu():
    found = leads([*rows(), *rows(gpu="NVIDIA B200")], WORKLOADS, SOLUTIONS, author="bob")
    assert [each.gpu for each in found] == ["NVIDIA B200", "NVIDIA H200"]
    assert found[0].operators[0].kinds["graph"].geomean == pytest.approx((10 / 20 * 40 / 20) ** 0.5)
    [one] = leads([*rows(), *rows(gpu="NVIDIA B200")], WORKLOADS, SOLUTIONS, gpu="h200")
    assert one.gpu == "NVIDIA H200"


def test_times_of_former_sources_are_said():
    older = [replace(each, solution_hash="another") if each.solution == "b1b" else each for each in rows()]
    answer = leads_answer(leads(older, WORKLOADS, SOLUTIONS), True)
    assert "times of former sources, to be measured again: beta (1)" in answer.to_text(100)
    assert answer.frame("operators").to_dicts()[0]["operator"] == "alpha"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"author": "an"}, "--author: no solution of the set is by 'an'; did you mean ann"),
        ({"gpu": "b300"}, "--gpu: no row was measured on 'b300'"),
        ({"protocol": "x"}, "--protocol: no row was measured with 'x'"),
        ({"author": "baseline", "gpu": "b300"}, "--gpu"),
    ],
)
def test_what_does_not_exist_is_one_line(options, words):
    with pytest.raises(DerbyError, match=words):
        leads(rows(), WORKLOADS, SOLUTIONS, **options)


def test_nothing_to_compare_is_one_line():
    own = [each for each in rows() if each.solution.startswith("a")]
    with pytest.raises(DerbyError, match="no shape was measured with a solution of one author and of another library"):
        leads(own, WORKLOADS, SOLUTIONS)
    with pytest.raises(DerbyError, match="traces/: no recorded rows"):
        leads([], WORKLOADS, SOLUTIONS)


def test_the_command_refuses_what_it_would_pass_over(derby, small_set):
    assert "--author goes with --summary" in derby("rank", "--author", "a", "--root", small_set)[2]
    code, _, error = derby("rank", "--summary", "sentence", "--baseline", "toy_fast", "--root", small_set)
    assert code and "leave out --importance" in error

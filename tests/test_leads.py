"""One author against the best library on every shape, worked out by hand."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from rank_rows import row, workload

from kernelderby.errors import DerbyError
from kernelderby.rank.lead import lead_of
from kernelderby.rank.leads import leads
from kernelderby.rank.ranking import rank
from kernelderby.report.leads import facts, leads_answer, sentence
from kernelderby.rows.measurement import Status, Timed

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
        has_kernels=lambda recorded, uuid, own=f"hash of {name}": recorded == own,
        in_place={},
        dependencies=("vllm",) if name.startswith("b1") else (),
        requires=SimpleNamespace(modules=()),
        language="python",
        sources={"main.py": ""},
    )
    for own in TIMES.values()
    for name in own
}


def rows(**changes):
    found = []
    for definition, solutions in TIMES.items():
        for name, times in solutions.items():
            for index, (graph, eager) in enumerate(times, start=1):
                libs = {"vllm": "0.33.0" if index == 1 else "0.25.1+cu130"} if name.startswith("b1") else {}
                one = row(name, f"w{index}", eager, definition=definition, environment={"libs": libs}, **changes)
                kinds = {"eager": Timed(eager, ())} | ({"graph": Timed(graph, ())} if graph else {})
                found.append(replace(one, times=kinds, solution_hash=f"hash of {name}"))
    return found


def test_numbers_worked_out_by_hand():
    """alpha in graphs: 20/10 and 20/40; eager: 30/10 and 60/40. beta: 80/10, 20/10."""
    [found] = leads(rows(), WORKLOADS, SOLUTIONS)
    assert (found.author, found.gpu, found.alone) == ("ann", "NVIDIA H200", ("gamma",))
    alpha, beta = found.operators
    graph, eager = alpha.kinds["graph"], alpha.kinds["eager"]
    assert (graph.workloads, graph.wins, graph.losses, graph.least, graph.most) == (2, 1, 1, 0.5, 2.0)
    assert graph.ratio.value == pytest.approx(1.0) and eager.ratio.value == pytest.approx((3.0 * 1.5) ** 0.5)
    assert graph.libraries == {"bob": 2, "cid": 0} and eager.libraries == {"cid": 2, "bob": 0}  # shapes won
    assert beta.kinds["graph"].ratio.value == pytest.approx(8.0)
    assert found.total["graph"].ratio.value == pytest.approx(8.0**0.5) and found.total["graph"].workloads == 3
    assert (found.total["eager"].wins, found.total["eager"].unpaired) == (3, 3)
    assert facts([found]) == (
        "Published shapes: ann in CUDA graphs is 2.83 times as fast as the best of 2 libraries (geometric mean of 2 "
        "operators): faster on 2 of 3 shapes, slower on 1, 3 of the 3 not measured in turn. "
        "ann launched by the host is 2.06 times as fast as the best of 2 libraries (geometric mean of 2 "
        "operators): faster on 3 of 3 shapes, 3 of the 3 not measured in turn.",
        "Oldest versions of the libraries: bob 0.25.1, cid unknown in some rows.",
    )
    assert leads(of_former_code("b1"), WORKLOADS, SOLUTIONS)[0].versions["bob"] == "0.33.0"


def of_former_code(*names):
    return [replace(each, solution_hash="former") if each.solution in names else each for each in rows()]


def test_shapes_whose_times_are_of_former_code_are_left_out_and_said():
    [found] = leads(of_former_code("b1b"), WORKLOADS, SOLUTIONS)
    alpha, beta = found.operators
    assert alpha.outdated == 0 and beta.outdated == 1
    [before] = leads(rows(), WORKLOADS, SOLUTIONS)
    assert found.total["graph"].workloads == before.total["graph"].workloads - 1
    assert sentence(found).endswith(" Not counted: 1 shape with times of former code.")
    answer = leads_answer([found], True)
    assert "Published shapes to be measured again, since a time is of former code: beta (1)" in answer.to_text(100)
    assert answer.frame("operators").to_dicts()[0]["operator"] == "alpha"


def test_a_shape_without_the_strongest_library_does_not_count():
    """bob is the best library on most shapes of alpha; where he was not measured, nobody wins over cid instead."""
    without = [each for each in rows() if (each.solution, each.uuid) != ("b1", "w1")]
    [found] = leads(without, WORKLOADS, SOLUTIONS)
    alpha = found.operators[0]
    assert alpha.unopposed == 1 and {kind: lead.workloads for kind, lead in alpha.kinds.items()} == {
        "graph": 1,
        "eager": 1,
    }
    assert sentence(found).endswith(" Not counted: 1 shape without the operator's strongest library.")
    told = "best on most of the operator's shapes was not measured: alpha (1)"
    assert told in " ".join(leads_answer([found], True).to_text(200).split())
    refused = [
        replace(each, status=Status.RAISED, times={}, latency_us=None)
        if (each.solution, each.uuid) == ("b1", "w1")
        else each
        for each in rows()
    ]
    assert leads(refused, WORKLOADS, SOLUTIONS)[0].operators[0].unopposed == 0  # he cannot do it: cid counts
    # On the shapes of another leg, too, he is the strongest.
    ours = [each for each in rows() if each.definition == "alpha" and each.solution != "b1"]
    assert leads(ours, WORKLOADS, SOLUTIONS)[0].operators[0].unopposed == 0
    of_models = {"uuid": "m1", "axes": {}, "inputs": {}}
    other = [replace(each, workload=of_models) for each in rows() if each.definition == "alpha" and each.uuid == "w1"]
    [found] = leads(ours, WORKLOADS, SOLUTIONS, elsewhere=other)
    assert found.operators[0].unopposed == 2 and found.total == {}
    without_plain = {name: each for name, each in SOLUTIONS.items() if name != "plain"}
    assert rank(ours, "alpha", WORKLOADS["alpha"], without_plain).lead.workloads == 1
    assert rank(ours, "alpha", WORKLOADS["alpha"], without_plain, elsewhere=other).lead is None


def test_shapes_that_a_library_cannot_do_are_said():
    """c1 fails on both shapes, the author's and plain torch's failures are their own."""
    broken = [
        replace(each, status=Status.RAISED, times={}, latency_us=None)
        if each.solution in ("c1", "a2", "plain")
        else each
        for each in rows()
    ]
    [found] = leads(broken, WORKLOADS, SOLUTIONS, author="ann")
    alpha, beta = found.operators
    assert (alpha.failed, beta.failed) == ({"cid": 2}, {}) and alpha.kinds["graph"].libraries == {"bob": 2}
    assert "Published shapes on which a library failed: cid at alpha (2)" in leads_answer([found], True).to_text(100)
    unjudged = {"status": Status.OUT_OF_MEMORY, "message": "the judge has no memory for its case: 47 GiB"}
    full = [replace(each, **unjudged) if each.solution == "c1" else each for each in broken]
    assert leads(full, WORKLOADS, SOLUTIONS, author="ann")[0].operators[0].failed == {}


def test_a_lead_of_former_code_alone_is_none():
    everything = [name for own in TIMES.values() for name in own]
    [found] = leads(of_former_code(*everything), WORKLOADS, SOLUTIONS, author="ann")
    assert found.total == {} and all(not each.kinds for each in found.operators)
    assert sentence(found) == "Published shapes: no shape counts (3 shapes with times of former code)."
    text = leads_answer([found], True).to_text(100)
    assert "alpha (2), beta (1)" in text


@pytest.mark.parametrize("time", ["graph", "eager"])
@pytest.mark.parametrize("names", [(), ("b1",), ("c1",)])
def test_the_ranking_leaves_the_same_shapes_out(names, time):
    """b1 is the best library on both shapes in graphs, c1 on both in eager calls."""
    [found] = leads(of_former_code(*names), WORKLOADS, SOLUTIONS, author="ann")
    alpha = next(each for each in found.operators if each.definition == "alpha")
    without_plain = {name: each for name, each in SOLUTIONS.items() if name != "plain"}
    lead = rank(of_former_code(*names), "alpha", WORKLOADS["alpha"], without_plain, time=time).lead
    assert (lead is None) == (names == {"graph": ("b1",), "eager": ("c1",)}[time])
    assert lead is None or lead.workloads == alpha.kinds[time].workloads == 2
    assert (lead is None) == (time not in alpha.kinds)


def test_an_author_whose_eager_times_are_of_other_host_code_stays_the_author():
    changed = {
        name: SimpleNamespace(**{**vars(each), "has_code": lambda recorded: False}) if each.author == "ann" else each
        for name, each in SOLUTIONS.items()
    }
    [found] = leads(rows(), WORKLOADS, changed)
    [before] = leads(rows(), WORKLOADS, SOLUTIONS)
    assert found.author == "ann" and set(found.total) == {"graph"}
    assert found.total["graph"] == before.total["graph"] and "launched by the host" not in sentence(found)
    for time in (None, "eager"):
        ranking = rank(rows(), "alpha", WORKLOADS["alpha"], changed, time=time)
        cells = [cell for row in ranking.rows for name, cell in row.cells.items() if changed[name].author == "ann"]
        assert cells and all(cell.eager_us is None for cell in cells)


def test_another_author_and_every_gpu():
    found = leads([*rows(), *rows(gpu="NVIDIA B200")], WORKLOADS, SOLUTIONS, author="bob")
    assert [each.gpu for each in found] == ["NVIDIA B200", "NVIDIA H200"]
    assert found[0].operators[0].kinds["graph"].ratio.value == pytest.approx((10 / 20 * 40 / 20) ** 0.5)
    [one] = leads([*rows(), *rows(gpu="NVIDIA B200")], WORKLOADS, SOLUTIONS, gpu="h200")
    assert one.gpu == "NVIDIA H200"


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


def test_a_lead_counts_ties_and_what_was_not_measured_in_turn():
    """w1: the rounds of both alternate, the ratio 1.5 in each. w2: in turn, 0.9 to 1.1: a tie. w3: of two sessions."""

    def timed(name, uuid, rounds, session):
        samples = tuple((each,) for each in rounds)
        return replace(
            row(name, uuid, sorted(rounds)[len(rounds) // 2]),
            times={"graph": Timed(sorted(rounds)[len(rounds) // 2], samples)},
            session=session,
        )

    best = {
        "w1": {"ann": timed("a1", "w1", [10, 11, 12], "s"), "bob": timed("b1", "w1", [15, 16.5, 18], "s")},
        "w2": {"ann": timed("a1", "w2", [10, 10, 10], "s"), "bob": timed("b1", "w2", [9, 10, 11], "s")},
        "w3": {"ann": timed("a1", "w3", [10, 11, 12], "s"), "cid": timed("c1", "w3", [50, 55, 60], "t")},
        "w4": {"ann": timed("a1", "w4", [10, 11, 12], "s"), "baseline": timed("plain", "w4", [1, 1, 1], "s")},
        "w5": {"bob": timed("b1", "w5", [1, 1, 1], "s")},
    }
    found = lead_of("ann", best, "graph")
    assert (found.workloads, found.wins, found.ties, found.losses, found.unpaired) == (3, 2, 1, 0, 1)
    assert found.ratio.value == pytest.approx((1.5 * 1.0 * 5.0) ** (1 / 3)) and found.ratio.interval == "unpaired"
    assert found.libraries == {"bob": 2, "cid": 1}
    best["w1"]["dan"] = best["w2"]["dan"] = timed("d1", "w1", [90, 90, 90], "s")
    best["w2"]["eve"] = timed("e1", "w2", [90, 90, 90], "s")
    assert lead_of("ann", best, "graph").libraries == {"bob": 2, "cid": 1, "dan": 0}, "eve has a third of the shapes"
    assert lead_of("ann", {"w4": best["w4"]}, "graph") is None
    weighted = lead_of("ann", best, "graph", {"w1": 1.0, "w2": 1.0, "w3": 2.0})
    assert weighted.ratio.value == pytest.approx((1.5 * 1.0 * 5.0**2) ** (1 / 4))


def test_a_kind_of_time_that_few_shapes_have_gets_no_number():
    """Graph times of all three shapes, eager ones of ours on none but one."""
    few = [
        replace(each, times={"graph": each.times["graph"]}, latency_us=None)
        if each.solution in ("a1", "a2") and "graph" in each.times
        else each
        for each in rows()
    ]
    [found] = leads(few, WORKLOADS, SOLUTIONS, author="ann")
    assert found.total["eager"].workloads == 1
    assert "Launched by the host: only 1 of 3 shapes have a time of the present code." in sentence(found)

"""The page shows what rank, roofline and profile say; nothing is lost on the way, everything is small."""

import msgspec
import pytest
from full_set import foreign, of_two_origins, slower
from msgspec.structs import replace

import kernelderby
from kernelderby.catalog import Catalog
from kernelderby.catalog.selection import telling_axes
from kernelderby.errors import DerbyError
from kernelderby.hardware import gpu_id, gpus
from kernelderby.page.build import build_page, page_of
from kernelderby.page.html import packed, unpacked
from kernelderby.page.model.page import KINDS, PageModel
from kernelderby.roofline.floors import floors

MOE = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"


def near(value):
    return pytest.approx(value, rel=1e-5)  # six digits are kept


@pytest.fixture(scope="module")
def trace_set(checkout):
    return kernelderby.open(checkout)


def test_every_operator_shape_and_gpu_is_there(built, trace_set):
    model = built.model
    assert {each.name for each in model.operators} == set(trace_set.definitions)
    shown = [shape.uuid for each in model.operators for shape in each.shapes]
    listed = {each.uuid for workloads in trace_set.workloads.values() for each in workloads}
    fresh = {row.uuid for row in trace_set.rows if row.shape.get("origin") == "fresh"}
    assert sorted(shown) == sorted(listed | fresh)
    assert {each.id for each in model.gpus} >= set(gpus())
    assert model.rows == len(trace_set.rows) == sum(each.rows for each in model.gpus)


def test_floors_are_those_of_the_roofline(built, trace_set):
    compared = 0
    for operator in built.model.operators:
        in_place = any(x.in_place for x in trace_set.solutions.values() if x.definition == operator.name)
        costs = {workload.uuid: workload.cost for workload in trace_set.workloads[operator.name]}
        for shape in operator.shapes:
            if shape.origin == "fresh":  # no file holds it
                continue
            for gpu, shown in zip(built.model.gpus, shape.floors, strict=True):
                floor = floors(costs[shape.uuid], gpus()[gpu.id], in_place)
                assert (shown is None) == (floor is None)
                if shown:
                    assert shown == (near(floor.floor_us), floor.regime)
                    compared += 1
    assert compared > 2000


def test_races_are_those_of_rank(built, trace_set):
    """Every time, ratio, interval, S, fair S, place and lead of every race and kind of time."""
    cells = 0
    for race in built.model.races:
        for kind, order in race.orders.items():
            asked = {"gpu": race.gpu, "protocol": race.protocol, "time": kind, "origin": race.origin or ()}
            [ranking] = trace_set.rank(race.definition, **asked).value
            assert order.baseline == ranking.baseline
            for standing, summary in zip(order.standings, ranking.summaries, strict=True):
                assert (standing.solution, standing.place, standing.passed) == (
                    summary.solution,
                    summary.place,
                    summary.passed,
                )
                assert standing.total_us == (near(summary.total_us) if summary.total_us else None)
                assert (standing.geomean and standing.geomean.value) == (
                    near(summary.geomean.value) if summary.geomean else None
                )
            operator = next(each for each in built.model.operators if each.name == race.definition)
            shapes = [operator.shapes[place] for place in race.shapes]
            for shape, row, shown in zip(shapes, order.rows, race.cells, strict=True):
                ranked = ranking.row(shape.uuid)
                assert (row.fastest is None) == (ranked.fastest is None)
                if row.fastest is not None:
                    assert race.solutions[row.fastest] == ranked.fastest
                for name, cell in zip(race.solutions, shown, strict=True):
                    time, expected = cell.times[KINDS.index(kind)], ranked.cells[name]
                    assert (time is None) == (expected.latency_us is None)
                    if time is None:
                        continue
                    cells += 1
                    assert time.time_us == near(expected.latency_us)
                    assert time.share == (near(expected.share_of_floor) if expected.share_of_floor else None)
                    assert time.fair == (near(expected.fair_share) if expected.fair_share else None)
                    if expected.ratio and expected.ratio.low:
                        base = ranked.cells[ranking.baseline].latency_us
                        assert (time.low_us, time.high_us) == (
                            near(base * expected.ratio.low),
                            near(base * expected.ratio.high),
                        )
            if order.lead:
                assert order.lead.ratio.value == near(ranking.lead.ratio.value)
                assert order.standings[0].author not in ranking.lead.libraries
                assert order.lead.second in ranking.lead.libraries
    assert cells > 3000


def test_the_default_race_is_the_one_that_rank_takes(built, trace_set):
    for operator in built.model.operators:
        for gpu, places in operator.races.items():
            rankings = trace_set.rank(operator.name, gpu=gpu).value
            first = [built.model.races[place] for place in places[: len(rankings)]]
            for race, ranking in zip(first, rankings, strict=True):
                assert (race.protocol, race.kind, race.is_default) == (ranking.group.protocol, ranking.time, True)
                assert race.origin == (ranking.origin or "")


def test_share_and_middle_shape_agree(built, trace_set):
    """A row's floor, time and S are of one shape. The floor is of the way in place where the operator has one."""
    seen = 0
    for race in built.model.races:
        operator = next(each for each in built.model.operators if each.name == race.definition)
        gpu = [each.id for each in built.model.gpus].index(race.gpu)
        for kind, order in race.orders.items():
            if order.middle is None:
                continue
            fastest = order.rows[order.middle].fastest
            time = race.cells[order.middle][fastest].times[KINDS.index(kind)]
            own = [each.in_place for each in trace_set.solutions.values() if each.definition == race.definition]
            if any(own) and not trace_set.solutions[race.solutions[fastest]].in_place:
                continue
            floor = operator.shapes[race.shapes[order.middle]].floors[gpu][0]
            assert floor / time.time_us == pytest.approx(order.share, rel=1e-4)
            seen += 1
    assert seen > 30


def test_scores_are_those_of_rank_importance(built, trace_set):
    protocols = {score.protocol for score in built.model.scores}
    assert protocols
    for protocol in protocols:
        ranked = trace_set.rank_by_importance(gpu="h200", protocol=protocol).value
        own = [score for score in built.model.scores if score.protocol == protocol and score.gpu == "h200"]
        for score, contender in zip(own, ranked.contenders, strict=True):
            assert score.author == contender.name
            assert score.share_everywhere == near(contender.share.everywhere)
            assert score.fair_everywhere == near(contender.fair.everywhere)


def test_samples_come_back_as_they_were_recorded(built, trace_set):
    place = next(i for i, race in enumerate(built.model.races) if race.definition == MOE and race.is_default)
    race, samples = built.model.races[place], unpacked(packed(built.samples[place]))
    operator = next(each for each in built.model.operators if each.name == MOE)
    own = [row for row in trace_set.rows if (gpu_id(row.gpu), row.protocol) == (race.gpu, race.protocol)]
    recorded = {(row.solution, row.uuid): row for row in own}
    compared = 0
    for shape, row in zip([operator.shapes[place] for place in race.shapes], samples, strict=True):
        for name, cell in zip(race.solutions, row, strict=True):
            for kind, rounds in cell.items():
                assert tuple(map(tuple, rounds)) == recorded[name, shape.uuid].time(kind).samples_us
                compared += 1
    assert compared >= 30


def test_the_model_survives_json(built):
    encoded = msgspec.json.encode(built.model)
    again = msgspec.json.decode(encoded, type=PageModel)
    assert msgspec.json.encode(again) == encoded


def test_failures_and_cheats_are_listed_with_their_reason(full_page):
    failures = full_page.model.trust.failures
    assert {each.status for each in failures} >= {"reward hack", "timed out"}
    assert all(each.is_cheat == (each.status == "reward hack") for each in failures if "faster" not in each.status)
    assert all(each.message for each in failures if each.status == "reward hack")


def test_rows_of_former_sources_are_counted(small_set):
    catalog = Catalog.open(small_set)
    hashes = {"toy_fast": "former", "toy_baseline": catalog.solution("toy_baseline").hash}
    rows = [replace(row, solution_hash=hashes[row.solution]) for row in catalog.traces()]
    catalog.traces = lambda definition=None, **_: rows
    [outdated] = page_of(catalog).model.trust.outdated
    assert (outdated.solution, outdated.rows, outdated.of_rows) == ("toy_fast", 2, 2)


def test_what_was_never_measured_says_what_it_needs(built):
    for each in built.model.trust.missing:
        assert not any(each.solution in race.solutions for race in built.model.races if race.gpu == each.gpu)


def test_workloads_of_another_origin_race_apart(small_set):
    """As in derby rank: the score counts the survey's, whatever stands beside them."""
    catalog = of_two_origins(small_set)
    model = page_of(catalog).model
    [operator] = model.operators
    survey, serving = (model.races[place] for place in operator.races["h200"])
    assert (survey.origin, serving.origin) == ("survey", "serving") and survey.is_default and serving.is_default
    origins = [operator.shapes[place].origin for race in (survey, serving) for place in race.shapes]
    assert origins == ["survey", "serving"]
    ranked = kernelderby.TraceSet(catalog).rank().value
    for race, ranking in zip((survey, serving), ranked, strict=True):
        assert race.orders[race.kind].standings[0].solution == ranking.order[0]
        assert len(race.cells) == len(race.shapes) == len(ranking.rows) == 1


def test_changes_against_another_run(small_set, tmp_path):
    """The other run's times are ours times two for one solution: half the time now, every workload a win."""
    other = slower(small_set, tmp_path / "other", "toy_fast")
    changes = build_page(small_set, against=other).model.changes
    by_name = {line.solution: line for line in changes.lines}
    assert by_name["toy_fast"].ratio.value == pytest.approx(0.5) and by_name["toy_fast"].wins == 2
    assert by_name["toy_fast"].ratio.verdict == "faster"
    assert set(by_name) == {"toy_fast"} and changes.unchanged == 1, "the baseline's rows are the same"
    assert build_page(small_set, against=other / "traces").model.changes.lines == changes.lines


def test_against_nothing_is_an_error(small_set, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DerbyError, match="no such folder"):
        build_page(small_set, against=tmp_path / "nowhere")
    with pytest.raises(DerbyError, match="no recorded rows"):
        build_page(small_set, against=empty)


def test_a_broken_row_leaves_the_rest(small_set):
    """One operator's unusable rows are a warning, not the end of the page."""
    catalog = Catalog.open(small_set)
    rows = catalog.traces()
    spoilt = [replace(row, latency_us=-1.0, times={}) for row in rows]
    catalog.traces = lambda definition=None, **_: spoilt
    model = page_of(catalog).model
    assert model.races == () and any("latency_us" in each for each in model.trust.warnings)


def test_a_set_without_rows_has_a_page(small_set):
    import shutil

    shutil.rmtree(small_set / "traces")
    model = build_page(small_set).model
    assert model.rows == 0 and model.races == () and len(model.operators) == 1


def test_axes_that_tell_shapes_apart():
    sizes = [{"m": 1, "len": 2, "h": 8}, {"m": 3, "len": 4, "h": 8}, {"m": 3, "len": 4, "h": 16}]
    assert telling_axes(sizes) == ["m", "h"]
    assert telling_axes([{"m": 1, "n": 2}]) == ["m", "n"]


def test_layers_overlap_without_growing(built):
    [table] = [each for each in built.model.layers if "deepseek" in each.source]
    h800, b200 = table.columns
    assert h800.layer_us == 1116 and h800.overlapped_us == 34
    assert max(each.start_us + each.time_us for each in h800.modules) == 1116
    beside = [each for each in h800.modules if each.lane]
    assert {each.group for each in beside} == {"shared expert"} and sum(each.time_us for each in beside) == 34
    combine = next(each for each in h800.modules if each.module == "combine")
    assert min(each.start_us for each in beside) == combine.start_us
    assert (b200.have, b200.of) == (6, 24)


def test_the_documents_pipeline(built):
    [document] = [each for each in built.model.pipelines if each.source.endswith("triton_fused_v2_b200.csv")]
    shares = {stage.name: stage.share for stage in document.stages}
    assert shares["K3 / K5"] == pytest.approx(0.786, abs=5e-4) and shares["K4"] == pytest.approx(0.0864, abs=5e-5)
    k4 = next(stage for stage in document.stages if stage.name == "K4")
    assert k4.speedups[1] == pytest.approx(1.045, abs=5e-4)
    assert sum(shares.values()) == pytest.approx(1, abs=1e-4)


def test_printed_stages_are_read(built):
    source = "profiles/h200/derby_moe_sm90_stages.csv"
    ours = [each for each in built.model.pipelines if each.source == source]
    assert [each.title for each in ours] == ["seq_len1", "seq_len56", "seq_len901", "seq_len14107"]
    assert ours[0].total_us == 23.4 and [stage.name for stage in ours[0].stages] == ["K2", "K3"]


def test_a_broken_table_of_stages_is_left_out(small_set):
    folder = small_set / "profiles"
    folder.mkdir()
    (folder / "toy_fast_stages.csv").write_text("# toy_fast\nstage,what it does,rows2\nK1,scale,fast\n")
    model = build_page(small_set).model
    assert model.pipelines == ()
    assert any("toy_fast_stages.csv:3: 'fast' is no time" in each for each in model.trust.warnings)


SUMS = "Total Time (ns),Instances,Avg (ns),Name\n9000,3,3000,toy_scale(int)\n"


def test_recordings_are_found_by_place_and_name(small_set):
    """A solution's own under reports/profiles, as derby profile run names them; another profile shows its kernels."""
    folder = small_set / "reports" / "profiles"
    folder.mkdir(parents=True)
    [stages] = small_set.rglob("toy_fast/solution.toml")
    stages.write_text(stages.read_text().replace("elementwise_kernel", "toy_scale"))
    (folder / "toy_fast_rows1000_67a1a173.csv").write_text(SUMS)
    (folder / "serving_h200.csv").write_text(SUMS)
    (folder / "notes.csv").write_text("what,ever\n1,2\n")
    (folder / "toy_fast_other.csv").write_text(SUMS.replace("toy_scale", "other"))
    model = build_page(small_set).model
    [pipeline] = model.pipelines
    assert (pipeline.solution, pipeline.title, pipeline.basis) == ("toy_fast", "rows1000", "us an invocation")
    assert [(stage.name, stage.time_us, stage.share) for stage in pipeline.stages] == [("S1", 3.0, 1.0)]
    assert [(each.title.rpartition("/")[2], each.gpu) for each in model.kernels] == [
        ("serving_h200.csv", "NVIDIA H200"),
        ("toy_fast_other.csv", "GPU not named"),
        ("toy_fast_rows1000_67a1a173.csv", "GPU not named"),
    ]
    notes, other = model.trust.warnings
    assert "notes.csv" in notes and "toy_fast_other.csv: no stage of toy_fast occurs" in other


def test_a_foreign_set_without_costs_and_samples(small_set):
    model = page_of(foreign(small_set)).model
    gpu = model.gpus[0]
    assert (gpu.name, gpu.memory_bytes_per_second) == ("NVIDIA Nobody 9000", None) and gpu.rows == 4
    [race] = model.races
    order = race.orders["eager"]
    assert order.share is None and order.fair is None and order.middle is None
    assert order.lead is None  # plain torch is no library
    [operator] = model.operators
    assert operator.regime == "" and all(shape.floors == (None,) * len(model.gpus) for shape in operator.shapes)


def test_kernels_say_what_is_unknown(built):
    for profile in built.model.kernels:
        unknown = sum(each.share for each in profile.kernels if each.library == "unknown")
        assert profile.unknown == pytest.approx(unknown, abs=1e-5)
        assert sum(share for _, share, _, _ in profile.totals["library"]) == pytest.approx(1, abs=1e-4)

"""The page's timeline: its operations, and their drawing in a real browser."""

from __future__ import annotations

import json
import random

import pytest
from browsing import ThreadTime

from kernelderby.page import timelines
from kernelderby.page.build import build_page
from kernelderby.page.html import page_html
from kernelderby.page.timelines import shown_timeline
from kernelderby.profile.kernels.attribution import attribute
from kernelderby.profile.sources import open_profile

NASTY = "combine<script>document.title='owned'</script><img src=x onerror=alert(1)>_kernel"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEPS = (
    ("route_kernel", 4.0, 7),
    ("void moe_gemm1_kernel<128, 64>(Params)", 187.25, 7),
    ("swiglu_quant_kernel", 6.5, 7),
    ("void moe_gemm2_kernel<128, 64>(Params)", 92.0, 7),
    (NCCL, 60.0, 13),
    (NASTY, 8.125, 7),
)


def recording(path, calls=20):
    """A torch.profiler trace of `calls` calls of a pipeline, 6 kernels each: the reduction runs beside GEMM 2, on a
    stream of its own. Before each call L2 is flushed, outside its range."""
    events, clock, correlation = [], 1000.0, 0
    draw = random.Random(7)

    def launch(name, at, begin, length, stream, category="kernel"):
        nonlocal correlation
        correlation += 1
        tied = {"correlation": correlation}
        common = {"ph": "X", "pid": 4242, "tid": 1}
        events.append({**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 1.0, "args": tied})
        where = {"device": 0, "stream": stream, **tied}
        events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": begin, "dur": length}
            | {"args": where}
        )

    for number in range(calls):
        launch("Memset (Device)", clock - 6, clock, 60.0, 7, "gpu_memset")
        clock += 70
        annotation = {"ph": "X", "cat": "user_annotation", "name": f"invocation {number}", "pid": 4242, "tid": 1}
        events.append({**annotation, "ts": clock - 20, "dur": 15.0})
        for place, (name, length, stream) in enumerate(STEPS):
            length = round(length * draw.uniform(0.98, 1.02), 3)
            begin = clock - 70 if stream == 13 else clock
            launch(name, clock_of(events, annotation, place), round(begin, 3), length, stream)
            if stream == 7:
                clock = round(clock + length + 0.5, 3)
        clock += 50
    document = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": events}
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def clock_of(events, annotation, place):
    """Launches lie inside the range that was opened last, one after another."""
    opened = next(each for each in reversed(events) if each["name"] == annotation["name"])
    return opened["ts"] + 1 + 2 * place


@pytest.fixture
def set_with_recording(small_set):
    folder = small_set / "reports" / "profiles"
    folder.mkdir(parents=True)
    recording(folder / "serving.json")
    return small_set


@pytest.fixture
def file(set_with_recording, tmp_path):
    made = tmp_path / "report.html"
    made.write_text(page_html(build_page(set_with_recording)))
    return made


@pytest.fixture
def shown(set_with_recording):
    [found] = build_page(set_with_recording).model.timelines
    return found


def of_lane(lane):
    return [lane.spans[place : place + 3] for place in range(0, len(lane.spans), 4)]


# ------------------------------------------------------------------------------------------------------------ the data


def test_every_operation_is_on_its_lane_to_the_nanosecond(set_with_recording, shown):
    profile = open_profile(set_with_recording / "reports" / "profiles" / "serving.json")
    spans = list(profile.spans())
    first = spans[0].start_ns
    expected = {}
    for span in spans:
        row = (span.name, span.start_ns - first, span.end_ns - span.start_ns)
        expected.setdefault(f"stream {span.stream}", []).append(row)
    found = {
        lane.stream: [(shown.names[name][1], start, length) for name, start, length in of_lane(lane)]
        for lane in shown.lanes
    }
    assert found == expected
    assert shown.listed == shown.operations == 20 * 7 and shown.part == (0, shown.wall_ns)
    assert [lane.gpu for lane in shown.lanes] == ["GPU 0", "GPU 0"]


def test_roles_are_the_rules_and_sum_up(shown, set_with_recording):
    profile = open_profile(set_with_recording / "reports" / "profiles" / "serving.json")
    sums = profile.sums()
    assert sum(operations for _, operations, _ in shown.roles) == 140
    assert sum(time for _, _, time in shown.roles) == pytest.approx(sum(each.total_ns for each in sums) / 1e3, rel=1e-5)
    assert {name: role for _, name, role in shown.names} == {
        each.name: attribute(each.name, each.kind).role.value for each in sums
    }
    assert next(role for role, *_ in shown.roles) == "grouped GEMM"


def test_invocations_span_what_was_launched_in_them(shown):
    assert [name for name, *_ in shown.invocations] == [f"invocation {number}" for number in range(20)]
    kernels = [(start, start + length) for lane in shown.lanes for name, start, length in of_lane(lane)]
    for _, start, end in shown.invocations:
        inside = [(first, last) for first, last in kernels if first >= start and last <= end]
        assert len(inside) == 6 and min(inside)[0] == start and max(last for _, last in inside) == end


def test_busy_time_counts_overlap_once(tmp_path):
    """Two kernels of one stream that overlap (programmatic dependent launch): 10 and 8 us in 15."""
    events = [
        {"ph": "X", "cat": "kernel", "name": "a", "pid": 0, "tid": 7, "ts": 5.0, "dur": 10.0},
        {"ph": "X", "cat": "kernel", "name": "b", "pid": 0, "tid": 7, "ts": 12.0, "dur": 8.0},
    ]
    for each in events:
        each["args"] = {"device": 0, "stream": 7}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    [lane] = shown_timeline(open_profile(path), "trace").lanes
    assert (lane.operations, lane.busy_us) == (2, 15.0)
    assert lane.rows == 2 and lane.spans == (0, 0, 10_000, 0, 1, 7_000, 8_000, 1), (
        "the second hides nothing of the first"
    )


def test_what_overlaps_stands_below(visit, small_set, tmp_path):
    folder = small_set / "profiles"
    folder.mkdir()
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": length}
        | {"args": {"device": 0, "stream": 7}}
        for name, start, length in (("a", 0.0, 10.0), ("b", 7.0, 9.0), ("c", 12.0, 9.0), ("d", 22.0, 3.0))
    ]
    (folder / "overlap.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    made = tmp_path / "overlap.html"
    made.write_text(page_html(build_page(small_set)))
    page = visit(made, "timeline")
    tops = page.eval_on_selector_all(".tl-box", "all => all.map(each => each.getBoundingClientRect().top)")
    assert tops[0] == tops[2] == tops[3] and tops[1] > tops[0]
    bottom = page.eval_on_selector(".tl-area", "each => each.getBoundingClientRect().bottom")
    assert tops[1] + 15 < bottom


def test_of_a_long_recording_the_middle_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(timelines, "LISTED", 50)
    profile = open_profile(recording(tmp_path / "long.json"))
    spans = list(profile.spans())
    found = shown_timeline(profile, "long")
    middle = spans[45:95]
    assert (found.operations, found.listed) == (140, 50)
    assert found.part == (
        middle[0].start_ns - spans[0].start_ns,
        max(span.end_ns for span in middle) - spans[0].start_ns,
    )
    assert sum(lane.operations for lane in found.lanes) == 140, "counts and busy time are of the whole recording"


def test_idle_streams_are_counted_not_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(timelines, "LANES", 1)
    found = shown_timeline(open_profile(recording(tmp_path / "t.json")), "t")
    assert [lane.stream for lane in found.lanes] == ["stream 7"] and found.hidden_lanes == 1


def test_sums_have_no_timeline(small_set):
    folder = small_set / "profiles"
    folder.mkdir()
    (folder / "serving_h200.csv").write_text("Total Time (ns),Instances,Avg (ns),Name\n9000,3,3000,gemm(int)\n")
    assert build_page(small_set).model.timelines == ()


# --------------------------------------------------------------------------------------------------------- the browser

BOXES = """() => [...document.querySelectorAll('.tl-area')].map(area =>
    [...area.querySelectorAll('.tl-box')].map(box => {
    const outer = area.getBoundingClientRect(), inner = box.getBoundingClientRect();
    return [Number(box.dataset.start), Number(box.dataset.length), (inner.left - outer.left) / outer.width,
        (inner.right - outer.left) / outer.width, box.dataset.role, getComputedStyle(box).backgroundColor]; }))"""


def test_boxes_stand_where_the_operations_ran(visit, file, shown):
    page = visit(file, "timeline")
    lanes = page.evaluate(BOXES)
    assert [len(lane) for lane in lanes] == [len(each.spans) // 4 for each in shown.lanes] == [120, 20]
    for lane in lanes:
        for start, length, left, right, *_ in lane:
            assert left == pytest.approx(start / shown.wall_ns, abs=2e-3)
            assert right == pytest.approx((start + length) / shown.wall_ns, abs=3e-3)
    colors = {}
    for *_, role, color in (box for lane in lanes for box in lane):
        colors.setdefault(role, set()).add(color)
    assert all(len(each) == 1 for each in colors.values()), "a role has one colour"
    assert colors["grouped GEMM"] != colors["communication"] != colors["quantisation"]
    listed = page.locator("#section-timeline .legend li").all_inner_texts()
    assert len(listed) == len(shown.roles) and "grouped GEMM: 40 operations" in listed[0]


def test_an_invocation_fills_the_view_and_the_buttons_move_it(visit, file, shown):
    page = visit(file, "timeline")
    page.get_by_label("Show").select_option("3")
    _, start, end = shown.invocations[3]
    own = sorted(box for lane in page.evaluate(BOXES) for box in lane if box[4] != "memset")
    assert len(own) == 6, "beside them only what the margin shows of the flush"
    assert own[0][0] == start and own[0][2] == pytest.approx(0.04 / 1.08, abs=3e-3)
    assert own[-1][0] + own[-1][1] == end and own[-1][3] == pytest.approx(1.04 / 1.08, abs=3e-3)
    page.get_by_role("button", name="Further away").click()
    assert sum(map(len, page.evaluate(BOXES))) > 7
    page.get_by_role("button", name="Later").click()
    later = min(box[0] for lane in page.evaluate(BOXES) for box in lane)
    assert later > start
    page.get_by_role("button", name="Earlier").click()
    page.get_by_role("button", name="Nearer").click()
    assert sum(map(len, page.evaluate(BOXES))) == 7
    page.get_by_role("button", name="Everything drawn").click()
    assert [len(lane) for lane in page.evaluate(BOXES)] == [120, 20]
    for _ in range(30):
        page.get_by_role("button", name="Nearer").click()
    ticks = page.locator("#section-timeline .tick").all_inner_texts()
    assert len(ticks) >= 3 and len(set(ticks)) == len(ticks), "ticks differ at every zoom"


def test_a_picked_operation_is_told_in_full_and_as_text(visit, file):
    page = visit(file, "timeline")
    page.get_by_label("Show").select_option("0")
    box = page.locator(".tl-box[title*='owned']")
    box.click()
    told = page.locator(".timeline-told").inner_text()
    assert NASTY in told and " us, from " in told
    assert page.title() != "owned" and page.locator("main img, main script").count() == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_accessible_and_fits(visit, file, dark, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()
    page = visit(file, "timeline", width=width, dark=dark)
    for window in ("", "5"):
        page.get_by_label("Show").select_option(window)
        rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
        found = axe.run(page, options={"runOnly": rules, "resultTypes": ["violations"]})
        violations = {
            each["id"]: [node["html"][:160] for node in each["nodes"]][:3] for each in found.response["violations"]
        }
        assert violations == {}
        assert max(page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth]")) <= width


def test_it_is_printed(visit, file):
    page = visit(file, dark=True)
    page.pdf(format="A4")
    page.emulate_media(media="print")
    assert page.locator(".tl-box").count() == 140 and page.locator("#section-timeline").is_visible()


def test_two_thousand_boxes_are_quick(visit, set_with_recording, tmp_path):
    folder = set_with_recording / "reports" / "profiles"
    recording(folder / "serving.json", calls=400)
    made = tmp_path / "long.html"
    made.write_text(page_html(build_page(set_with_recording)))
    page = visit(made, "timeline")
    assert page.locator(".tl-box").count() == 2000
    assert "Drawn are 2000 of them, in the middle" in page.locator("#section-timeline").inner_text()
    assert ThreadTime(page).of_click('.tl-tools button[title="Everything drawn"]') < 0.15

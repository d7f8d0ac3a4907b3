"""derby profile stages, whatif and compare as commands, on the published table of triton_fused_v2 and on an export."""

import csv
import gzip
import json
import subprocess
import sys

import pytest
from make_nsys import Export

from kernelderby.cli import profile as group
from kernelderby.cli.profile.run import _lost_calls

SOLUTION = ("--solution", "triton_fused_v2")
GEMM = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<int>>>(T1)"
# Kernel, us. Local ids in glue, a copy between the stages' glue, K3 and K5 from one kernel.
PIPELINE = (
    ("void moe_fused_gate_kernel<float>(void *)", 10),
    ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::AddFunctor<int>>(int)", 2),
    ("compute_problem_sizes(int const *)", 3),
    ("compute_expert_offsets(int const *)", 4),
    ("compute_arg_sorts(int const *)", 5),
    ("void shuffleRowsKernel<__nv_fp8_e4m3>(T1 *)", 6),
    ("void shuffleRowsKernel<float>(T1 *)", 7),
    ("void get_group_gemm_starts<float>(int *)", 1),
    (GEMM, 100),
    ("swiglu_quant_kernel", 20),
    ("void get_group_gemm_starts<float>(int *)", 1),
    (GEMM, 50),
    ("void apply_shuffle_mul_sum_kernel<float>(T1 *)", 11),
)
ONCE_US = 220


def export(path, invocations=3, gpu="NVIDIA H200", slower=1, kernels=PIPELINE):
    """Invocations 400 us apart, kernels 1 us apart, a flush of 30 us before each, nothing marked."""
    with Export(path, gpu=gpu) as made:
        now, correlation = 1_000_000, 1
        for _ in range(invocations):
            made.memset(1 << 20, now, now + 30_000, correlation)
            now, correlation = now + 40_000, correlation + 1
            for name, us in kernels:
                made.kernel(name, now, now + us * 1000 * slower, correlation)
                now, correlation = now + us * 1000 * slower + 1000, correlation + 1
            now += 100_000
    return path


@pytest.fixture
def profile(derby, checkout):
    """profile(verb, *arguments): the command on the checkout's own set."""
    return lambda verb, *arguments: derby("profile", verb, *arguments, "--root", checkout)


@pytest.fixture
def published(checkout):
    return checkout / "profiles" / "triton_fused_v2_b200.csv"


def cells(markdown):
    """The rows of its tables."""
    return [
        line.removeprefix("| ").removesuffix(" |").split(" | ")
        for line in markdown.splitlines()
        if line.startswith("|")
    ]


def stages(found, place=0):
    return {row["name"]: row for row in found["pipelines"][place]["stages"]}


def test_the_group_lists_its_verbs_and_imports_none(derby):
    code, out, _ = derby("profile", "--help")
    assert code == 0 and all(f"\n  {name} " in out for name in group.VERBS)
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kernelderby.cli", "profile", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    for heavy in ("torch", "numpy", "rich", "kernelderby.catalog", "kernelderby.profile", "kernelderby.report"):
        assert f" {heavy}\n" not in loaded
    code, out, err = derby("profile", "stagse")
    assert code == 2 and out == "" and "did you mean stages" in err


@pytest.mark.parametrize("verb", group.VERBS)
def test_every_verb_has_help(derby, verb):
    code, out, err = derby("profile", verb, "--help")
    assert code == 0, err
    assert "--json" in out or verb == "timeline"  # which writes JSON


def test_the_published_table(profile, published):
    code, out, _ = profile("stages", published, *SOLUTION, "--json")
    assert code == 0
    found = json.loads(out)["pipelines"][0]
    assert found["gpu"] == "NVIDIA B200" and found["invocations"] == 1949
    assert found["pipeline_ns"] == pytest.approx(3310e6)
    # The document's column "% of pipeline"; its rows sum to 99.7 %, and so do these.
    of_kernel = {
        kernel["name"]: f"{100 * kernel['total_ns'] / found['pipeline_ns']:.1f}"
        for row in found["stages"]
        for kernel in row["kernels"]
    }
    assert of_kernel == {
        "moe_fused_gate_kernel": "1.3",
        "compute_expert_offsets": "0.2",
        "compute_problem_sizes": "0.8",
        "compute_arg_sorts": "1.6",
        "shuffleRowsKernel<fp8>": "3.4",
        "shuffleRowsKernel<float>": "1.3",
        "GemmUniversal<GroupProblemShape, row 7>": "72.8",
        "get_group_gemm_starts": "0.3",
        "swiglu_quant_kernel": "8.6",
        "GemmUniversal<GroupProblemShape, row 10>": "5.8",
        "apply_shuffle_mul_sum_kernel": "3.6",
    }
    by_name = stages(json.loads(out))
    assert by_name["K3 / K5"]["is_merged"] and by_name["K3 / K5"]["share"] == pytest.approx(0.786, abs=5e-4)
    assert by_name["not itemised"]["total_ns"] == pytest.approx(8.6e6)
    assert sum(row["share"] for row in by_name.values()) == pytest.approx(1)


def test_the_published_table_as_text_and_markdown(profile, published):
    code, out, _ = profile("stages", published, *SOLUTION)
    assert code == 0
    for text in (
        "1949 invocations",
        "72.8",
        "*78.6",
        "not separable",
        "3896 kernels, 2 fewer than 2 x 1949",
        "not itemised",
    ):
        assert text in out
    code, out, _ = profile("stages", published, *SOLUTION, "--format", "markdown")
    assert code == 0 and "| *K4 !* | swiglu_quant_kernel | 1948 | 286.1 | 146.9 | 146.8 | 8.6 |" in out
    code, out, _ = profile("stages", published, *SOLUTION, "--format", "csv")
    first = next(csv.DictReader(out.splitlines()))
    assert (first["stage"], first["instances"], float(first["total_ns"])) == ("K1", "1949", pytest.approx(42.5e6))
    kernels = list(
        csv.DictReader(profile("stages", published, *SOLUTION, "--format", "csv", "--table", "kernels")[1].splitlines())
    )
    assert (kernels[0]["stage"], kernels[0]["kernel"]) == ("K1", "moe_fused_gate_kernel")


def test_an_export_with_events(profile, tmp_path):
    code, out, err = profile("stages", export(tmp_path / "a.sqlite"), *SOLUTION, "--json")
    assert code == 0, err
    found = json.loads(out)["pipelines"][0]
    by_name = stages(json.loads(out))
    assert found["invocations"] == 3 and found["pipeline_ns"] == 3 * ONCE_US * 1000
    assert {name: row["us_per_invocation"] for name, row in by_name.items()} == {
        "K1": 10,
        "K2b": 3,
        "K2a": 4,
        "K2c": 5,
        "K2d": 6,
        "K2e": 7,
        "K3'": 1,
        "K3": 100,
        "K4": 20,
        "K5'": 1,
        "K5": 50,
        "K6": 11,
        "glue": 2,
    }
    assert all(not row["notes"] for row in by_name.values())
    assert [(row["kind"], row["instances"], row["bytes"]) for row in found["outside"] if row["instances"]] == [
        ("memset", 3, 3 << 20)
    ]
    # 12 gaps of 1 us inside an invocation.
    assert found["span_ns"] == 3 * (ONCE_US + 12) * 1000
    [timeline] = found["timelines"]
    assert timeline["busy_ns"] == 3 * (ONCE_US + 30) * 1000 and timeline["gaps"] == 3 * 13 + 2


def test_several_files_are_several_tables(profile, tmp_path, published):
    code, out, _ = profile("stages", export(tmp_path / "a.sqlite"), published, *SOLUTION)
    assert code == 0 and out.count("\nPipeline\n") == 2 and "Stages side by side" in out
    files = [
        export(tmp_path / f"triton_fused_v2_seq_len{size}_0123abcd.sqlite", slower=slower)
        for size, slower in ((1, 1), (56, 3))
    ]
    code, out, _ = profile("stages", *files, *SOLUTION, "--overview", "--format", "markdown")
    rows = cells(out)
    assert rows[0] == ["stage", "what it does", "seq_len1", "seq_len56"] and "\nPipeline\n" not in out
    assert ["K3", "grouped GEMM 1", "**100.0 (45.5%)**", "**300.0 (45.5%)**"] in rows
    assert rows[-2:] == [
        ["pipeline", "sum of the stages", "220.0", "660.0"],
        ["", "first start to last end", "232.0", "672.0"],
    ]


def test_stages_keep_their_order_where_one_profile_lacks_the_first(profile, tmp_path):
    files = [
        export(tmp_path / "triton_fused_v2_seq_len1_0123abcd.sqlite", kernels=PIPELINE[1:]),
        export(tmp_path / "triton_fused_v2_seq_len56_0123abcd.sqlite"),
    ]
    code, out, _ = profile("stages", *files, *SOLUTION, "--overview", "--format", "markdown")
    rows = cells(out)[1:]
    assert [row[0] for row in rows[1:4]] == ["K1", "K2b", "K2a"] and rows[1][2:] == ["-", "10.0 (4.5%)"]


def test_whatif_on_the_published_table(profile, published):
    code, out, _ = profile("whatif", published, *SOLUTION)
    assert code == 0 and "1.045 (4.3 %)" in out and "1.272 times as fast" in out and "no floors" in out
    code, out, _ = profile("whatif", published, *SOLUTION, "--factor", "4", "--json")
    [found] = json.loads(out)["whatif"]
    assert found["factors"] == [4] and found["stages"][0]["stage"] == "K3 / K5"


def test_whatif_at_the_roofline(profile, tmp_path):
    file = export(tmp_path / "a.sqlite")
    code, out, err = profile("whatif", file, *SOLUTION, "--workload", "seq_len=1", "--json")
    assert code == 0, err
    together = next(row for row in json.loads(out)["whatif"][0]["stages"] if row["stage"] == "K3 / K5")
    # 44.0 MB at 4.8 TB/s; both GEMMs take 150 of 220 us.
    assert together["floor_us"] == pytest.approx(9.18, abs=0.01)
    assert together["at_floor"] == pytest.approx(220 / (70 + together["floor_us"]))
    code, out, _ = profile("whatif", file, *SOLUTION, "--floor", "K4=5")
    assert code == 0 and "1.073 (6.8 %)" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workload", "seq_len=2"), "--workload: 'seq_len=2' fits 0 workloads"),
        (("--floor", "K4"), "--floor: 'K4' is not STAGE=US"),
        (("--floor", "K9=3"), "no stage K9 to give a floor"),
        (("--workload", "seq_len=1", "--gpu", "h2oo"), "--gpu: no 'h2oo'"),
        (("--within", "("), "--within"),
    ],
)
def test_whatif_errors_are_one_line(profile, tmp_path, arguments, said):
    code, out, err = profile("whatif", export(tmp_path / "a.sqlite"), *SOLUTION, *arguments)
    assert code == 1 and out == "" and err.count("\n") == 1 and said in err


def test_compare(profile, tmp_path):
    before = export(tmp_path / "a.sqlite", invocations=2)
    after = export(tmp_path / "b.sqlite", invocations=5, gpu="NVIDIA H100 80GB HBM3", slower=2)
    code, out, err = profile("compare", before, after, *SOLUTION)
    assert code == 0, err
    assert "A: NVIDIA H200, 2 invocations · B: NVIDIA H100 80GB HBM3, 5 invocations" in out
    code, out, _ = profile("compare", before, after, *SOLUTION, "--json")
    found = json.loads(out)["comparison"]
    assert found["ratio"] == 2 and {row["verdict"] for row in found["changes"]} == {"not tested"}
    assert sum(row["share_of_change"] for row in found["changes"]) == pytest.approx(1)
    code, out, _ = profile("compare", before, after)
    assert code == 0 and "ran 2.5 x as often in the second profile" in out
    code, out, _ = profile("compare", before, after, "--rows", "3")
    assert "9 more with smaller changes" in out


def test_overlapping_kernels_get_columns_of_their_own(profile, tmp_path):
    with Export(tmp_path / "a.sqlite") as made:
        for number, (name, start, end) in enumerate(
            (("void moe_fused_gate_kernel<float>()", 0, 100_000), ("swiglu_quant_kernel", 50_000, 110_000))
        ):
            made.kernel(name, 1_000_000 + start, 1_000_000 + end, number + 1)
    code, out, _ = profile("stages", tmp_path / "a.sqlite", *SOLUTION)
    assert code == 0 and "kernels overlap: 160.0 us of durations in those 110.0 us" in out
    rows = cells(profile("stages", tmp_path / "a.sqlite", *SOLUTION, "--format", "markdown")[1])
    shown = [tuple(cell.strip("*") for cell in row[-3:]) for row in rows if row[0] in ("K1", "K4")]
    assert shown == [("62.5", "100.0", "90.9"), ("37.5", "10.0", "9.1")]


@pytest.mark.parametrize("verb", ["stages", "whatif", "compare"])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures(profile, tmp_path, verb, suffix):
    pytest.importorskip("matplotlib")
    files = [export(tmp_path / "a.sqlite")] + ([export(tmp_path / "b.sqlite", slower=2)] if verb == "compare" else [])
    picture = tmp_path / f"picture.{suffix}"
    code, _, err = profile(verb, *files, *SOLUTION, "--plot", picture)
    assert code == 0 and f"{picture}: written" in err
    assert picture.read_bytes().startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_a_picture_that_cannot_be_drawn_is_one_line(profile, published, tmp_path, monkeypatch):
    code, _, err = profile("stages", published, *SOLUTION, "--plot", tmp_path / "picture.jpg")
    assert code == 1 and err.count("\n") == 1 and "end it in .png, .svg, .pdf" in err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = profile("stages", published, *SOLUTION, "--plot", tmp_path / "picture.png")
    assert code == 1 and err.count("\n") == 1 and "pip install 'kernelderby[plot]'" in err


def test_write_keeps_a_block(profile, published, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- derby profile b200 -->\nold\n<!-- /derby -->\nafter\n")
    code, out, err = profile("stages", published, *SOLUTION, "--write", page, "--block", "b200")
    assert code == 0 and out == "" and "block profile b200 written" in err
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text and "| K1 |" in text
    assert "is up to date" in profile("stages", published, *SOLUTION, "--write", page, "--block", "b200")[2]
    assert "is missing" in profile("stages", published, *SOLUTION, "--write", page)[2]


@pytest.mark.parametrize(("text", "said"), [("pipeline_total_ms = 'x'", "finite number above 0"), ("= 3", "not TOML")])
def test_a_bad_total_beside_a_table_is_one_line(profile, published, tmp_path, text, said):
    table = tmp_path / "table.csv"
    table.write_text(published.read_text())
    table.with_suffix(".toml").write_text(text)
    code, out, err = profile("stages", table, *SOLUTION)
    assert code == 1 and out == "" and err.count("\n") == 1 and said in err


def test_a_missing_file_and_an_unknown_solution(profile, published, tmp_path):
    code, out, err = profile("stages", tmp_path / "none.sqlite", *SOLUTION)
    assert code == 1 and out == "" and err.count("\n") == 1 and "none.sqlite" in err
    code, out, err = profile("stages", published, "--solution", "triton_fused_v3")
    assert code == 1 and "triton_fused_v2" in err


@pytest.mark.parametrize("recorded", [(3, 3, 3, 3), (3, 2, 3, 2), (3, 0, 0, 0), (3, 3, 1, 3), ()])
def test_calls_whose_work_the_recorder_lost_are_counted(tmp_path, recorded):
    """recorded: operations of each call in the file; four calls were made."""
    path = tmp_path / "a.sqlite"
    with Export(path) as export:
        correlation = 0
        for number, operations in enumerate(recorded):
            begin = 10_000 * number
            export.nvtx(f"invocation {number}", begin, begin + 5_000)
            for _ in range(operations):
                correlation += 1
                export.call("cudaLaunchKernel_v7000", begin + 10, begin + 20, correlation)
                export.kernel("gemm", begin + 100, begin + 200, correlation)
        export.kernel("elsewhere", 6_000, 6_001)
    lost = sum(operations < 2 for operations in recorded)
    found = _lost_calls(path, 4)
    if not recorded:
        assert len(found) == 1 and "has no ranges" in found[0]
    elif lost:
        assert len(found) == 1 and found[0].startswith(f"{lost} of 4 calls have no or little GPU work")
    else:
        assert found == []
    assert _lost_calls(path, 0) == [], "another harness marks no calls"


# Without a map, without a solution


@pytest.fixture
def served(tmp_path):
    """Twelve layers of four kernels in each of four steps; an embedding before, a sampler behind them."""
    path = tmp_path / "served.sqlite"
    layer = ("void ns::rms_norm_kernel<float>(int)", "nvjet_a", "void flash::flash_fwd_kernel<T>(P)", "nvjet_b")
    now = correlation = 0
    with Export(path) as database:
        for _ in range(4):
            for name in ("embedding", *layer * 12, "sampling"):
                correlation += 1
                database.call("cudaLaunchKernel", now, now + 10, correlation)
                database.kernel(name, now + 100, now + 1100, correlation)
                now += 2000
    return path


def test_layers_and_stages_from_a_draft(derby, profile, served, tmp_path):
    code, out, _ = derby("profile", "layers", served, "--draft", tmp_path / "map.toml", "--json")
    found = json.loads(out)
    assert code == 0 and found["layers"] == 12 and found["columns"][0]["passes"] == 4
    assert [row["module"] for row in found["columns"][0]["modules"]] == ["norm", "GEMM", "attention", "GEMM 2"]
    code, out, _ = derby("profile", "layers", served, "--map", tmp_path / "map.toml", "--window", ":200us", "--json")
    assert code == 0 and json.loads(out)["columns"][0]["passes"] == 2
    code, out, _ = profile("stages", served, "--draft", tmp_path / "stages.toml", "--json")
    rows = {row["name"]: row["instances"] for row in json.loads(out)["pipelines"][0]["stages"]}
    assert code == 0 and {name: rows[name] for name in ("norm", "attention")} == {"norm": 48, "attention": 48}
    code, again, _ = profile("stages", served, "--stages", tmp_path / "stages.toml", "--json")
    assert code == 0 and json.loads(again)["pipelines"][0]["stages"] == json.loads(out)["pipelines"][0]["stages"]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_timeline_for_perfetto(derby, served, tmp_path, name):
    """Every operation on its stream, its role's and its library's track; a track of steps; names of all tracks."""
    code, out, _ = derby("profile", "timeline", served, "--out", tmp_path / name)
    data = (tmp_path / name).read_bytes()
    events = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)["traceEvents"]
    assert code == 0 and f"{len(events):,} events" in out
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    work = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in work} == set(tracks) and "role: attention" in tracks.values()
    on = {title: [event for event in work if tracks[event["tid"]] == title] for title in tracks.values()}
    assert (len(on["steps"]), len(on["role: attention"])) == (4, 48)
    first = on["stream 7"][0]
    assert (first["name"], first["ts"], first["dur"]) == ("embedding", 0, 1)
    assert on["steps"][0]["dur"] == 100 and len([each for each in on if each.startswith("stream")]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("timeline", "--out", "a.pb"), "a.pb: a trace is a .json or .json.gz file; end the name so"),
        (("timeline", "--out", "nowhere/a.json"), "nowhere/a.json: no such folder"),
        (("stages",), "give one of --solution NAME, --stages FILE.toml and --draft OUT.toml"),
        (("stages", "--stages", "a.md"), "--stages a.md: is no .toml; write [[stages]]"),
        (("stages", "--draft", "a.txt"), "a.txt: a draft is a .toml file; end the name so"),
        (("layers", "--draft", "nowhere/a.toml"), "nowhere/a.toml: no such folder"),
        (("layers", "--draft", "a.toml", "--map", "deepseek_decode"), "--draft: writes a map, and --map gives one"),
        (("compare", "{again}", "--kind", "decode"), "--kind: both profiles have no steps of 'decode'"),
    ],
)
def test_what_is_wrong_with_a_draft_stands_in_a_line(derby, served, arguments, said):
    verb, *rest = [str(served) if each == "{again}" else each for each in arguments]
    code, _, error = derby("profile", verb, served, *rest)
    assert code == 1 and said in error and error.count("\n") == 1

"""Layer tables: the D4 table's own arithmetic, and profiles with answers worked out by hand."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from make_nsys import Export

from kernelderby.errors import DerbyError
from kernelderby.profile.layers import table as layers_module
from kernelderby.profile.layers.column import profile_column
from kernelderby.profile.layers.draft import draft_of
from kernelderby.profile.layers.map import load_map, parse_map, shipped
from kernelderby.profile.layers.published import table_columns
from kernelderby.profile.layers.table import layer_table
from kernelderby.profile.spans import KernelSum, Profile, RangeInstance, Span, SpanKind
from kernelderby.report import markdown, text
from kernelderby.report.profile.layers import layer_bars, layers_report

ROOT = Path(__file__).resolve().parents[2]
D4 = ROOT / "profiles" / "deepseek_d4_decode.toml"
DEEPSEEK = load_map("deepseek_decode")

GEMM = "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(unsigned int)0, (unsigned int)7168>(float *, int)"
QUANT = "void per_token_group_quant_8bit_kernel<__nv_bfloat16, c10::Float8_e4m3fn>(const T1 *, void *, float *, int)"
NORM = "void flashinfer::norm::FusedAddRMSNormKernel<(unsigned int)8, __nv_bfloat16>(T2 *, T2 *, T2 *)"
BMM = "nvjet_hsh_64x8_64x16_4x1_v_bz_TNN"
DISPATCH = "void deep_ep::internode_ll::dispatch<(bool)1, (bool)0, (int)7168>(void *, void *)"
COMBINE = "void deep_ep::internode_ll::combine<(bool)0, (int)7168, (int)9>(void *, void *)"
ATTENTION = [
    (NORM, 4),
    (GEMM, 13),
    ("rmsnorm_split_col_kernel", 2),
    (QUANT, 2),
    (GEMM, 19),
    (BMM, 16),
    ("void at::native::elementwise_kernel<128, 4, copy>(int)", 1),
    ("rotary_embedding_kernel<float>", 6),
    ("void flash::flash_fwd_splitkv_mla_kernel<Traits>(Params)", 255),
    (BMM, 15),
    (QUANT, 5),
    (GEMM, 50),
]
GATE = [
    (NORM, 3),
    (BMM, 6),
    ("cublasLt::splitKreduce_kernel<32, 16, int>", 2),
    ("void moe_fused_gate_kernel<float>(void *)", 8),
]
MOE = [(DISPATCH, 187), (GEMM, 81), ("silu_and_mul_masked_post_quant_kernel", 8), (GEMM, 39)]
SHARED = [(QUANT, 3), (GEMM, 17), ("void flashinfer::activation::act_and_mul_kernel<silu>(int)", 4), (GEMM, 10)]
DENSE = [*SHARED[:1], (GEMM, 30), SHARED[2], (QUANT, 2), (GEMM, 20)]
HALF = [(COMBINE, 197)]
LAYER = ATTENTION + GATE + MOE + HALF + SHARED + HALF


class Recorded(Profile):
    """A profile from a list of spans; sums only when has_events is False."""

    def __init__(self, path, form, has_events, recorded):
        super().__init__(path, form)
        self.has_events, self.recorded = has_events, recorded

    def spans(self):
        return iter(sorted(self.recorded, key=lambda span: (span.start_ns, span.end_ns)))

    def sums(self):
        found = {}
        for span in self.recorded:
            count, total = found.get((span.kind, span.name), (0, 0))
            found[span.kind, span.name] = count + 1, total + span.end_ns - span.start_ns
        return [KernelSum(kind, name, count, total) for (kind, name), (count, total) in found.items()]


def timeline(kernels, *, start=0, stream=7, device=0, gap=0, kind=SpanKind.KERNEL, ranges=()):
    """Kernels (name, us) one after the other, `gap` us apart."""
    spans, now = [], start
    for name, us in kernels:
        begin, end = round(now * 1000), round((now + us) * 1000)
        spans.append(Span(kind, name, begin, end, device=device, stream=stream, ranges=ranges))
        now += us + gap
    return spans


def recorded(spans, *, events=True, path="decode.sqlite"):
    return Recorded(Path(path), "nsys SQLite", has_events=events, recorded=list(spans))


def column(spans, layer_map=DEEPSEEK, **options):
    return profile_column(recorded(spans, **options), layer_map)


# The published table


def test_d4_sums_are_the_documents():
    (h800, b200), _ = table_columns(D4, None)
    assert h800.groups == {"attention": 388, "gate": 19, "moe": 709, "shared expert": 34}
    assert [one.agrees for one in h800.printed if one.group] == [True, True]
    whole = {one.what: one.printed_us for one in h800.printed if not one.group}
    assert whole == {"61 layers": 87320, "end to end": 96000}
    assert b200.groups == pytest.approx({"attention": 225.767 + 43.512, "moe": 48.212 + 195.136 + 40.491 + 104.671})


def test_d4_overlap_counts_once():
    (h800, b200), _ = table_columns(D4, None)
    assert h800.overlapped_us == 34  # the shared expert runs inside combine's 394
    assert h800.layer_us == 388 + 19 + 709
    assert h800.model_us == 61 * 388 + 58 * (19 + 709)
    assert b200.overlapped_us == 0  # it has no combine


def test_what_the_notes_of_d4_say_is_so():
    (h800, _), _ = table_columns(D4, None)
    assert 61 * h800.layer_us == pytest.approx(68_080, abs=10)
    assert h800.model_us == pytest.approx(65_890, abs=5)
    beyond = 87_320 / 61 - h800.layer_us
    again = sum(h800.modules["moe", name] for name in ("dispatch", "up_gate_gemm", "silu", "down_gemm"))
    assert again == 315
    assert beyond == pytest.approx(again, abs=0.5)


def test_ratios_are_over_what_both_columns_have():
    table = layer_table([D4])
    b200 = table.columns[1]
    attention = table.compare(b200, table.of(("attention",)), ("attention",))
    assert attention.ratio == pytest.approx(269.279 / 305)
    assert (attention.shared, attention.of) == (2, 11)
    assert table.compare(b200, table.of(("gate",)), ("gate",)) is None
    assert table.compare(b200, [("attention", "self.o_proj", "fp8 GEMM")]).ratio == pytest.approx(43.512 / 50)
    assert table.compare(b200, table.usual(), "layer").ratio == pytest.approx(657.789 / 620)


def test_order_of_the_table_is_the_documents():
    table = layer_table([D4])
    assert list(table.groups) == ["attention", "gate", "moe", "shared expert"]
    kernels = [next(iter(table.columns[0].names[line])) for line in table.of(("attention",))]
    assert kernels[:3] == ["flashinfer::norm::FusedAddRM", "deep_gemm::sm100_fp8_gem", "rmsnorm_split_col_kernel"]
    assert kernels[-3:] == ["elementwise_kernel", "per_token_group_quant_fp8_", "deep_gemm::sm100_fp8_gem"]
    assert len(table.lines) == 30


def test_every_format_shows_the_sums():
    report = layers_report(layer_table([D4]))
    for renderer in (text, markdown):
        output = renderer.render(report)
        for expected in ("388.0", "19.0", "709.0", "1116.0", "-34.0", "269.3 (2 of 11)", "0.88", "87.32", "agrees"):
            assert expected in output


def test_the_documentation_has_the_table():
    written = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")
    assert markdown.render(layers_report(layer_table([D4]))).strip() in written, (
        "derby profile layers profiles/deepseek_d4_decode.toml --write docs/layers.md"
    )


def edited_table(tmp_path, old, new):
    path = tmp_path / "table.toml"
    content = D4.read_text(encoding="utf-8")
    assert old in content
    path.write_text(content.replace(old, new, 1), encoding="utf-8")
    return path


def test_a_wrong_printed_sum_is_said(tmp_path):
    path = edited_table(tmp_path, "value = 388", "value = 390")
    assert "printed 390, rows add up to 388: the document's arithmetic is off" in text.render(
        layers_report(layer_table([path])), width=400
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "module table"', 'kind = "x"', "kind"),
        ('unit = "us"', 'unit = "ms"', "unit"),
        ("h800 = 4 }", 'h800 = "4,0" }', "no time in us"),
        ("h800 = 4 }", "h8oo = 4 }", "'h8oo' is no column"),
        ('group = "gate"', 'group = "gat"', "no group 'gat'"),
        ("attention = [", "attention = [[", "not TOML"),
        ('layer_map = "deepseek_decode"', 'layer_map = "deepsek"', "no layer map 'deepsek'"),
    ],
)
def test_a_wrong_table_is_one_line(tmp_path, old, new, message):
    with pytest.raises(DerbyError, match=message) as caught:
        layer_table([edited_table(tmp_path, old, new)])
    assert "\n" not in str(caught.value)


# Profiles with events


def test_a_layer_in_order_is_the_table():
    found = column(timeline(LAYER * 5, gap=1))
    assert found.groups == {"attention": 388, "gate": 19, "moe": 709, "shared expert": 34}
    assert found.seen == dict.fromkeys(found.groups, 5)
    assert (found.layer_us, found.overlapped_us, found.unattributed_us) == (1150, 0, 0)  # here nothing overlaps
    assert found.modules["attention", "self.o_proj"] == 55
    assert found.modules["moe", "combine"] == 394
    assert found.lines["attention", "q_a_kv_a", "fp8 GEMM"] == 13
    assert found.instances["moe", "combine", "DeepEP combine"] == 10
    assert found.wall_us - found.busy_us == 5 * len(LAYER) - 1


def test_a_pass_of_two_gpus_is_as_long_as_that_of_one():
    """They run at the same time, and each counts its passes."""
    one = column(timeline(LAYER * 5, gap=1))
    both = column(timeline(LAYER * 5, gap=1) + timeline(LAYER * 5, gap=1, start=3, device=1))
    assert both.passes == 2 * one.passes and both.wall_us == 2 * one.wall_us and both.busy_us == 2 * one.busy_us


def test_a_layer_of_one_group_has_one_sum(tmp_path):
    layer_map = tmp_path / "one.toml"
    layer_map.write_text(
        'title = "t"\nlayers = 2\n[[modules]]\ngroup = "layer"\nname = "a"\nkernels = [{ match = "^k$" }]\n'
    )
    with Export(tmp_path / "a.sqlite") as export:
        export.kernel("k", 0, 10, 1)
        export.kernel("k", 20, 30, 2)
    shown = text.render(layers_report(layer_table([tmp_path / "a.sqlite"], map_name=layer_map)), width=200)
    assert shown.count("layer  sum") == 1 and "1 forward pass\n" in shown


def test_a_shared_expert_on_a_side_stream_counts_once():
    """combine runs 394 us on the main stream, the shared expert's 34 us inside it on another."""
    spans, now = [], 0
    for _ in range(6):
        main = timeline(ATTENTION + GATE + MOE + [(COMBINE, 394)], start=now)
        begin = now + 388 + 19 + 315 + 20
        spans += main + timeline(SHARED, start=begin, stream=9)
        now += 388 + 19 + 709 + 50
    found = column(spans)
    assert found.groups == {"attention": 388, "gate": 19, "moe": 709, "shared expert": 34}
    assert found.overlapped_us == pytest.approx(34)
    assert found.layer_us == pytest.approx(1116)
    assert found.attributed_us == pytest.approx(6 * 1116)
    assert found.seen["shared expert"] == 6


def test_two_gpus_do_not_overlap_each_other():
    spans = timeline(LAYER * 3) + timeline(LAYER * 3, device=1)
    found = column(spans)
    assert found.seen["attention"] == 6
    assert found.groups["attention"] == 388
    assert found.overlapped_us == 0


def test_dense_layers_and_work_between_passes():
    """Three dense layers, then four MoE layers, twice; between them a sampler whose names look like the gate's."""
    sampler = [("lm_head_kernel", 40), (BMM, 30), ("void at::native::elementwise_kernel<128>(int)", 2), ("argmax", 5)]
    kernels = ((ATTENTION + GATE[:1] + DENSE) * 3 + LAYER * 4 + sampler) * 2
    found = column(timeline(kernels))
    assert found.seen == {"attention": 14, "gate": 8, "dense mlp": 6, "moe": 8, "shared expert": 8}
    assert found.groups["dense mlp"] == 3 + 59
    assert found.groups["gate"] == 19
    assert found.groups["moe"] == 709
    assert found.unattributed_us == 2 * 77
    assert {one.name: one.inside_us for one in found.leftovers}["lm_head_kernel"] == 0
    assert found.layer_us == pytest.approx(1150)


def test_a_kernel_that_no_module_has_is_unattributed_inside():
    found = column(timeline(([*ATTENTION, ("my_extra_kernel", 11), *GATE, *MOE, *HALF, *SHARED, *HALF]) * 4))
    extra = next(one for one in found.leftovers if one.name == "my_extra_kernel")
    assert (extra.instances, extra.total_us, extra.inside_us) == (4, 44, 44)
    assert found.attributed_us + found.unattributed_us == pytest.approx(found.busy_us)


def test_a_profile_that_starts_and_ends_inside_a_layer():
    kernels = (LAYER * 4)[5:-7]
    found = column(timeline(kernels))
    assert found.groups["attention"] == pytest.approx((4 * 388 - 4 - 13 - 2 - 2 - 19) / found.seen["attention"])
    assert found.unattributed_us == 0
    assert found.lines["moe", "up_gate_gemm", "fp8 grouped GEMM"] == 81


def test_mtp_runs_one_more_layer_and_the_count_says_so():
    assert column(timeline(LAYER * 62)).passes == pytest.approx(62 / 61)


def test_ranges_decide_before_names():
    layer_map = parse_map(
        "m",
        {
            "layers": 2,
            "modules": [
                {"group": "a", "name": "first", "ranges": ["first$"]},
                {"group": "a", "name": "second", "ranges": [r"layers\.\d+\.second$"], "kernels": ["gemm"]},
                {"group": "b", "name": "third", "kernels": ["gemm"]},
            ],
        },
        Path("m.toml"),
    )
    spans, now = [], 0
    for number in range(4):
        outer = f"layers.{number}"
        for name, us, ranges in (
            ("gemm", 5, (outer, f"{outer}.first")),
            ("odd", 1, (outer, f"{outer}.first")),
            ("gemm", 7, (outer, f"{outer}.second", "autocast")),
            ("copy", 2, (outer, f"{outer}.second")),
            ("gemm", 9, (outer,)),
        ):
            spans += timeline([(name, us)], start=now, ranges=ranges)
            now += us
    found = column(spans, layer_map)
    assert found.modules == {("a", "first"): 6, ("a", "second"): 9, ("b", "third"): 9}
    assert found.lines["a", "second", "copy"] == 2
    assert found.seen == {"a": 4, "b": 4}
    assert found.passes == 2


def test_order_of_rows_does_not_matter():
    spans = timeline(LAYER * 3, gap=2)
    shuffled = random.Random(1).sample(spans, len(spans))
    assert column(spans) == column(shuffled)


@pytest.mark.parametrize("seed", range(20))
def test_properties_of_noisy_profiles(seed):
    """Dropped, repeated and foreign kernels on overlapping streams: the sums stay consistent."""
    generator = random.Random(seed)
    spans = []
    for stream in range(3):
        kernels = [kernel for kernel in LAYER * 8 if generator.random() > 0.1]
        for _ in range(20):
            kernels.insert(generator.randrange(len(kernels)), ("foreign", generator.randrange(1, 9)))
        spans += timeline(kernels, stream=stream, start=generator.randrange(500), gap=generator.randrange(4))
    found = column(spans)
    total = sum(span.end_ns - span.start_ns for span in spans) / 1e3
    assert found.attributed_us + found.unattributed_us == pytest.approx(found.busy_us)
    assert found.attributed_us <= found.busy_us <= min(total, found.wall_us) + 1e-9
    attributed = sum(found.instances.values())
    assert attributed + sum(one.instances for one in found.leftovers) == len(spans)
    for module, us in found.modules.items():
        assert us <= sum(time for line, time in found.lines.items() if line[:2] == module) + 1e-9
    for group, us in found.groups.items():
        assert us <= sum(time for module, time in found.modules.items() if module[0] == group) + 1e-9
    assert found.overlapped_us >= 0
    assert found.layer_us <= sum(found.groups.values()) + 1e-9


# Profiles with sums only


def test_sums_alone_separate_what_names_separate():
    found = column(timeline(LAYER * 61), events=False)
    assert found.modules["attention", "self.attn_mqa"] == 255
    assert found.modules["moe", "dispatch"] == 187
    assert {one.name for one in found.inseparable} >= {"nvjet_hsh_64x8_64x16_4x1_v_bz_TNN"}
    gemm = next(one for one in found.inseparable if "fp8_gemm" in one.name)
    assert gemm.layer_us == 13 + 19 + 50 + 81 + 39 + 17 + 10
    assert found.attributed_us == 61 * 1150
    assert found.layer_us == pytest.approx(1150 - found.overlapped_us)
    assert found.passes == pytest.approx(1)


def test_sums_with_nothing_to_count_layers_by():
    with pytest.raises(DerbyError, match="take a profile with events"):
        column(timeline([(GEMM, 3)] * 4), events=False)


def test_a_summary_tells_passes_and_layers():
    """1536 act_and_mul and 1472 + 64 rotary embeddings are 48 passes of 32 layers; 3072 fused norms are two a layer."""
    (found,) = layer_table([ROOT / "profiles" / "sglang_llama_h200.csv"], "llama_flashinfer").columns
    assert (found.seen, found.passes) == ({"attention": 1536, "mlp": 1536}, 48)
    assert found.modules["mlp", "act_fn"] == pytest.approx(272_609 / 1536)
    assert found.unattributed_us / found.busy_us < 0.01
    assert not any("WARNING" in fact for fact in found.facts)


def test_a_doubtful_map_is_said_at_the_top():
    (found,) = layer_table([ROOT / "profiles" / "sglang_llama_h200.csv"], "deepseek_decode").columns
    assert found.facts[0].startswith("WARNING: 93% of its GPU work is in no module of deepseek_decode; ")
    assert "no kernel of attention/q_a_kv_a" in found.notes[-1]


@pytest.mark.parametrize("events", [True, False])
def test_another_models_profile(events):
    with pytest.raises(DerbyError, match="no kernel in it is in the layer map deepseek_decode; give another --map"):
        column(timeline([("ampere_sgemm", 4)] * 9), events=events)


# Several columns, maps, the command


def test_profiles_and_tables_side_by_side(monkeypatch):
    fast = [(name, us / 2) for name, us in LAYER]
    found = {
        "slow.sqlite": recorded(timeline(LAYER * 4), path="slow.sqlite"),
        "fast.sqlite": recorded(timeline(fast * 4), path="fast.sqlite"),
    }
    monkeypatch.setattr(layers_module, "open_profile", lambda path: found[str(path)])
    table = layer_table([Path("slow.sqlite"), Path("fast.sqlite"), D4])
    slow, fast, h800, b200 = table.columns
    assert [one.title for one in table.columns] == ["slow.sqlite", "fast.sqlite", "H800", "B200"]
    assert table.compare(fast, table.usual(), "layer").ratio == pytest.approx(0.5)
    assert not table.compare(fast, table.usual(), "layer").is_partial
    assert table.compare(h800, table.of(("moe",)), ("moe",)).ratio == 1
    assert table.compare(b200, table.of(("moe", "dispatch")), ("moe", "dispatch")).ratio == pytest.approx(48.212 / 187)
    output = text.render(layers_report(table), width=240)
    for column in ("slow.sqlite", "fast.sqlite"):
        assert f"{column}: unattributed" in output
    assert "H800: unattributed" not in output
    json.dumps(table.as_data(), allow_nan=False)


def test_a_profile_in_which_nothing_repeats_needs_a_map(monkeypatch):
    monkeypatch.setattr(layers_module, "open_profile", lambda path: recorded(timeline(LAYER)))
    with pytest.raises(DerbyError, match="no layer was found, nothing repeats in most of its kernels; give --map"):
        layer_table([Path("decode.sqlite")])


# Without a map


BLOCK = [
    ("void vllm::rms_norm_kernel<float>(int)", 4),
    ("nvjet_tst_64x8_64x16_4x1_v_bz_TNN", 13),
    ("void flash::flash_fwd_kernel<Traits>(Params)", 20),
    ("nvjet_tst_128x8_64x16_4x1_v_bz_TNN", 9),
    ("void vllm::rms_norm_kernel<float>(int)", 4),
    ("nvjet_tst_256x8_64x16_4x1_v_bz_TNN", 30),
    ("void vllm::act_and_mul_kernel<float>(int)", 5),
    ("nvjet_tst_192x8_64x16_4x1_v_bz_TNN", 15),
]
STEP = [("embedding", 7), *BLOCK * 20, ("sampling", 6)]


def test_a_layer_is_found_by_its_period(monkeypatch, tmp_path):
    """20 layers of 100 us, three steps; the layer begins with the norm before attention."""
    monkeypatch.setattr(layers_module, "open_profile", lambda path: recorded(timeline(STEP * 3)))
    table = layer_table([Path("decode.sqlite")])
    [found] = table.columns
    assert found.groups == pytest.approx({"attention": 46, "mlp": 54}) and found.layer_us == pytest.approx(100)
    assert found.seen == {"attention": 60, "mlp": 60} and found.passes == 3 and table.layers == 20
    assert [name for _, name in table.modules] == [
        *("norm", "GEMM", "attention", "GEMM 2"),
        *("norm", "GEMM", "activation", "GEMM 2"),
    ]
    assert "8 kernels that repeat 20 times in a row" in found.facts[0] and "--draft FILE writes it" in found.facts[0]
    draft = tmp_path / "draft.toml"
    draft.write_text(draft_of(recorded(timeline(STEP * 3))).text())
    [again] = layer_table([Path("decode.sqlite")], draft).columns
    assert again.modules == found.modules and not again.facts


def test_the_map_of_another_model_is_refused(monkeypatch, tmp_path):
    draft = tmp_path / "draft.toml"
    draft.write_text(draft_of(recorded(timeline(STEP * 3))).text().replace("layers = 20", "layers = 32"))
    monkeypatch.setattr(layers_module, "open_profile", lambda path: recorded(timeline(STEP * 3)))
    said = "does not fit: 20 layers repeat in a row, but the map draft has 32, which makes 1.88 passes"
    with pytest.raises(DerbyError, match=said):
        layer_table([Path("decode.sqlite")], draft)
    draft.write_text(draft.read_text().replace("layers = 32", "layers = 30"))
    [warned] = layer_table([Path("decode.sqlite")], draft).columns
    assert warned.facts == [
        "WARNING: 20 layers repeat in a row, but the map draft has 30: the map may be another model's"
    ]


def test_modules_have_the_names_of_the_trace():
    class Named(Recorded):
        def modules(self):
            kinds = ("Norm", "QKV", "Attention", "Out", "Norm", "Up", "Act", "Down")
            paths = []
            for _ in range(3):
                for layer in range(20):
                    paths += [(f"nn.Module: Block_{layer}", f"nn.Module: {kind}_{layer}") for kind in kinds]
            whole = [paths[160 * step : 160 * step + 160] for step in range(3)]
            return [path for each in whole for path in ((), *each, ())]

    found = draft_of(Named(Path("trace.json"), "trace", True, timeline(STEP * 3)))
    assert found.how.endswith("Block with 20 instances") and found.data["layers"] == 20
    names = [module["name"] for module in found.data["modules"]]
    assert names == ["Norm", "QKV", "Attention", "Out", "Norm", "Up", "Act", "Down"]


def test_prefill_and_decode_have_columns_of_their_own(monkeypatch):
    class Serving(Recorded):
        def range_instances(self, pattern=None):
            return [
                RangeInstance(0, 0, 2_012_000, "step[EXTEND bs=2 toks=99]"),
                RangeInstance(0, 2_013_000, 4_026_000, "step[DECODE bs=8]"),
                RangeInstance(0, 4_026_000, 6_100_000, "step[DECODE bs=9]"),
            ]

    spans = timeline(STEP * 3)
    monkeypatch.setattr(layers_module, "open_profile", lambda path: Serving(Path(path), "trace", True, spans))
    table = layer_table([Path("serve.json")])
    assert [(column.title, column.passes) for column in table.columns] == [
        ("serve.json prefill", 1),
        ("serve.json decode", 2),
    ]


def test_a_draft_whose_layers_run_on_from_step_to_step_says_what_to_do(monkeypatch):
    """Ten steps of three layers, nothing between them: the period alone makes thirty layers of them."""
    layer = [("qkv_gemm", 10), ("attn_fwd", 10), ("o_gemm", 10), ("silu", 10)]
    spans = timeline(layer * 30)
    end = spans[-1].end_ns
    steps = [RangeInstance(0, n * end // 10, (n + 1) * end // 10 - 1, f"step[DECODE bs={n}]") for n in range(1, 10)]
    profile = Recorded(Path("a.json"), "trace", True, spans)
    profile.range_instances = lambda pattern=None: [RangeInstance(0, 0, end // 10 - 1, "step[EXTEND bs=2]"), *steps]
    monkeypatch.setattr(layers_module, "open_profile", lambda path: profile)
    with pytest.raises(DerbyError, match="set layers in it, and give it with --map"):
        layer_table([Path("a.json")])


@pytest.mark.parametrize("name", shipped())
def test_shipped_maps_load(name):
    layer_map = load_map(name)
    assert layer_map.lines and layer_map.layers > 0


def bad_map(**changes):
    data = {"layers": 3, "modules": [{"group": "a", "name": "m", "kernels": ["x"]}], **changes}
    return {key: value for key, value in data.items() if value is not None}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bad_map(layers=0), "layers: must be the number"),
        (bad_map(modules=None), "modules: is missing"),
        (bad_map(modules=[{"group": "a", "name": "m"}]), "needs kernels or ranges"),
        (bad_map(modules=[{"group": "a", "name": "m", "kernels": ["("]}]), "no regular expression"),
        (bad_map(modules=[{"group": "a", "name": "m", "kernel": ["x"]}]), "unknown field 'kernel'"),
        (bad_map(groups={"b": {"layers": 1}}), "no module is of this group"),
        (bad_map(overlaps=[{"parts": ["a", "b"]}]), "no group or group/module 'b'"),
        (bad_map(overlaps=[{"parts": ["a", "a/m"]}]), "two parts of one overlap"),
    ],
)
def test_a_wrong_map_is_one_line(data, message):
    with pytest.raises(DerbyError, match=message):
        parse_map("m", data, Path("m.toml"))


def derby(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "kernelderby.cli", "profile", "layers", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def export(path, events, gpu="NVIDIA H800"):
    with Export(path, "2024", gpu) as out:
        for span in events:
            out.kernel(span.name, span.start_ns, span.end_ns, stream=span.stream)
    return path


def test_an_nsys_export_beside_the_published_table(tmp_path):
    path = export(tmp_path / "decode.sqlite", timeline(([*LAYER, ("lm_head", 7)]) * 61))
    table = layer_table([D4, path])
    profile = table.columns[2]
    assert (profile.gpu, profile.groups["attention"], profile.groups["moe"]) == ("NVIDIA H800", 388, 709)
    assert profile.layer_us == 1150  # one stream in order: nothing ran beside combine
    assert profile.passes == 1
    assert profile.leftovers[0].total_us == 61 * 7
    run = derby(D4, path, "--format", "markdown")
    assert run.returncode == 0, run.stderr
    assert "| attention | sum |  | 388.0 (11 of 12) | 269.3 (2 of 12) | 388.0 | 0.88 \\~ | " in run.stdout


def test_bars_are_as_long_as_the_layer():
    bars, _ = layer_bars(layer_table([D4]))
    assert sum(bars["H800"].values()) == pytest.approx(1116)
    assert bars["H800"]["moe combine"] == 394 - 34
    assert sum(bars["B200 (6 of 24)"].values()) == pytest.approx(657.789)


def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    run = derby(D4, "--plot", tmp_path / "layers.png")
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")


def test_the_command():
    run = derby(D4, "--json")
    assert run.returncode == 0, run.stderr
    h800 = json.loads(run.stdout)["columns"][0]
    assert {group["group"]: group["layer_us"] for group in h800["groups"]}["attention"] == 388
    run = derby(D4, "--map", "qwen")
    assert (run.returncode, run.stderr.count("\n")) == (1, 1)
    assert "no layer map 'qwen'; there are deepseek_decode" in run.stderr

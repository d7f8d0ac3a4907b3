"""Our own recordings: the harness's launches belong to the harness, unknown names to the recorded solution."""

from pathlib import Path

from kernelderby.profile.kernels.summary import summarise
from kernelderby.profile.spans import Profile, RangeInstance, Span, SpanKind, sum_spans

FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>(int)"


class Recording(Profile):
    has_events = True

    def __init__(self, names):
        super().__init__(Path("made.sqlite"), "made by hand")
        self._spans = [
            Span(SpanKind.KERNEL, name, 100 * place, 100 * place + 10, ranges=ranges)
            for place, (name, ranges) in enumerate(names)
        ]

    def spans(self):
        return iter(self._spans)

    def sums(self):
        return sum_spans(self._spans)

    def range_instances(self, pattern=None):
        names = {name for span in self._spans for name in span.ranges}
        return [RangeInstance(1, 0, 1, name) for name in names if pattern is None or pattern.search(name)]


def test_the_harness_and_the_solutions_own_kernels():
    solution = ("solution:derby_rms_norm num_tokens=5 1234", "invocation 0")
    table = summarise(
        Recording(
            [
                (FILL, ("harness: flush L2",)),
                (FILL, solution),
                ("rms_norm_rows_kernel_of_mine", solution),
                ("nvjet_tst_128x64_64x6_2x1_v_bz_TNT", solution),
                ("rms_norm_rows_kernel_of_mine", ()),
            ]
        )
    )
    assert sorted((row.library, row.name[:8], row.instances) for row in table.rows) == [
        ("PyTorch ATen", "void at:", 1),
        ("cuBLAS", "nvjet_ts", 1),
        ("harness", "void at:", 1),
        ("solution derby_rms_norm", "rms_norm", 1),
        ("unknown", "rms_norm", 1),
    ]
    assert sum(total.total_ns for total in table.by_library) == table.total_ns == 50


def test_a_strangers_profile_is_as_before():
    table = summarise(Recording([(FILL, ("step 0",)), ("k_of_nobody", ("solution:x",))]))
    assert {row.library for row in table.rows} == {"PyTorch ATen", "unknown"}

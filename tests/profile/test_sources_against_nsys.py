"""NVIDIA's own `nsys stats` on the same exports, where it is installed: it needs no GPU, only the SQLite file.

Sums must agree to the nanosecond; median and deviation to the tenth that nsys prints. Its output, in each of its
formats, must read as the same sums again.
"""

import os
import random
import shutil
import subprocess
from glob import glob

import pytest
from make_nsys import Export, standard

from kernelderby.errors import DerbyError
from kernelderby.profile.sources import open_profile
from kernelderby.profile.spans import SpanKind

NSYS = shutil.which("nsys") or next(
    iter(
        sorted(
            glob("/opt/nvidia/nsight-systems*/*/bin/nsys")
            + glob("/opt/nvidia/nsight-systems*/bin/nsys")
            + glob("/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys"),
            reverse=True,
        )
    ),
    None,
)
pytestmark = pytest.mark.skipif(NSYS is None, reason="nsys is not installed")
REPORTS = ("cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum", "cuda_api_sum")


def stats(path, form):
    command = [NSYS, "stats", "--report", ",".join(REPORTS), "--format", form, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    if "No module named" in done.stderr:  # a copy of nsys without its own Python modules
        pytest.skip(f"{NSYS} stats is not whole: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def large(path):
    """3000 kernels of 40 names, 500 copies of 3 kinds, calls of 5 names."""
    generator = random.Random(1)
    with Export(path, "2024") as export:
        for number in range(3000):
            start = generator.randrange(10**9)
            export.kernel(
                f'void kernel_{generator.randrange(40)}<int, "x">(T1 *, int)',
                start,
                start + generator.randrange(1, 10 ** generator.randrange(2, 8)),
                number,
            )
            export.call(f"cudaCall{number % 5}_v{generator.choice((3020, 7000, 10000))}", start, start + 10, number)
        for _ in range(500):
            start = generator.randrange(10**9)
            export.memcpy(generator.choice((1, 2, 8)), generator.randrange(1, 10**9), start, start + 77)
        export.memset(12_345_678, 5, 9)
    return path


@pytest.fixture(params=["standard 2022.2", "standard 2024", "standard 2025.5", "large"])
def export(request, tmp_path):
    made, _, generation = request.param.partition(" ")
    return standard(tmp_path / "a.sqlite", generation) if made == "standard" else large(tmp_path / "a.sqlite")


@pytest.mark.parametrize("form", ["csv", "tsv", "column", "json"])
def test_sums_agree(export, tmp_path, form):
    ours = open_profile(export)
    summary = tmp_path / "stats"
    summary.write_text(stats(export, form), encoding="utf-8")
    theirs = open_profile(summary)
    memory = any(each.kind != SpanKind.KERNEL for each in theirs.sums())  # nsys needs the enum table, 2022.2 has none
    expected = {(each.kind, each.name): each for each in ours.sums() if memory or each.kind == SpanKind.KERNEL}
    found = {(each.kind, each.name): each for each in theirs.sums()}
    assert found.keys() == expected.keys()
    for key, our in expected.items():
        their = found[key]
        assert (their.instances, their.total_ns, their.min_ns, their.max_ns) == (
            our.instances,
            our.total_ns,
            our.min_ns,
            our.max_ns,
        ), key
        assert their.median_ns == pytest.approx(our.median_ns, abs=0.051), key
        assert their.stddev_ns == pytest.approx(our.stddev_ns, abs=0.051), key
        if our.bytes is not None:
            assert their.bytes == pytest.approx(our.bytes, abs=501), key  # printed in MB with three places

    def calls(profile):
        return sorted((each.name, each.calls, each.total_ns) for each in profile.api_sums())

    assert calls(theirs) == calls(ours)


def test_a_report_is_exported_by_the_nsys_that_is_there(tmp_path):
    """The profiled program uses no GPU, so none is needed: the export is made, read, and found empty under the
    report's own name."""
    report = tmp_path / "true.nsys-rep"
    words = ["--trace", "nvtx", "--sample", "none", "--cpuctxsw", "none", "--backtrace", "none"]
    command = [NSYS, "profile", *words, "--output", str(report.with_suffix("")), "true"]
    subprocess.run(command, capture_output=True, timeout=120, env=dict(os.environ, TMPDIR=str(tmp_path)))
    if not report.is_file():
        pytest.skip(f"{NSYS} makes no report")
    with pytest.raises(DerbyError, match=r"true\.nsys-rep: no kernels, copies or memsets in it"):
        open_profile(report)
    assert not report.with_suffix(".sqlite").exists()

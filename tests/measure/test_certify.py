"""`derby certify`: what counts as the same machine code, and how a certificate that does not hold is found."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import nvcc
import pytest
from msgspec.structs import replace as changed_row

from kernelderby.catalog import Catalog
from kernelderby.catalog.code import running_parts
from kernelderby.catalog.pack import problems
from kernelderby.catalog.same_code import certificate_files, read_certificates
from kernelderby.measure.certify import build, certify, python
from kernelderby.measure.certify.assembly import launches
from kernelderby.measure.certify.build import library_files
from kernelderby.measure.run.rows import settled_keys
from kernelderby.report.certified import certified_lines
from kernelderby.roofline import selection
from kernelderby.rows.measurement import Timed

D = "scale_rows_h4"
FOLDER = f"solutions/alice/toy/{D}/toy_cuda"
NVCC = shutil.which("nvcc") or ("/usr/local/cuda/bin/nvcc" if os.path.exists("/usr/local/cuda/bin/nvcc") else None)
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc")
KERNEL = """// Doubles.
#include <cuda_runtime.h>
namespace {
__constant__ float factors[2] = {2.0f, 3.0f};
__global__ void twice(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= factors[n & 1];
}
int blocks_of(int n) { return (n + 127) / 128; }
}  // namespace
extern "C" int toy_run(float* x, int n) {
  twice<<<blocks_of(n), 128>>>(x, n);
  return cudaGetLastError();
}
"""
MAIN = '''"""A library that nothing calls."""
import subprocess
from dataclasses import replace

HEADERS = ["a.cuh"]


def build(folder):
    """Compiles."""
    folder.mkdir()
    made = folder / "toy.so"
    command = ["nvcc", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "--shared", "-Xcompiler", "-fPIC", "-o"]
    subprocess.run([*command, str(made), str(__import__("pathlib").Path(__file__).parent / "kernel.cu")], check=True)
    return made


def run(x, scale):
    return x * scale[:, None]
'''
TOML = f"""name = "toy_cuda"
definition = "{D}"
author = "alice"
description = "CUDA."
language = "python"
entry_point = "main.py::run"
destination_passing_style = false
target_hardware = ["NVIDIA H200"]
"""


@pytest.fixture
def repository(small_set, monkeypatch):
    """The small set with a CUDA solution, committed."""
    if NVCC:
        monkeypatch.setenv("PATH", f"{os.path.dirname(NVCC)}:{os.environ['PATH']}")
    folder = small_set / FOLDER
    folder.mkdir()
    for name, text in (("kernel.cu", KERNEL), ("main.py", MAIN), ("solution.toml", TOML), ("a.cuh", "")):
        (folder / name).write_text(text)
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"],
    ):
        subprocess.run(["git", "-C", small_set, *command], check=True)
    return small_set


def change(root, file, old, new):
    path = root / FOLDER / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def certificate(root):
    return root / "certificates" / "machine_code" / "toy_cuda.json"


@needs_nvcc
def test_renamed_and_moved_code_is_certified_and_a_forged_certificate_found(derby, repository):
    before = Catalog.open(repository).solution("toy_cuda")
    change(repository, "kernel.cu", "twice", "doubled")
    change(repository, "kernel.cu", "int blocks_of(int n) { return (n + 127) / 128; }", '#include "blocks.cuh"')
    (repository / FOLDER / "blocks.cuh").write_text("static int blocks(int n) { return (n + 127) / 128; }\n")
    change(repository, "kernel.cu", "blocks_of", "blocks")
    change(repository, "main.py", '"a.cuh"', '"a.cuh", "blocks.cuh"')
    assert not Catalog.open(repository).solution("toy_cuda").has_code(before.hash)

    code, out, _ = derby("certify", "--root", repository)
    assert (code, out.count("\n")) == (0, 1) and "toy_cuda: the same machine code (1 kernel)" in out
    now = Catalog.open(repository).solution("toy_cuda")
    assert now.has_code(before.hash) and now.has_code(before.text_hash) and not now.has_code("0" * 16)
    assert problems(repository) == []
    assert "nothing to certify: certified already" in derby("certify", "toy_cuda", "--root", repository)[1]
    assert derby("certify", "--check", "--root", repository)[0] == 0

    told = json.loads(certificate(repository).read_text())
    honest = json.dumps(told)
    for kernel in told["certificates"][0]["code"]["kernels"]:
        told["certificates"][0]["code"]["kernels"][kernel] = "0" * 16
    certificate(repository).write_text(json.dumps(told))
    code, out, _ = derby("certify", "--check", "--root", repository)
    assert code == 1 and "toy_cuda.json: certificates[0]: after: kernel" in out and "other instructions; make it" in out

    told = json.loads(honest)
    told["certificates"][0]["before"]["hash"] = "1" * 16  # of a version that gave something else
    certificate(repository).write_text(json.dumps(told))
    out = derby("certify", "--check", "--root", repository)[1]
    assert f"before.hash: at {told['certificates'][0]['before']['revision'][:10]} it is {before.hash}" in out


LIBRARY_CLASS = """class CudaLibrary:
    def __init__(self, main, name, source, parameters):
        self.source = source
"""
OF_A_LIBRARY = """from .cuda_library import CudaLibrary

HEADERS = ["a.cuh"]
library = CudaLibrary(__file__, "toy", ["kernel.cu", *HEADERS], [])


def run(x, scale):
    return x * scale[:, None]
"""


def test_where_only_the_names_of_headers_go_there_is_nothing_to_build(derby, repository, monkeypatch):
    (repository / FOLDER / "main.py").write_text(OF_A_LIBRARY)
    (repository / FOLDER / "cuda_library.py").write_text(LIBRARY_CLASS)
    for command in (["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "two"]):
        subprocess.run(["git", "-C", repository, *command], check=True)
    before = Catalog.open(repository).solution("toy_cuda")
    monkeypatch.setenv("PATH", os.path.dirname(shutil.which("git")))
    monkeypatch.setattr(build, "_compiler", lambda: pytest.fail("built"))
    change(repository, "main.py", 'HEADERS = ["a.cuh"]\n', "")
    change(repository, "main.py", '["kernel.cu", *HEADERS]', '"kernel.cu"')
    code, out, _ = derby("certify", "--root", repository)
    assert code == 0 and "toy_cuda: the same machine code (nothing to build)" in out
    assert Catalog.open(repository).solution("toy_cuda").has_code(before.hash)
    code, out, _ = derby("certify", "--check", "--root", repository)
    assert code == 0 and "certificates[0]: nothing to build, the same Python" in out

    told = json.loads(certificate(repository).read_text())
    told["certificates"][0]["code"]["python"] = "0" * 16
    certificate(repository).write_text(json.dumps(told))
    code, out, _ = derby("certify", "--check", "--root", repository)
    assert code == 1 and "or the Python, are not the same; make it again" in out


def test_digests_of_the_earlier_form_can_be_made_again():
    """Certificates of then hold them: labels that the compiler numbers counted in them by their numbers."""
    other = ASSEMBLY.replace(".LFB2", ".LFB31")
    assert launches(ASSEMBLY, {}, 4) != launches(other, {}, 4)
    assert launches(ASSEMBLY, {}, 4) != launches(ASSEMBLY, {}) == launches(other, {})


@needs_nvcc
@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("kernel.cu", "x[i] *=", "x[i] +=", "kernel _ZN12_GLOBAL__N_15twiceEPfi: other instructions"),
        ("kernel.cu", "{2.0f, 3.0f}", "{2.0f, 4.0f}", "variables on the GPU differ"),
        ("kernel.cu", "+ 127", "+ 63", "host code of toy_run differs"),
        ("main.py", "x * scale", "scale * x", "Python code differs"),
    ],
)
def test_what_runs_differently_is_not_certified(derby, repository, file, old, new, told):
    change(repository, file, old, new)
    code, out, _ = derby("certify", "--root", repository)
    assert code == 1 and told in out and not certificate(repository).exists()
    assert "benchmarks/compare_sass.py toy_cuda" in out


def hostile(place):
    """Writes there, into a file that one of the user's secrets names, and ends its process."""
    return f"""
import os, pathlib
for where in ({str(place)!r}, os.environ.get("MY_TOKEN", "unknown") + "-token"):
    try:
        pathlib.Path(where).write_text("x")
    except OSError:
        pass
os._exit(3)
"""


def test_code_of_a_solution_is_built_behind_the_fences(derby, repository, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", str(tmp_path / "seen"))
    monkeypatch.setattr(build, "_compiler", lambda: ("nvcc", "nvcc 0"))
    (repository / FOLDER / "main.py").write_text(hostile(tmp_path / "escaped"))
    before = set(tmp_path.iterdir())
    code, out, _ = derby("certify", "--root", repository)
    assert code == 1 and "toy_cuda: its code was ended (crashed: the process exited with code 3)" in out
    catalog, told = Catalog.open(repository), []
    found = library_files(catalog, [catalog.solution("toy_cuda")], "90a", told.append)
    assert "the process exited with code 3" in found["toy_cuda"] and told == ["toy_cuda"]
    assert set(tmp_path.iterdir()) == before


def test_libraries_for_a_package_are_files_of_the_cache_with_plain_names(repository, tmp_path):
    """A name becomes a part of a path in the wheel."""
    main = repository / FOLDER / "main.py"
    text = f"""import contextlib
from pathlib import Path

class CudaLibrary:
    name = "toy"

    def build(self, architecture):
        made = Path("MADE")
        with contextlib.suppress(OSError):
            made.write_text(architecture)
        return made

made = CudaLibrary()
{MAIN}"""

    def files(name="toy", made=None):
        made = made or '" + __import__("os").environ["XDG_CACHE_HOME"] + "/toy.so'
        main.write_text(text.replace('"toy"', f'"{name}"').replace("MADE", str(made)))
        catalog = Catalog.open(repository)
        return library_files(catalog, [catalog.solution("toy_cuda")], "90a", lambda name: None)["toy_cuda"]

    assert files() == {"toy": b"90a"}
    assert "a library is called '../toy'; name it by letters" in files("../toy")
    other = tmp_path / "other"
    other.write_text("a file that only the user reads")
    assert "toy: was built at " in files(made=other)


@needs_nvcc
def test_other_host_code_keeps_graph_times_alone(derby, repository):
    before = Catalog.open(repository).solution("toy_cuda")
    change(repository, "kernel.cu", "cudaGetLastError", "cudaPeekAtLastError")
    code, out, _ = derby("certify", "--root", repository, "--host-change", "short")
    assert code == 1 and not certificate(repository).exists()
    why = "cudaPeekAtLastError instead of cudaGetLastError; the launch is the same."
    code, out, _ = derby("certify", "--root", repository, "--host-change", why)
    assert code == 0 and "the same kernels, other host code (1 kernel)" in out
    now = Catalog.open(repository).solution("toy_cuda")
    assert now.has_kernels(before.hash) and not now.has_code(before.hash) and problems(repository) == []
    assert derby("certify", "--check", "--root", repository)[0] == 0

    row = changed_row(
        Catalog.open(repository).traces(D)[0],
        solution="toy_cuda",
        solution_hash=before.hash,
        times={"graph": Timed(3.0, ((3.0,),)), "eager": Timed(4.0, ((4.0,),))},
        latency_us=4.0,
    )
    (chosen,) = selection.newest_rows([row], {"toy_cuda": now}).values()
    assert chosen.host_changed and not chosen.outdated
    assert selection.latency_us(chosen.measurement, "graph") == 3.0
    assert selection.latency_us(chosen.measurement, "eager") is None and chosen.measurement.host_us is None
    (chosen,) = selection.newest_rows([changed_row(row, times={})], {"toy_cuda": now}).values()
    assert chosen.outdated
    assert settled_keys([row], [now]) == set()

    told = json.loads(certificate(repository).read_text())
    told["certificates"][0]["host_change"]["host"]["toy_run"] = "0" * 16
    certificate(repository).write_text(json.dumps(told))
    code, out, _ = derby("certify", "--check", "--root", repository)
    assert code == 1 and "certificates[0]: before: host code of toy_run differs" in out


def write(root, *certificates):
    certificate(root).parent.mkdir(parents=True)
    certificate(root).write_text(json.dumps({"certificates": certificates}))


def entry(before, after, kernel="a" * 16):
    code = {"architecture": "sm_90a", "compiler": "c", "kernels": {"k": kernel}, "data": [], "host": {}}
    return {
        "before": {"hash": before, "text_hash": before, "revision": "abc"},
        "after": {"hash": after, "text_hash": after},
        "code": {**code, "python": "b" * 16},
        "date": "2026-11-23",
    }


def test_a_chain_leads_to_the_present_code_and_a_broken_one_is_told(repository):
    now = Catalog.open(repository).solution("toy_cuda").hash
    one, two = "1" * 16, "2" * 16
    write(repository, entry(one, two), entry(two, now))
    catalog = Catalog.open(repository)
    assert catalog.solution("toy_cuda").has_code(one) and catalog.warnings == [] and problems(repository) == []


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (
            lambda now: [entry("1" * 16, "2" * 16)],
            "certificates[0].after.hash: 2222222222222222 is not the present code",
        ),
        (
            lambda now: [entry("1" * 16, "2" * 16, "c" * 16), entry("2" * 16, now)],
            "certificates[1].code: is not that of certificates[0], though both are of 2222222222222222; remove them",
        ),
        (lambda now: [entry("no hash", now)], "before.hash: must be a hash of 16 hexadecimal digits"),
    ],
)
def test_a_certificate_that_cannot_hold_is_told_in_one_line(repository, spoil, told):
    write(repository, *spoil(Catalog.open(repository).solution("toy_cuda").hash))
    (line,) = problems(repository)
    assert "machine_code/toy_cuda.json: " in line and told in line and "\n" not in line
    assert not Catalog.open(repository).solution("toy_cuda").has_code("1" * 16)


def test_a_revision_that_is_none_is_named(repository, derby):
    code, _, err = derby("certify", "--since", "nowhere", "--root", repository)
    assert code == 1 and err.count("\n") == 1 and "has no revision 'nowhere'; give a branch, a tag or a commit" in err


def test_a_certificate_of_no_solution_is_told(repository):
    write(repository)
    certificate(repository).rename(certificate(repository).with_name("gone.json"))
    (line,) = problems(repository)
    assert "gone.json: gone is no solution of the set; remove the file" in line


ASSEMBLY = """	.text
	.type	_ZL4nearv, @function
_ZL4nearv:
.LFB1:
	.cfi_startproc
	movl	$7, %eax
	jmp	.L3
.L3:
	leaq	.LC0(%rip), %rdi
	ret
	.size	_ZL4nearv, .-_ZL4nearv
	.section	.rodata.str1.1
.LC0:
	.string	"text"
	.text
	.globl	run
	.type	run, @function
run:
.LFB2:
.LEHB0:
	call	_ZL4nearv
.LEHE0:
	leaq	_Z6kernelv(%rip), %rdi
	call	cudaLaunchKernel@PLT
	ret
.LLSDA2:
	.uleb128 .LEHB0-.LFB2
	.uleb128 .LEHE0-.LEHB0
	.size	run, .-run
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("_ZL4nearv", "_ZL5otherv", True),
        (".LC0", ".LC7", True),
        (".L3", ".L8", True),
        (".LFB2", ".LFB31", True),
        ("LSDA2", "LSDA31", True),
        ("EHB0", "EHB4", True),
        ("call	_ZL4nearv\n.LEHE0:", ".LEHE0:\n	call	_ZL4nearv", False),
        (".LEHB0-.LFB2", ".LEHE0-.LFB2", False),
        (".cfi_startproc", ".cfi_endproc", True),
        ("$7", "$8", False),
        ('"text"', '"texts"', False),
        ("cudaLaunchKernel@PLT", "cudaLaunchKernelExC@PLT", False),
    ],
)
def test_the_digest_of_host_code_follows_what_a_function_reaches(old, new, same):
    kernels = {"_Z6kernelv": "a" * 16}
    assert (launches(ASSEMBLY.replace(old, new), kernels) == launches(ASSEMBLY, kernels)) is same


def test_the_digest_of_host_code_follows_the_kernel_and_not_its_name():
    renamed = ASSEMBLY.replace("_Z6kernelv", "_Z4otherv")
    assert launches(renamed, {"_Z4otherv": "a" * 16}) == launches(ASSEMBLY, {"_Z6kernelv": "a" * 16})
    assert launches(ASSEMBLY, {"_Z6kernelv": "b" * 16}) != launches(ASSEMBLY, {"_Z6kernelv": "a" * 16})


LIBRARY = """
import ctypes, os, re
POINTER, INT = ctypes.c_void_p, ctypes.c_int
INCLUDE = re.compile("include")

def find_nvcc():
    return os.environ["NVCC"]

class CudaLibrary:
    def __init__(self, main, name, sources, parameters):
        self.folder, self.name, self.sources = main, name, sources
        self.parameters, self.functions = [*parameters, POINTER], {}

    def build(self, architecture):
        return find_nvcc() + INCLUDE.pattern + self.folder

    def load(self, path):
        return ctypes.CDLL(path, self.parameters)

    def __call__(self, *arguments):
        return self.functions[self.name](*arguments, self.build("90a"), INT)
"""
USES = 'library = CudaLibrary(__file__, "toy", ["kernel.cu", "a.cuh"], [INT])'


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('os.environ["NVCC"]', '"nvcc"', True),
        ("self.folder, self.name, self.sources = main, name, sources", "self.folder, self.name = main, name", True),
        ('["kernel.cu", "a.cuh"]', '"kernel.cu"', True),
        ('INCLUDE = re.compile("include")', 'INCLUDE = re.compile("[ ]*include")', True),
        ("[*parameters, POINTER]", "[*parameters]", False),
        ("self.name](*arguments", "self.name](self", False),
        ("ctypes.c_int", "ctypes.c_long", False),
        ('"toy"', '"other"', False),
        ("[INT])", "[POINTER])", False),
        ('"kernel.cu"', '"other.cu"', False),
    ],
)
def test_of_python_what_makes_the_library_does_not_count(old, new, same):
    text = LIBRARY + USES
    assert old in text and (python._form(text.replace(old, new)) == python._form(text)) is same


def test_assembly_that_exports_nothing_is_refused():
    with pytest.raises(ValueError, match="exports no function"):
        launches(ASSEMBLY.replace(".globl", ".local"), {})


@needs_nvcc
def test_a_committed_certificate_is_what_a_build_gives(checkout):
    """The two with the shortest sources, one of machine code and one of launches: `derby certify --check` builds
    all."""
    solutions = Catalog.open(checkout).solutions
    kinds, certificates = {}, {path.stem: path for path in certificate_files(checkout)}
    for path in certificates.values():
        kinds.setdefault(bool(read_certificates(path)[-1].code.kernels), []).append(path)
    if not kinds:
        pytest.skip("the set has no certificate")
    names = [min(files, key=lambda path: len(str(solutions[path.stem].sources))).stem for files in kinds.values()]
    builds = running_parts({path.name: path.read_text() for path in Path(certify.__file__).parent.glob("*.py")})
    facts = [[name, solutions[name].hash, certificates[name].read_text()] for name in names]

    def differing():
        return [certified_lines(found) for found in certify.check(checkout, names) if not found.is_same]

    assert nvcc.recalled([nvcc.release(NVCC), builds, facts], differing) == []

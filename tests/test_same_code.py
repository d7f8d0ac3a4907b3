"""A row is bound to the code that ran: comments and layout do not outdate it, a token does."""

import json
import runpy
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed_row

from kernelderby.catalog import Catalog
from kernelderby.catalog.code import cpp_form, python_form, running_parts
from kernelderby.catalog.pack import problems
from kernelderby.catalog.same_code import groups, texts_path
from kernelderby.roofline import selection

D = "scale_rows_h4"
CHECKOUT = Path(__file__).parent.parent
PYTHON = '''"""Head."""
import torch

SOURCE = """
// CUDA in a string
"""


def run(x, *, factor=2):
    """What it does."""
    y = x * factor  # twice
    return (y)
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Head."""\n', ""),
        ('    """What it does."""\n', ""),
        ("  # twice", "    # more"),
        ("return (y)", "return y"),
        ('"""Head."""', '\ufeff"""Head."""'),
        ("x, *, factor=2", "\n    x,\n    *,\n    factor=2,\n"),
    ],
)
def test_python_comments_docstrings_and_layout_do_not_count(old, new):
    assert old in PYTHON and python_form(PYTHON.replace(old, new)) == python_form(PYTHON)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * factor", "x + factor"),
        ("factor=2", "factor=2.0"),
        ("CUDA in a string", "another string"),
        ("    return (y)", "return (y)"),
        ("return (y)", '"""No docstring: it is not the first."""\n    return y'),
        ("import torch", "import torch as torch"),
    ],
)
def test_a_python_statement_or_constant_counts(old, new):
    assert old in PYTHON and python_form(PYTHON.replace(old, new)) != python_form(PYTHON)


@pytest.mark.parametrize(("begin", "unit"), [('"', '\\"'), ("'", "\\'"), ("", "/* "), ("", 'R"('), ("", 'R"abc(x ')])
def test_a_text_full_of_ends_that_are_missing_takes_seconds(begin, unit):
    """Its author would keep a run from its rows for hours."""
    text, start = begin + unit * 200_000, time.process_time()
    assert cpp_form(text) == text and time.process_time() - start < 30


def test_sources_of_megabytes_count_whole():
    """Their syntax tree would fill the memory of the process that judges."""
    large = {"a.py": "x = [" + "0, " * (1 << 20) + "]\n", "b.py": "y = 1  # one\n" * (1 << 17)}
    assert running_parts(large) == sorted(large.items())


def test_docstrings_count_where_a_file_reads_them():
    reads = PYTHON + "kernel = compile(run.__doc__)\n"
    assert python_form(reads.replace("What it does", "Other")) != python_form(reads)


@pytest.mark.parametrize(("first", "counts"), [("utf-7", True), ("UTF_8", False), ("raw_unicode_escape", True)])
def test_a_comment_that_its_encoding_makes_code_counts(tmp_path, first, counts):
    texts = [f"#!python\n# -*- coding: {first} -*-\nfound = 1\n# fine{end}\n" for end in ("", "+AAo-found = 2")]
    assert (python_form(texts[0]) != python_form(texts[1])) == counts
    (tmp_path / "main.py").write_text(texts[1])
    assert runpy.run_path(str(tmp_path / "main.py"))["found"] == (2 if first == "utf-7" else 1)


CUDA = r"""#include "common.cuh"  // what all share
#define SQUARE(x) ((x) * (x))
#define EMPTY (x)
#define LONG(x) \
    x
/* A comment "with a quote */
__global__ void kernel(float* out, int n) {
  int i = threadIdx.x;  // and an apostrophe's trap
  char c = '"';
  const char* text = "// no comment \" here";
  const char* raw = R"ptx(mov.u32 %r1, 1; // kept "as it is")ptx";
  unsigned big = 1'000'000, hex = 0x1p-3;
  if (i < n) out[i] = 2.0f * i + +n;
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  // what all share", ""),
        ('/* A comment "with a quote */\n', "\n\n"),
        ("  // and an apostrophe's trap", " /* another's */"),
        ("if (i < n) out[i]", "if (i<n)\n    out[ i ]"),
        ("(x) \\\n    x", "(x)  x"),
        ("#define SQUARE", "#  define  SQUARE"),
        ("__global__ void", "__global__\n  void"),
    ],
)
def test_cuda_comments_and_layout_do_not_count(old, new):
    assert old in CUDA and cpp_form(CUDA.replace(old, new)) == cpp_form(CUDA)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2.0f", "2.0"),
        ("i < n", "i <= n"),
        ("+ +n", "++n"),
        ("SQUARE(x) (", "SQUARE (x) ("),
        ("EMPTY (x)", "EMPTY(x)"),
        ("EMPTY (x)\n", "EMPTY (x) "),
        ("// no comment", "//no comment"),
        ('// kept "as', '//kept "as'),
        ("1'000'000", "1'000'001"),
        ("'\"'", "'`'"),
        ('"common.cuh"', '"common .cuh"'),
        ("  const char* text", "  //\\\n  const char* text"),
    ],
)
def test_a_cuda_token_counts(old, new):
    assert old in CUDA and cpp_form(CUDA.replace(old, new)) != cpp_form(CUDA)


@pytest.mark.parametrize(
    "text",
    [
        "// remark\r v = @;\n",
        'const char* s = "abc\\ \n// @ ";\n',
        'const char* s = "abc\\\f\n// @ ";\n',
        "auto s = STRING(' // @\n);\n",
        "DROP(' /* \n) v = @; /* */\n",
        "DROP(1'a/*') v = @; DROP('*/1'x)\n",
        "/* remark *\\\n/ v = @; /* */\n",
        "// ??/\n /*\n v = @; // */\n",
        "%:include <//h@.h>\n",
        "#/**/include <//h@.h>\n",
        "#include/**/<//h@.h>\n",
        "#\\\ninclude <//h@.h>\n",
        "#in\\\nclude <//h@.h>\n",
        "#import <//h@.h>\n",
        "import <//h@.h>;\n",
        "#if __has_include(<//h@.h>)\n",
        "auto s = STRING(a\u00a0@b);\n",
    ],
)
def test_what_a_compiler_reads_otherwise_counts(text):
    """What looks like a comment is code, or part of a string or of a header's name."""
    assert cpp_form(text.replace("@", "1")) != cpp_form(text.replace("@", "2"))
    assert cpp_form(text.replace("@", " "), True) != cpp_form(text.replace("@", ""), True)


@pytest.mark.parametrize(
    "define", ["/* */ #define STRING(x) #x", "#define STRING(x) /*\n*/ #x", "#/**/define STRING(x) #x"]
)
def test_a_macro_that_makes_strings_is_found_in_every_form(define):
    macros = {"a.cuh": define + "\n", "b.cu": "char* a = STRING(x+y);"}
    assert running_parts(macros) != running_parts(macros | {"b.cu": "char* a = STRING(x + y);"})


def test_white_space_counts_where_tokens_become_strings():
    macros = {"a.cuh": "#define STRING(x) #x\n", "b.cu": "char* a = STRING(x+y);"}
    assert running_parts(macros) != running_parts(macros | {"b.cu": "char* a = STRING(x + y);"})
    assert running_parts(macros) == running_parts(macros | {"b.cu": "char* a = STRING(x+y);  // sum"})
    joins = macros | {"a.cuh": "#define STRING(x) x##_\n"}
    assert running_parts(joins) == running_parts(joins | {"b.cu": "char* a = STRING(x + y);"})


def test_a_chain_of_equals_is_one_group():
    assert groups([("a", "b"), ("c", "d"), ("e", "f"), ("d", "a")]) == (frozenset("ef"), frozenset("abcd"))


def test_a_comment_keeps_a_row_and_a_token_outdates_it(small_set):
    before = Catalog.open(small_set)
    rows = [changed_row(row, solution_hash=before.solution(row.solution).hash) for row in before.traces(D)]
    main = small_set / before.solution("toy_fast").folder.relative_to(small_set) / "main.py"
    text = main.read_text()
    for added, outdated in (("\n# a comment\n", False), ("\nOTHER = 1\n", True)):
        main.write_text(text + added)
        chosen = selection.newest_rows(rows, Catalog.open(small_set).solutions)
        assert {each.outdated for (name, _), each in chosen.items() if name == "toy_fast"} == {outdated}
        assert {each.outdated for (name, _), each in chosen.items() if name != "toy_fast"} == {False}


def test_rows_with_a_hash_of_the_text_count_through_the_table(small_set):
    solution = Catalog.open(small_set).solution("toy_fast")
    assert not solution.has_code(solution.text_hash)
    write_texts(small_set, {"toy_fast": {solution.text_hash: solution.hash, "0" * 16: "1" * 16}})
    known = Catalog.open(small_set).solution("toy_fast")
    assert known.has_code(solution.text_hash) and not known.has_code("0" * 16)
    changed = replace(known, sources={"main.py": "def run(): ..."})
    assert changed.has_code(changed.hash) and not changed.has_code(solution.text_hash)


def write_texts(root, hashes, commit="abc"):
    texts_path(root).parent.mkdir(exist_ok=True)
    texts_path(root).write_text(json.dumps({"commit": commit, "hashes": hashes}))


@pytest.mark.parametrize(
    ("hashes", "told"),
    [
        ({"toy_fast": {"0" * 16: "no hash"}}, "texts.json: hashes.toy_fast.0000000000000000: must be"),
        ({"toy_gone": {"0" * 16: "1" * 16}}, "texts.json: hashes.toy_gone: is no solution of the set"),
    ],
)
def test_a_broken_table_is_told_in_one_line(small_set, hashes, told):
    write_texts(small_set, hashes)
    (line,) = [line for line in problems(small_set) if "texts.json" in line]
    assert told in line and line.count("\n") == 0
    Catalog.open(small_set).solutions  # noqa: B018 - the set can be read


def test_the_table_is_what_its_commit_holds(tmp_path):
    """Made again from git, where the checkout has its history."""
    table = json.loads(texts_path(CHECKOUT).read_text())
    git = ["git", "-C", str(CHECKOUT)]
    if subprocess.run([*git, "cat-file", "-e", table["commit"]], capture_output=True).returncode:
        pytest.skip("the commit of certificates/texts.json is not in this clone")
    archive = subprocess.run(
        [*git, "archive", table["commit"], "definitions", "solutions"], capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", tmp_path], input=archive, check=True)
    then = Catalog.open(tmp_path).solutions
    assert table["hashes"] == {
        name: {each.text_hash: each.hash} for name, each in then.items() if name in table["hashes"]
    }

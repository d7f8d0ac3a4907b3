"""A table that is too wide: optional columns go first, then the middle of long names, then it is split."""

from kernelderby.report import markdown, text
from kernelderby.report.model import Column, Report, Table, TableCell

NAME = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
COLUMNS = (Column("operator", "left"), Column("op_type", "left", is_optional=True), Column("shapes"), Column("S"))


def shown(width, rows=((NAME, "moe", "19", "82.6%"), ("rms_norm", "norm", "56", "7.8%")), columns=COLUMNS):
    cells = tuple(tuple(map(TableCell, row)) for row in rows)
    return text.render(Report("title", (), (Table("Operators", columns, cells),)), width=width).splitlines()


def heads(lines):
    return [line.split() for line in lines if line.startswith("operator")]


def test_a_table_that_fits_is_whole():
    lines = shown(90)
    assert heads(lines) == [["operator", "op_type", "shapes", "S"]] and any(NAME in line for line in lines)


def test_optional_columns_go_first_and_are_said():
    lines = shown(76)
    assert heads(lines) == [["operator", "shapes", "S"]] and any(NAME in line for line in lines)
    assert lines[-1] == "left out, too wide: op_type"


def test_then_names_lose_their_middle():
    lines = shown(50)
    assert heads(lines) == [["operator", "shapes", "S"]] and max(map(len, lines)) == 50
    (row,) = [line for line in lines if line.startswith("moe")]
    name = row.split()[0]
    assert NAME.startswith(name.partition("…")[0]) and NAME.endswith(name.partition("…")[2]) and len(name) > 24
    assert any(line.startswith("rms_norm ") for line in lines)


def test_then_it_is_split_with_short_names():
    many = (*COLUMNS, *(Column(f"column{index}") for index in range(8)))
    lines = shown(60, rows=((NAME, "moe", *map(str, range(10))),), columns=many)
    assert len(heads(lines)) == 3 and all(len(line) <= 60 for line in lines)
    assert len({line.split()[0] for line in lines if line.startswith("moe")}) == 1


def test_what_begins_with_spaces_belongs_to_the_note_before():
    report = Report("title", (), (), ("wrong in 2 places", "  x[0]: got 1, expected 2", "the next note"))
    assert text.render(report, width=22).splitlines()[2:] == [
        "- wrong in 2 places",
        "    x[0]: got 1,",
        "    expected 2",
        "- the next note",
    ]
    assert markdown.render(report).splitlines()[2:] == [
        "- wrong in 2 places",
        "  - x[0]: got 1, expected 2",
        "- the next note",
    ]


def test_texts_wrap_where_every_column_is_a_key():
    columns = (Column("axis", "left"), Column("description", "left"))
    table = Table("Axes", columns, ((TableCell("rows"), TableCell("word " * 40)),), key_columns=2)
    lines = text.render(Report("title", (), (table,)), width=60).splitlines()
    assert sum(line.count("word") for line in lines) == 40 and max(map(len, lines)) <= 60


def test_names_that_become_equal_get_numbers():
    names = [f"ampere_bf16_s16816gemm_bf16_128x{size}_ldg8_f2f_stages_64x3_tn" for size in (64, 128, 256)]
    lines = shown(50, rows=[(name, "gemm", "1", "2") for name in names])
    found = [line.split("  ")[0] for line in lines if line.startswith("ampere")]
    assert len({*found}) == 3 and all(name.endswith(f" #{number}") for number, name in enumerate(sorted(found), 1))


def test_a_path_stays_whole():
    path = "/tmp/" + "x" * 40
    lines = text.render(Report("title", (f"{path} (1 MB, 2 libraries)",), ()), width=30).splitlines()
    assert lines == ["title", path, "(1 MB, 2 libraries)"]

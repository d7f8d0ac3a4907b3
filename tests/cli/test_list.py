"""derby list and derby show: on this checkout, and on a small set whose numbers are worked out by hand."""

import json
import resource
import shutil
import subprocess
import sys

import pytest

from kernelderby.api.recorded_rows import RecordedRows
from kernelderby.catalog import Catalog, Definition
from kernelderby.catalog.selection import by_origin
from kernelderby.errors import DerbyError
from kernelderby.hardware import gpu_id
from kernelderby.roofline import listing as listings
from kernelderby.roofline.listing import contract, dtypes_of


def listing(catalog, *words, **options):
    return listings.listing(catalog, RecordedRows(catalog), *words, **options)


D = "scale_rows_h4"
# Workload 0 moves 72 bytes, workload 1 moves 36,000: at 4.8 TB/s.
FLOORS_US = (72 / 4.8e6, 36000 / 4.8e6)


def words(line):
    return line.split()


def row(text, start):
    """The words of the table row that starts with a word."""
    (line,) = [line for line in text.splitlines() if words(line)[:1] == [start]]
    return words(line)


def add_operator(root, name, op_type="other", dtype="bfloat16", rows=(3,), traces=()):
    """A second operator: a copy of the toy with another name, op_type and dtype of its costs, without solutions."""
    source = json.loads((root / f"definitions/toy/{D}.json").read_text())
    source.update(name=name, op_type=op_type)
    (root / "definitions" / op_type).mkdir(exist_ok=True)
    (root / f"definitions/{op_type}/{name}.json").write_text(json.dumps(source))
    (root / "workloads" / op_type).mkdir(exist_ok=True)
    lines = [
        json.dumps(
            {
                "definition": name,
                "shape_id": index,
                "framework": "vllm",
                "workload": {
                    "uuid": f"{name}-{index}",
                    "axes": {"rows": size},
                    "inputs": {
                        "x": {"type": "random"},
                        "scale": {"type": "random"},
                        "factor": {"type": "scalar", "value": 2.0},
                    },
                },
                "cost": {"flops": {dtype: 10}, "bytes_read": 480000, "bytes_written": 0},
            }
        )
        for index, size in enumerate(rows)
    ]
    (root / f"workloads/{op_type}/{name}.jsonl").write_text("\n".join(lines) + "\n")


def traces(root):
    return root / f"traces/h200/toy/{D}.jsonl"


def changed(text, change):
    """The lines of traces after change(trace) in place; those that it returns False for are dropped."""
    rows = [json.loads(line) for line in text.splitlines()]
    return "".join(json.dumps(row) + "\n" for row in rows if change(row) is not False)


def edit_traces(root, change):
    traces(root).write_text(changed(traces(root).read_text(), change))


def add_traces(root, *changes):
    """The rows, and for each change the rows once more, changed."""
    text = traces(root).read_text()
    for number, change in enumerate(changes):
        for line in changed(text, change).splitlines():
            row = json.loads(line)
            row["measurement"]["session"] = f"again {number}"
            path = root / "traces" / gpu_id(row["evaluation"]["environment"]["hardware"]) / f"toy/{D}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")


@pytest.fixture
def small_set(small_set):
    """The shared one, its rows those of the present sources."""
    solutions = Catalog.open(small_set).solutions

    def of_present_sources(trace):
        trace["measurement"]["solution_hash"] = solutions[trace["solution"]].hash

    edit_traces(small_set, of_present_sources)
    return small_set


# The checkout ---------------------------------------------------------------------------------------------------------


def test_the_checkout_is_listed_whole(derby, checkout):
    catalog = Catalog.open(checkout)
    code, out, err = derby("list", "--root", checkout)
    assert (code, err) == (0, "")
    for name in catalog.definitions:
        line = row(out, name)
        scored, *others = by_origin(catalog.workloads(name))
        shapes = "+".join(str(count) for count in (len(scored), sum(map(len, others))) if count)
        assert line[1] == catalog.definition(name).op_type and line[3] == shapes
    found = listing(catalog)
    assert len(found.operators) == found.of_operators == len(catalog.definitions)
    importance = [operator.importance for operator in found.operators if operator.importance]
    assert importance and importance == sorted(importance, reverse=True)
    assert all(operator.dtypes for operator in found.operators)


def test_it_is_quick_and_needs_no_torch(checkout):
    code = (
        "import sys\nsys.argv = ['derby', 'list', '--root', sys.argv[1]]\nfrom kernelderby import cli\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\nassert not {'torch', 'triton'} & set(sys.modules)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code, str(checkout)], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0 and "operators" in done.stdout, done.stderr
    # 0.6 s. Of the processor, since other tests may run beside it.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5


def test_help_works_after_the_verb_list_was_imported(derby):
    """Which makes kernelderby.cli.list a module in the namespace of the group."""
    assert derby("list", "--help")[0] == derby("--help")[0] == derby("profile", "--help")[0] == 0


def test_every_operator_of_the_checkout_can_be_shown(derby, checkout):
    for number, (name, definition) in enumerate(Catalog.open(checkout).definitions.items()):
        code, out, err = derby("show", name, "--root", checkout, columns=120)
        assert (code, err) == (0, ""), name
        assert max(map(len, out.splitlines())) <= 120
        for part in (*definition.axes, *definition.inputs, *definition.outputs):
            assert any(words(line)[:1] == [part] for line in out.splitlines()), f"{name} {part}"
        if number % 4:  # the JSON of every fourth: each call opens the set
            continue
        found = json.loads(derby("show", name, "--json", "--root", checkout)[1])
        assert set(found["inputs"]) == set(definition.inputs) and all(
            each["description"] for part in ("axes", "inputs", "outputs") for each in found[part].values()
        )


# A small set: the list ------------------------------------------------------------------------------------------------


def test_best_s_is_the_upper_median_of_the_fastest_solution(derby, small_set):
    """toy_fast takes 4 us on both: of two values the larger counts, 0.0075 / 4 = 0.19 %."""
    (operator,) = listing(Catalog.open(small_set)).operators
    assert operator.shares["h200"].measured == pytest.approx(FLOORS_US[1] / 4)
    assert (operator.shares["h200"].shapes, operator.solutions, operator.shapes) == (2, 2, 2)
    found = json.loads(derby("list", "--json", "--root", small_set)[1])
    assert found["operators"] == [
        {
            "name": D,
            "op_type": "toy",
            "dtypes": ["float32"],
            "shapes": 2,
            "other_shapes": {},
            "importance_percent": None,
            "solutions": 2,
            "best": {"h200": {"s": pytest.approx(0.001875), "shapes": 2}},
        }
    ]
    assert row(derby("list", "--root", small_set)[1], D) == [D, "toy", "float32", "2", "2", "0.2%"]


def slow_and_failed(trace):
    """toy_fast takes 10 us and fails on the workload of 1000 rows."""
    if trace["solution"] == "toy_fast":
        trace["measurement"].update(latency_us=10.0, samples_us=[[10.0]])
        if trace["workload"]["axes"]["rows"] == 1000:
            trace["measurement"].update(status="timed_out", latency_us=None, samples_us=[])


def test_a_failed_row_and_the_slower_solution_do_not_count(small_set):
    edit_traces(small_set, slow_and_failed)
    best = contract(Catalog.open(small_set), D).best["h200"]
    assert [each.solution for each in best.values()] == ["toy_baseline", "toy_baseline"]
    assert [each.share for each in best.values()] == pytest.approx([floor / 8 for floor in FLOORS_US])


def test_shapes_without_a_time_are_left_out_and_counted(derby, small_set):
    edit_traces(small_set, lambda trace: trace["workload"]["axes"]["rows"] == 2)
    (operator,) = listing(Catalog.open(small_set)).operators
    assert operator.shares["h200"].measured == pytest.approx(FLOORS_US[0] / 4)
    assert row(derby("list", "--root", small_set)[1], D)[-2:] == ["0.0004%", "(1/2)"]


def test_only_the_protocol_that_rank_takes_counts(small_set):
    """Two rows of another protocol against four: they would be faster."""

    def faster(trace):
        trace["measurement"].update(protocol="another", latency_us=1.0, samples_us=[[1.0]])
        return trace["solution"] == "toy_fast"

    add_traces(small_set, faster)
    assert [each.latency_us for each in contract(Catalog.open(small_set), D).best["h200"].values()] == [4.0, 4.0]


def test_a_column_for_each_gpu_the_one_with_most_rows_first(derby, small_set):
    """B200 moves 8 TB/s; the peaks of the other are unknown, so it has no S."""

    def on(name):
        def change(trace):
            trace["evaluation"]["environment"]["hardware"] = name
            return trace["solution"] == "toy_baseline"

        return change

    add_traces(small_set, on("Made Up 9000"), on("NVIDIA B200"))
    found = listing(Catalog.open(small_set))
    assert found.gpus == ("h200", "b200", "made-up-9000")
    shares = {gpu: share.measured for gpu, share in found.operators[0].shares.items()}
    assert shares == pytest.approx({"h200": 0.0075 / 4, "b200": 0.0045 / 8})
    assert row(derby("list", "--root", small_set)[1], D)[5:] == ["0.2%", "0.06%"]
    out = derby("show", D, "--root", small_set)[1]
    assert row(out, "67a1a173")[6:] == ["toy_fast", "0.2%", "toy_baseline", "0.06%", "toy_baseline"]


def test_a_set_without_traces_and_solutions(derby, small_set):
    shutil.rmtree(small_set / "traces")
    shutil.rmtree(small_set / "solutions")
    code, out, err = derby("list", "--root", small_set)
    assert (code, err) == (0, "") and row(out, D) == [D, "toy", "float32", "2", "0"] and "best" not in out
    assert derby("list", "--sort", "s", "--root", small_set)[0] == 0
    code, out, err = derby("show", D, "--root", small_set)
    assert (code, err) == (0, "") and "Solutions" not in out and "2 workloads" in out


@pytest.fixture
def set_of_three(small_set):
    """The toy, and two operators that have an importance: the names are in the order of neither."""
    add_operator(small_set, "b_large", rows=(1, 2, 3))
    add_operator(small_set, "a_small", op_type="third", dtype="float8_e4m3fn")
    (small_set / "profiles").mkdir()
    (small_set / "profiles/published_importance.csv").write_text(
        "# made up\noperator,importance_percent\na_small,12.5\nb_large,30.25\nelsewhere,1\n"
    )
    return small_set


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("importance", ["b_large", "a_small", D]),
        ("name", ["a_small", "b_large", D]),
        ("shapes", ["b_large", D, "a_small"]),
        ("s", [D, "a_small", "b_large"]),
    ],
)
def test_the_list_is_sorted_as_asked(derby, set_of_three, sort, order):
    out = derby("list", "--sort", sort, "--root", set_of_three)[1]
    assert [words(line)[0] for line in out.splitlines() if words(line)[:1] and words(line)[0] in order] == order
    assert row(out, "b_large") == ["b_large", "other", "bfloat16", "3", "30.2%", "0"]
    default = derby("list", "--root", set_of_three)[1]
    assert (default == out) == (sort == "importance")


def test_s_sorts_the_smallest_first(small_set):
    add_operator(small_set, "near", op_type="toy")
    trace = json.loads(traces(small_set).read_text().splitlines()[0])
    trace.update(definition="near", workload={"uuid": "near-0", "axes": {"rows": 3}, "inputs": {}})
    trace["measurement"].update(latency_us=0.2, samples_us=[[0.2]])  # the floor is 0.1 us
    trace["evaluation"]["performance"].update(latency_ms=0.0002, speedup_factor=None)
    solution = json.loads((small_set / f"solutions/baseline/toy/{D}/toy_baseline.json").read_text())
    solution.update(name="near_baseline", definition="near")
    folder = small_set / "solutions/baseline/toy/near"
    folder.mkdir()
    (folder / "near_baseline.json").write_text(json.dumps(solution))
    trace["solution"] = "near_baseline"
    (small_set / "traces/h200/toy/near.jsonl").write_text(json.dumps(trace) + "\n")
    found = listing(Catalog.open(small_set), sort="s").operators
    assert [operator.name for operator in found] == [D, "near"]
    assert found[1].shares["h200"].measured == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (["LARGE"], ["b_large"]),
        (["float"], ["a_small", "b_large", D]),
        (["bfloat16"], ["b_large"]),
        (["third"], ["a_small"]),
        (["l", "float8"], ["a_small"]),
        (["toy", "rows"], [D]),
    ],
)
def test_words_narrow_by_name_op_type_and_dtype(set_of_three, asked, names):
    found = listing(Catalog.open(set_of_three), asked, "name")
    assert [operator.name for operator in found.operators] == names and found.of_operators == 3


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["larg"], None),
        (["b_lrage"], "did you mean b_large"),
        (["tird"], "did you mean third"),
        (["rwos"], "did you mean rows"),
        (["large", "qqqq"], "no operator matches 'qqqq'; `derby list` without words"),
        (["large", "toy"], "no operator matches all of large, toy; leave one out"),
    ],
)
def test_a_word_that_matches_nothing_is_one_line(derby, set_of_three, asked, said):
    code, out, err = derby("list", *asked, "--root", set_of_three)
    if said is None:
        assert code == 0 and "1 of 3 operators" in out
    else:
        assert code == 1 and out == "" and err.count("\n") == 1 and said in err


def test_a_pipe_gets_whole_rows(derby, checkout):
    """With names of 60 letters too: a row is never continued further down."""
    out = derby("list", "--root", checkout)[1]
    assert sum(line.startswith("operator ") for line in out.splitlines()) == 1


# A small set: one operator --------------------------------------------------------------------------------------------


def test_show_has_every_part_of_the_contract(derby, small_set):
    code, out, err = derby("show", D, "--root", small_set)
    assert (code, err) == (0, "")
    assert "toy · float32 · definitions/toy/scale_rows_h4.py\nMultiplies every row by its scale and a factor.\n" in out
    assert row(out, "columns") == ["columns", "4", "Columns."] and row(out, "rows")[1] == "var"
    assert row(out, "x") == words("x [rows, columns] float32 Rows.")
    assert row(out, "factor") == words("factor scalar float32 Factor on everything.")
    assert row(out, "exact") == words("exact all 1e-06 1e-06 100% One multiplication an element.")
    assert "toy_fast      alice     CPU or GPU  One line of torch." in out


def test_show_has_work_traffic_and_the_best_solution_of_each_workload(derby, small_set):
    """Workload 1: 8,000 flops, 36,000 bytes, 8 / 36 flop a byte; 0.0075 us of 4 us."""
    out = derby("show", D, "--root", small_set)[1]
    assert row(out, "67a1a173") == words("67a1a173 1000 0.5 8e-06 0.036 0.222 toy_fast 0.2%")
    assert row(out, "cf66eb2c") == words("cf66eb2c 2 2 1.6e-08 7.2e-05 0.222 toy_fast 0.0004%")
    found = json.loads(derby("show", D, "--json", "--root", small_set)[1])
    workload = found["workloads"][1]
    assert workload["best"]["h200"] == {
        "solution": "toy_fast",
        "latency_us": 4.0,
        "share": pytest.approx(0.001875),
        "outdated": False,
    }
    assert workload["cost"]["bytes_read"] == 20000 and workload["scalars"] == {"factor": 0.5}


def test_what_all_workloads_share_stands_in_the_heading(derby, set_of_three):
    out = derby("show", "b_large", "--root", set_of_three)[1]
    assert "3 workloads, all with factor 2, framework vllm\n" in out and "30.2% of GPU time in production" in out
    assert row(out, "2") == words("2 3 1e-08 0.48 2.08e-05")
    alone = derby("show", "a_small", "--root", set_of_three)[1]
    assert row(alone, "0") == words("0 3 2 vllm 1e-08 0.48 2.08e-05")


def test_outdated_sources_are_marked(derby, small_set):
    def renamed(trace):
        trace["measurement"]["solution_hash"] = "of other sources"

    edit_traces(small_set, renamed)
    out = derby("show", D, "--root", small_set)[1]
    assert "toy_fast†" in out and "† outdated sources" in out


def test_an_unknown_operator_suggests_near_ones(derby, set_of_three):
    code, out, err = derby("show", "b_lrge", "--root", set_of_three)
    assert code == 1 and out == "" and err.count("\n") == 1 and "did you mean b_large" in err


@pytest.mark.parametrize("arguments", [["list"], ["show", D]])
def test_a_wrong_root_is_one_line(derby, tmp_path, arguments):
    code, _, err = derby(*arguments, "--root", tmp_path / "typo")
    assert code == 1 and err.count("\n") == 1 and "typo" in err


def test_without_costs_the_dtype_is_the_first_tensors(small_set):
    path = small_set / f"workloads/toy/{D}.jsonl"
    path.write_text(
        "".join(json.dumps({**json.loads(line), "cost": None}) + "\n" for line in path.read_text().splitlines())
    )
    catalog = Catalog.open(small_set)
    definition: Definition = catalog.definition(D)
    assert dtypes_of(catalog, definition) == ("float32",)
    (operator,) = listing(catalog).operators
    assert operator.shares == {}
    with pytest.raises(DerbyError):
        listing(catalog, ["bfloat16"])

"""The page in a real browser: the DOM compared with the model, and a reader's clicks and keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from browsing import ThreadTime, wait_for
from full_set import SCRIPT, foreign, of_two_origins, slower

from kernelderby.page.build import build_page, page_of
from kernelderby.page.html import asset, page_html
from kernelderby.page.model.page import KINDS
from kernelderby.report import numbers

SECTIONS = (
    *("overview", "operators", "race", "roofline", "pipeline"),
    *("timeline", "layers", "kernels", "profiles", "trust"),
)
MOE = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"


def cells(page, selector):
    """Rows of a table's body as {column: text}, opened ones left out."""
    return page.eval_on_selector_all(
        f"{selector} > tbody > tr:not(.detail)",
        "rows => rows.map(row => Object.fromEntries("
        "[...row.children].map(cell => [cell.dataset.label, cell.innerText.trim()])))",
    )


def keys(page, selector):
    """The keys of the visible rows, in their order."""
    return page.eval_on_selector_all(
        f"{selector} > tbody > tr:not(.detail):not([hidden])", "rows => rows.map(row => row.dataset.key)"
    )


def default_race(model, name, gpu="h200"):
    operator = next(each for each in model.operators if each.name == name)
    places = operator.races.get(gpu, ())
    return operator, model.races[places[0]] if places else None


def parts_of_table(page, selector):
    return {row["Operator"].split("\n")[0]: row for row in cells(page, selector)}


# Rows of a table are drawn alike: behind the twentieth, one of ten stays.
THIN = """document.querySelectorAll("section:not([hidden]) tbody").forEach((body) =>
    [...body.children].forEach((row, place) => {
        if (place > 20 && place % 10 && !row.matches(".detail, .race-detail")) row.remove();
    }))"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_is_drawn_and_accessible(visit, page_file, section, dark):
    """No error on the console (visit), something to see, and axe-core finds nothing wrong: contrast, labels, roles."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()
    page = visit(page_file, section, dark=dark)
    node = page.locator(f"#section-{section}")
    assert node.is_visible() and len(node.inner_text()) > 200
    if section in ("operators", "race"):
        page.locator(f"#section-{section} .opener").first.click()
        page.wait_for_selector(".detail, .race-detail:not([hidden]) .sample")
    if "DERBY_TESTS_ALL" not in os.environ:
        page.evaluate(THIN)
    # Dark differs from light by its colours alone.
    every = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
    rules = {"type": "rule", "values": ["color-contrast"]} if dark else every
    # The nodes that pass are not described: that takes more than all rules.
    found = axe.run(page, options={"runOnly": rules, "resultTypes": ["violations"]}).response
    violations = {each["id"]: [node["html"][:160] for node in each["nodes"]][:3] for each in found["violations"]}
    assert violations == {}


@pytest.mark.parametrize("section", SECTIONS)
def test_a_narrow_page_does_not_scroll_sideways(visit, page_file, section):
    page = visit(page_file, section, width=390)
    if section in ("operators", "race", "layers"):
        page.locator(f"#section-{section} .opener").first.click()
    width = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth]")
    assert max(width) <= 390
    outside = page.evaluate(
        "[...document.querySelectorAll('main section:not([hidden]) *')].filter(each => each.getClientRects().length && "
        "getComputedStyle(each).overflowX !== 'hidden' && each.scrollWidth > each.clientWidth + 1 && "
        "['auto', 'scroll'].includes(getComputedStyle(each).overflowX)).map(each => each.outerHTML.slice(0, 90))"
    )
    assert outside == []


def test_the_overview_shows_the_models_numbers(visit, page_file, built):
    page = visit(page_file)
    shown = parts_of_table(page, "#races") | parts_of_table(page, "#alone")
    races = {
        each.name if place == 0 else f"{each.name} {race.origin}": race
        for each in built.model.operators
        for place, race in enumerate(built.model.races[at] for at in each.races.get("h200", ()))
        if race.is_default
    }
    assert set(shown) == set(races)
    for name, row in shown.items():
        race = races[name]
        order = race.orders[race.kind]
        assert row["First"] == order.standings[0].solution
        assert row["S"] == numbers.percent(order.share)
        assert row["S fair"] == ("–" if order.fair is None else numbers.percent(order.fair))
        assert row["Passed"] == f"{order.standings[0].passed}/{len(race.shapes)}"
        if order.lead:
            assert row["Lead"].startswith(numbers.factor(order.lead.ratio.value))
            assert row["Win tie loss"] == f"{order.lead.wins} {order.lead.ties} {order.lead.losses}"
        else:
            assert "Lead" not in row


def test_an_opened_operator_shows_the_models_numbers(visit, page_file, built):
    page = visit(page_file, "rms_norm")
    operator, race = default_race(built.model, "rms_norm")
    order = race.orders[race.kind]
    raced = [place for place in operator.races["h200"] if built.model.races[place].is_default]
    shapes = page.locator("tr.detail table").nth(len(raced))  # behind a table of solutions for each race
    values = shapes.evaluate(
        "table => [...table.tBodies[0].rows].map(row => [row.dataset.key, "
        "Object.fromEntries([...row.children].map(cell => [cell.dataset.label, cell.dataset.value]))])"
    )
    by_uuid = dict(values)
    gpu = [each.id for each in built.model.gpus].index("h200")
    for place, shape in enumerate(operator.shapes[each] for each in race.shapes):
        shown = by_uuid[shape.uuid]
        time = race.cells[place][order.rows[place].fastest].times[KINDS.index(race.kind)]
        assert float(shown["Time us"]) == time.time_us and float(shown["S"]) == time.share
        assert float(shown["Floor us"]) == shape.floors[gpu][0]
    assert len(by_uuid) == len(operator.shapes) and len(race.shapes) == 56
    raced = operator.shapes[race.shapes[0]].uuid
    shapes.locator(f'tr[data-key="{raced}"] .opener').click()
    inner = shapes.locator("tr.detail tbody tr")
    assert inner.count() == len(race.solutions)


def test_who_was_not_measured_has_failed_nothing(visit, page_file, built):
    """A solution without a row stands below the table, not in it with no shape passed."""
    page = visit(page_file, "rms_norm")
    _, race = default_race(built.model, "rms_norm")
    names = [each["Solution"] for each in cells(page, "tr.detail .side table")]
    assert sorted(names) == sorted(race.solutions)
    others = [each.solution for each in race.orders[race.kind].standings if each.solution not in race.solutions]
    assert others
    (said,) = [each for each in page.locator("tr.detail .note").all_inner_texts() if each.endswith(", ".join(others))]
    assert said.startswith("Not measured on these shapes: ")


def test_the_race_shows_the_models_times(visit, page_file, built):
    page = visit(page_file, f"race/{MOE}")
    _, race = default_race(built.model, MOE)
    kind = KINDS.index(race.kind)
    shown = page.eval_on_selector_all(
        ".point", "all => all.map(each => [each.dataset.solution, Number(each.dataset.value)])"
    )
    expected = [
        [name, cell.times[kind].time_us]
        for row in race.cells
        for name, cell in zip(race.solutions, row, strict=True)
        if cell.times[kind]
    ]
    assert shown == expected
    lefts = page.eval_on_selector_all(".point", "all => all.map(each => parseFloat(each.style.left))")
    ordered = sorted(zip([time for _, time in shown], lefts, strict=True))
    assert [left for _, left in ordered] == sorted(lefts), "a longer time stands further right"


def test_a_race_row_opens_to_samples_protocol_hash_and_environment(visit, page_file, built):
    page = visit(page_file, f"race/{MOE}")
    _, race = default_race(built.model, MOE)
    opener = page.locator("#section-race .lanes .opener").first
    opener.click()
    page.wait_for_selector(".sample")
    place = next(i for i, each in enumerate(built.model.races) if each is race)
    expected = sum(len(rounds) for cell in built.samples[place][0] for rounds in cell[race.kind])
    detail = page.locator(".race-detail:not([hidden])")
    assert detail.locator(".sample").count() == expected > 100
    words = detail.inner_text()
    assert race.protocol in words and race.cells[0][0].hash in words
    detail.locator("details").first.locator("summary").click()
    assert "580.159.04" in detail.inner_text()
    opener.click()
    assert page.locator(".race-detail:not([hidden])").count() == 0


def test_a_lane_is_taken_away_and_comes_back(visit, page_file, built):
    page = visit(page_file, f"race/{MOE}")
    _, race = default_race(built.model, MOE)
    whole, name = page.locator(".point").count(), race.solutions[-1]
    choice = page.locator(".lane-choice", has_text=name)
    choice.click()
    assert page.locator(f'.point[data-solution="{name}"]').count() == 0 and page.locator(".point").count() < whole
    assert page.locator(".lane-choice", has_text=name).get_attribute("aria-pressed") == "false"
    page.locator(".lane-choice", has_text=name).click()
    assert page.locator(".point").count() == whole


def test_the_overview_says_the_result_in_a_sentence(visit, page_file, built):
    page = visit(page_file)
    said = page.locator("#section-overview .lead").first.inner_text()
    assert " ".join(said.split()) == " ".join(built.model.leads["h200"][0].split()) and "as fast as the best of" in said
    order = page.evaluate(
        "[...document.querySelectorAll('#section-overview .lead, #section-overview #matrix')]"
        ".map((each) => each.className.includes('lead') ? 'lead' : 'matrix')"
    )
    assert order == ["lead", "matrix", *["lead"] * (len(built.model.leads["h200"]) - 1)]  # the matrix without scrolling


def test_rows_of_an_older_protocol_have_no_s_beside_those_of_the_newest(visit, page_file, built):
    page = visit(page_file, "operators")
    shown, newest = parts_of_table(page, "#operators"), built.model.protocols["h200"]
    older = [
        each.name
        for each in built.model.operators
        if "h200" in each.races and built.model.races[each.races["h200"][0]].protocol != newest
    ]
    for name, row in shown.items():
        if default_race(built.model, name)[1] is not None:
            assert (row["S"] == "–") == (name in older) == row["Time us"].endswith("*"), name


def test_the_other_protocol_and_its_whiskers(visit, page_file, built):
    page = visit(page_file, f"race/{MOE}")
    measured = page.get_by_label("Measured")
    measured.select_option(measured.locator("option", has_text="cupti-span-1").get_attribute("value"))
    wait_for(page, "document.querySelectorAll('#section-race .lanes > li').length === 20")
    assert page.locator(".point").count() == 19 * 7
    assert page.locator(".whisker").count() == 19 * 6, "the baseline has none"
    assert page.locator("#section-race .floor").count() == 19


def test_every_column_sorts_both_ways(visit, page_file, built):
    page = visit(page_file, "operators")
    heads = page.locator("#operators thead button")
    everything = {each.name for each in built.model.operators}
    for place in range(heads.count()):
        values = []
        for _ in range(2):
            heads.nth(place).click()
            assert set(keys(page, "#operators")) == everything
            values.append(
                page.eval_on_selector_all(
                    f"#operators > tbody > tr:not(.detail) > :nth-child({place + 1})",
                    "all => all.map(each => each.dataset.value ?? null)",
                )
            )
        first, second = ([value for value in each if value is not None] for each in values)
        is_number = all(value.replace(".", "").replace("e-", "").isdigit() for value in first)
        if is_number:
            first, second = [float(value) for value in first], [float(value) for value in second]
            assert first in (sorted(first), sorted(first, reverse=True)) and second in (
                sorted(first),
                sorted(first, reverse=True),
            )
        assert first != second or len(set(first)) == 1, place
        assert all(each[len(first) :] == [None] * (len(each) - len(first)) for each in values), (
            "what is missing comes last"
        )


def test_filter_and_its_empty_answer(visit, page_file, built):
    page = visit(page_file, "operators")
    box = page.get_by_label("Filter")
    box.fill("norm vllm")
    shown = keys(page, "#operators")
    assert shown and all("norm" in name for name in shown)
    assert (
        page.locator("#section-operators output")
        .inner_text()
        .startswith(f"{len(shown)} of {len(built.model.operators)}")
    )
    box.fill("no such operator")
    assert keys(page, "#operators") == []


def test_deep_links_open_their_row(visit, page_file):
    page = visit(page_file, "unified_attention")
    row = page.locator("tr[data-key=unified_attention]")
    assert row.locator(".opener").get_attribute("aria-expanded") == "true"
    assert page.evaluate("document.activeElement.closest('tr').dataset.key") == "unified_attention"
    assert row.is_visible() and row.bounding_box()["y"] < 400
    page.evaluate("location.hash = 'rms_norm'")
    wait_for(page, "document.activeElement.closest('tr')?.dataset.key === 'rms_norm'")
    page.evaluate("location.hash = '%E0%A4%A'")
    page.wait_for_selector("#section-overview:not([hidden])")


def test_keys_reach_the_filter_the_rows_and_the_sections(visit, page_file):
    page = visit(page_file)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter"
    page.keyboard.press("Escape")
    page.locator("#operators .opener").first.focus()
    page.keyboard.press("ArrowDown")
    second = page.evaluate("document.activeElement.closest('tr').dataset.key")
    assert second == keys(page, "#operators")[1]
    page.keyboard.press("Enter")
    assert page.locator(f"tr[data-key={second}] .opener").get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert page.locator(f"tr[data-key={second}] .opener").get_attribute("aria-expanded") == "false"
    page.keyboard.press("3")
    page.wait_for_selector("#section-race:not([hidden])")


def test_another_gpu_has_floors_only(visit, page_file, built):
    page = visit(page_file, "operators")
    page.get_by_label("GPU").select_option("b200")
    place = [each.id for each in built.model.gpus].index("b200")
    shown = parts_of_table(page, "#operators")
    assert "Time us" not in next(iter(shown.values())) and len(shown) == len(built.model.operators)
    for operator in built.model.operators:
        middle = operator.shapes[len(operator.shapes) // 2]
        floor, regime = middle.floors[place]
        assert shown[operator.name]["Floor us"] == f"{numbers.floor_us(floor)} {regime[0].upper()}"
    for section in ("overview", "race"):
        page.evaluate(f"location.hash = '{section}'")
        page.wait_for_selector(f"#section-{section}:not([hidden]) .empty")


def test_the_kind_of_time_can_be_chosen(visit, page_file, built):
    page = visit(page_file)
    page.locator("#kind").select_option("eager")
    shown = parts_of_table(page, "#races")
    _, race = default_race(built.model, "silu_and_mul")
    assert race.kind == "graph" and shown["silu_and_mul"]["Time"].startswith("eager")
    assert shown["silu_and_mul"]["S"] == numbers.percent(race.orders["eager"].share)


def test_sliders_move_the_total_as_amdahl_says(visit, page_file, built):
    page = visit(page_file, "pipeline")
    place = next(i for i, each in enumerate(built.model.pipelines) if each.source.endswith("triton_fused_v2_b200.csv"))
    page.locator(f".pick[data-place='{place}']").click()
    document = built.model.pipelines[place]
    before = page.locator("#whatif-total").inner_text()
    assert before.endswith("1.00 times as fast") and before.startswith(numbers.microseconds(document.total_us))
    stage = next(each for each in document.stages if each.name == "K3 / K5")
    page.locator("input[type=range][data-stage='K3 / K5']").fill("30")
    then = 1 / (1 - stage.share + stage.share / 10**0.3)
    assert f"{numbers.factor(then)} times as fast" in page.locator("#whatif-total").inner_text()
    row = next(row for row in cells(page, "#whatif table") if row["Stage"].endswith("K3 / K5"))
    assert row["2 x faster"] == numbers.factor(stage.speedups[1]) and row["Share"] == numbers.percent(stage.share)


def test_stacked_bars_are_the_shares(visit, page_file, built):
    page = visit(page_file, "pipeline")
    shown = page.eval_on_selector_all(
        ".stack-part", "all => all.map(each => [each.dataset.stage, Number(each.dataset.value)])"
    )
    by_solution = {}
    for each in built.model.pipelines:
        by_solution.setdefault(each.solution, []).extend([stage.name, stage.share] for stage in each.stages)
    assert shown == [pair for pairs in by_solution.values() for pair in pairs]


def test_layers_are_drawn_as_they_overlap(visit, page_file, built):
    page = visit(page_file, "layers")
    boxes = page.eval_on_selector_all(
        ".timeline",
        "all => all.map(line => [...line.children].map(each => { const box = each.getBoundingClientRect();"
        " return [each.className, Number(each.dataset.value), box.left, box.right]; }))",
    )
    h800 = boxes[0]
    [table] = built.model.layers
    assert [time for _, time, _, _ in h800] == [each.time_us for each in table.columns[0].modules]
    below = [each for each in h800 if "lane1" in each[0]]
    combine = max((each for each in h800 if "lane0" in each[0]), key=lambda each: each[1])
    assert len(below) == 3 and all(combine[2] - 1 <= left and right <= combine[3] + 1 for _, _, left, right in below)
    assert max(right for _, _, _, right in boxes[1]) < max(right for _, _, _, right in h800), "one scale"


def test_dark_and_light(visit, page_file):
    page = visit(page_file, dark=True)
    color = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(color)
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(color) == "rgb(255, 255, 255)" != dark
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(color) == dark


def test_print_shows_every_section(visit, page_file, tmp_path):
    page = visit(page_file, dark=True)
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") > 8
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 1050, "height": 740})  # A4, landscape, within its margins
    assert page.evaluate("document.documentElement.scrollWidth") <= 1050
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for section in SECTIONS:
        assert (
            page.locator(f"#section-{section}").is_visible()
            and len(page.locator(f"#section-{section}").inner_text()) > 200
        )
    assert not page.locator("#nav").is_visible()


def test_numbers_are_written_as_everywhere_else(visit, page_file):
    """assets/numbers.js against report/numbers.py."""
    import random

    page = visit(page_file)
    draw = random.Random(3)
    values = [0.5, 1.25, 122.25, 1228.5, 1229.5, 0.125, 0.0009999, 9.995, 2.45]
    values += [float(f"{10 ** draw.uniform(-6, 6):.6g}") for _ in range(3000)]
    names = "microseconds(value), floorUs(value), factor(value), percent(value), intensity(value)"
    shown = page.evaluate(
        f"values => {{ {asset('numbers.js')}; return values.map(value => [{names}]); }}",
        values,
    )
    write = (numbers.microseconds, numbers.floor_us, numbers.factor, numbers.percent, numbers.intensity)
    assert shown == [[each(value) for each in write] for value in values]


def test_names_are_shown_not_run(visit, full_file, full_page):
    page = visit(full_file)
    assert page.title() != "owned" and page.locator("main img").count() == 0
    assert page.locator("main").inner_text().replace("\n", "").count("<script>document.title='owned'") > 5
    for section in SECTIONS:
        page.evaluate(f"location.hash = '{section}'")
        page.wait_for_selector(f"#section-{section}:not([hidden])")
    assert page.title() != "owned" and page.locator("main img, main script").count() == 0
    assert any(SCRIPT in name for race in full_page.model.races for name in race.solutions)


def test_a_full_set_is_small_and_quick(visit, full_file, full_page):
    """Six solutions, three kinds of 60 samples: under 6.6 KB a workload (459 in 3 MB), drawn in a second, sorted in
    100 ms."""
    workloads = sum(len(race.cells) for race in full_page.model.races)
    assert workloads >= 459
    assert all(len(race.solutions) == 6 for race in full_page.model.races)
    assert full_file.stat().st_size < 6_600 * workloads
    page = visit(full_file, "operators")
    thread = ThreadTime(page)
    page.reload()
    page.wait_for_selector("#operators")
    wait_for(page, "performance.getEntriesByName('first-contentful-paint').length")
    assert thread.seconds() < 1
    assert thread.of_slowest_click("#operators thead button") < 0.1
    page.evaluate("location.hash = 'rms_norm'")
    page.wait_for_selector("tr.detail")
    assert thread.of_slowest_click("tr.detail table thead button") < 0.1


@pytest.mark.parametrize("section", SECTIONS)
def test_an_empty_set_says_what_to_do(visit, small_set, tmp_path, section):
    import shutil

    shutil.rmtree(small_set / "traces")
    file = tmp_path / "empty.html"
    file.write_text(page_html(build_page(small_set)))
    page = visit(file, section)
    assert page.locator(f"#section-{section}").inner_text().strip()


@pytest.mark.parametrize("section", SECTIONS)
def test_a_foreign_set_is_drawn(visit, small_set, tmp_path, section):
    file = tmp_path / "foreign.html"
    file.write_text(page_html(page_of(foreign(small_set))))
    page = visit(file, section)
    assert page.locator(f"#section-{section}").inner_text().strip()
    if section in ("operators", "race"):
        page.locator(f"#section-{section} .opener").first.click()
        page.wait_for_selector(".detail, .race-detail:not([hidden]) .empty")


def test_workloads_of_two_origins(visit, small_set, tmp_path):
    file = tmp_path / "origins.html"
    built = page_of(of_two_origins(small_set))
    file.write_text(page_html(built))
    page = visit(file)
    rows = [" ".join(row["Operator"].split()) for row in cells(page, "#alone")]  # plain torch is no library
    assert rows == ["scale_rows_h4", "scale_rows_h4 serving"]
    page.evaluate("location.hash = 'scale_rows_h4'")
    page.wait_for_selector("tr.detail table")
    shapes = page.locator("tr.detail table").last
    assert shapes.locator("tbody tr").count() == 2
    assert set(shapes.locator("td[data-label=Origin]").all_inner_texts()) == {"survey", "serving"}
    times = shapes.locator("td[data-label='Time us']").evaluate_all(
        "all => all.map(each => Number(each.dataset.value))"
    )
    eager = KINDS.index("eager")
    best = [min(cell.times[eager].time_us for cell in race.cells[0]) for race in built.model.races]
    assert sorted(times) == sorted(best)
    page.evaluate("location.hash = 'race'")
    page.get_by_label("Measured").select_option("1")
    wait_for(page, "document.querySelectorAll('#section-race .lanes > li').length === 2")


def test_changes_are_shown(visit, small_set, tmp_path):
    file = tmp_path / "changes.html"
    file.write_text(page_html(build_page(small_set, against=slower(small_set, tmp_path / "other", "toy_fast"))))
    page = visit(file)
    [row] = cells(page, "#changes")
    assert (row["Solution"], row["Verdict"], row["Win tie loss"]) == ("toy_fast", "faster", "2 0 0")
    assert row["Now over then"].startswith("0.50")


def test_the_matrix_shows_every_author_without_a_click(visit, page_file, built):
    """Each number is that of the race's standing: the geomean over the first, 1 for the first itself."""
    page = visit(page_file)
    shown = {row["Operator"]: row for row in cells(page, "#matrix")}
    _, race = default_race(built.model, "rms_norm")
    order = race.orders[race.kind]
    for standing in order.standings:
        column = "plain torch" if standing.author == "baseline" else standing.author
        best = next(each for each in order.standings if each.author == standing.author)
        if best.geomean is None and best.solution != order.baseline:
            assert shown["rms_norm"].get(column, "–") == "–", "nothing of it is measured"
            continue
        value = 1.0 if best.solution == order.baseline else best.geomean.value
        assert shown["rms_norm"][column].split()[0] == numbers.factor(value)
    headings = page.eval_on_selector_all("#section-overview h2", "all => all.map(each => each.innerText)")
    assert headings.index("Operator by library") < headings.index("Races")
    assert "checked against a reference" in page.locator(".welcome").inner_text()


def test_gpu_time_and_filter_stand_in_the_address(visit, page_file):
    page = visit(page_file, "operators")
    page.locator("#filter").fill("rms")
    page.locator("#kind").select_option("eager")
    page.locator("#gpu").select_option("b200")
    address = page.evaluate("location.hash")
    assert address == "#operators?gpu=b200&time=eager&filter=rms"
    again = visit(page_file, address[1:])
    assert again.locator("#filter").input_value() == "rms" and again.locator("#gpu").input_value() == "b200"
    assert again.locator("#kind").input_value() == "eager"
    assert keys(again, "#operators") == keys(page, "#operators") and "rms_norm" in keys(again, "#operators")
    again.locator("#nav a[data-section=roofline]").click()  # a link without choices keeps them
    wait_for(again, "location.hash === '#roofline?gpu=b200&time=eager&filter=rms'")
    assert visit(page_file, "race/rms_norm?gpu=nope&time=never").locator("#gpu").input_value() == "h200"


def test_a_source_is_shown_with_its_differences(visit, page_file, checkout):
    page = visit(page_file, "rms_norm")
    page.locator("[data-key=rms_norm] + .detail summary", has_text="What each solution is").click()
    source = page.locator("details[data-source=derby_rms_norm]")
    source.locator("summary").click()
    wait_for(page, "document.querySelector('details[data-source=derby_rms_norm] pre')")
    written = next(checkout.glob("solutions/kernelderby/norm/rms_norm/derby_rms_norm/main.py")).read_text()
    assert source.locator("pre").text_content() == written
    source.locator("select").nth(1).select_option("vllm_rms_norm")
    added = source.locator("ins").all_text_contents()
    gone = source.locator("del").all_text_contents()
    kept = source.locator("pre span").all_text_contents()
    other = next(checkout.glob("solutions/vllm/norm/rms_norm/vllm_rms_norm/main.py")).read_text()
    lines = page.eval_on_selector_all(
        "details[data-source=derby_rms_norm] pre > *", "all => all.map(each => each.textContent)"
    )
    assert added and gone and len(added) + len(gone) + len(kept) == len(lines)
    assert "".join(line[2:] for line in lines if line[0] in " +") == written + "\n"
    assert "".join(line[2:] for line in lines if line[0] in " -") == other + "\n"


def test_the_race_keeps_its_legend_its_axis_and_names_the_rivals(visit, page_file, built):
    page = visit(page_file, "race/rms_norm")
    _, race = default_race(built.model, "rms_norm")
    head = page.locator("#section-race .lanes li[data-key] .rivals").first.inner_text()
    assert "vllm_rms_norm" in head
    page.evaluate("window.scrollTo(0, 2000)")
    for selector in (".legend.stays", "#section-race li.axis"):
        assert page.locator(selector).first.is_visible()
        assert 0 <= page.locator(selector).first.bounding_box()["y"] < 300
    # The floor of three rows lies three decades below their times: it takes no room, and stands at the left edge.
    times = [time.time_us for row in race.cells for cell in row for time in cell.times[:1] if time]
    first = float(page.locator("#section-race li.axis .tick").first.inner_text())
    assert first >= min(times) / 4
    assert page.locator("#section-race .floor.beyond").count() >= 1


def test_lines_of_two_versions_are_compared(visit, checkout, small_set, tmp_path):
    """Against another set: a changed solution is compared with its former version."""
    import shutil

    from kernelderby.page.sources import repository_of

    before = Path(shutil.copytree(small_set, tmp_path / "before"))
    main = next(small_set.glob("solutions/alice/toy/*/toy_fast/main.py"))
    main.write_text(main.read_text() + "\nADDED = 1\n")
    (small_set / ".git").mkdir()
    (small_set / ".git/config").write_text('[remote "origin"]\n\turl = git@example.org:some/where.git\n')
    assert repository_of(small_set) == "https://example.org/some/where"
    file = tmp_path / "page.html"
    file.write_text(page_html(build_page(small_set, before)))
    page = visit(file, "scale_rows_h4")
    page.locator(".detail summary", has_text="What each solution is").click()
    page.locator("details[data-source=toy_fast] summary").click()
    wait_for(page, "document.querySelector('details[data-source=toy_fast] ins')")
    assert sorted(each.strip() for each in page.locator("ins").all_text_contents()) == ["+", "+ ADDED = 1"]
    assert page.locator("del").count() == 0
    page.evaluate("location.hash = 'overview'")
    links = page.eval_on_selector_all(".links a", "all => all.map(each => each.href)")
    assert links[0] == "https://example.org/some/where" and all(each.startswith(links[0]) for each in links)

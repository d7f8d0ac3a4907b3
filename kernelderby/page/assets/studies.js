// Profiles: what a recording comes to, table by table: operators and gain, activity, before and after.
let studyChosen = 0;

function studies() {
  if (!page.studies.length) return [empty("No recording with events lies under profiles/ or reports/profiles/ (docs/profiling.md).")];
  const chosen = page.studies[Math.min(studyChosen, page.studies.length - 1)];
  const choose = (value) => {
    studyChosen = Number(value);
    show("profiles", true);
  };
  return [
    element("div", { class: "tools" }, selector("Profile", page.studies.map((each, place) => [String(place), `${each.title}: ${each.kind}`]), String(page.studies.indexOf(chosen)), choose)),
    ...chosen.facts.map((words) => text("p", words)),
    ...chosen.tables.flatMap((each) => [text("h3", each.title), studyTable(each), each.caption ? note(each.caption) : null]),
    chosen.notes.length ? element("ul", { class: "note" }, chosen.notes.map((words) => text("li", words))) : null,
  ];
}

function studyTable(shown) {
  const columns = shown.columns.map(([title, isNumber], at) => ({
    title,
    align: isNumber ? "right" : "left",
    value: (row) => (isNumber ? numberOf(row[at][0]) : row[at][0]),
    cell: (row) => element("span", { class: row[at][1] || null }, isNumber ? row[at][0] : breakable(row[at][0])),
  }));
  return table({ rows: shown.rows, columns }).node;
}

// What a number's text sorts by: "~1,234.5 (12%)" by 1234.5; null where there is none.
function numberOf(words) {
  const found = parseFloat(words.replace(/[,~+]/g, ""));
  return Number.isNaN(found) ? null : found;
}

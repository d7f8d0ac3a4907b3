// Trust: what was measured where, what failed or was caught, and what nobody ran.
function trust() {
  const { groups, failures, outdated, missing, warnings } = page.trust;
  const made = [text("h2", "Measured where"), groupsTable(groups), text("h2", "Failed, doubtful and caught")];
  if (!failures.length) made.push(empty("Every row that counts passed, and none is faster than its floor allows."));
  else made.push(failuresTable(failures));
  made.push(text("h2", "Of former sources"));
  made.push(outdated.length ? outdatedTable(outdated) : empty("Every row that counts is of the sources that its solution has now."));
  made.push(text("h2", "Never measured"), note("Solutions without a row on a GPU where another solution of their operator has rows, and the machine that they need."));
  made.push(missing.length ? missingTable(missing) : empty("Every solution has rows wherever another one of its operator has."));
  made.push(text("h2", "Libraries without a race"), notRacedTable(page.trust.not_raced));
  made.push(text("h2", "Left out"));
  made.push(warnings.length ? element("ul", {}, warnings.map((each) => text("li", each))) : empty("Nothing of the set is broken."));
  return made;
}

const list = (values) => (values.length ? values.join(", ") : NOTHING);

function groupsTable(groups) {
  if (!groups.length) return empty("No rows are recorded: measure with `derby bench`.");
  return table({
    rows: groups,
    columns: [
      { title: "GPU", value: (row) => gpuName(row.gpu), cell: (row) => text("span", gpuName(row.gpu), { class: "whole" }) },
      { title: "Protocol", value: (row) => row.protocol, cell: (row) => text("span", row.protocol, { class: "whole" }) },
      { title: "Rows", align: "right", value: (row) => row.rows, cell: (row) => String(row.rows) },
      { title: "Passed", align: "right", value: (row) => row.passed, cell: (row) => String(row.passed) },
      { title: "Operators", align: "right", value: (row) => row.definitions, cell: (row) => String(row.definitions) },
      { title: "Solutions", align: "right", value: (row) => row.solutions, cell: (row) => String(row.solutions) },
      { title: "Boards", align: "right", value: (row) => row.boards, cell: (row) => (row.boards ? String(row.boards) : "not told"), hint: "different GPUs by their uuid" },
      { title: "When", value: (row) => row.measured_from, cell: (row) => text("span", days(row.measured_from, row.measured_to), { class: "whole" }) },
      { title: "Drivers", value: (row) => list(row.drivers), cell: (row) => list(row.drivers) },
      { title: "Commits", value: (row) => list(row.commits), cell: (row) => list(row.commits) },
    ],
  }).node;
}

function failuresTable(failures) {
  return table({
    id: "failures",
    rows: failures,
    columns: [
      { title: "Solution", value: (row) => row.solution, cell: (row) => breakable(row.solution) },
      { title: "Status", value: (row) => row.status, cell: (row) => text("span", row.is_cheat ? `${row.status} (caught)` : row.status, { class: "bad" }) },
      { title: "Operator", value: (row) => row.definition, cell: (row) => operatorLink(row.definition) },
      { title: "Workload", value: (row) => row.workload, cell: (row) => breakable(row.workload) },
      { title: "GPU", value: (row) => row.gpu, cell: (row) => text("span", gpuName(row.gpu), { class: "whole" }) },
      { title: "Reason", value: (row) => row.message, cell: (row) => text("span", row.message || NOTHING, { class: "message" }) },
      { title: "When", value: (row) => row.timestamp, cell: (row) => text("span", day(row.timestamp), { class: "whole" }) },
    ],
  }).node;
}

function outdatedTable(outdated) {
  return table({
    id: "outdated",
    rows: outdated,
    columns: [
      { title: "Solution", value: (row) => row.solution, cell: (row) => breakable(row.solution) },
      { title: "Operator", value: (row) => row.definition, cell: (row) => operatorLink(row.definition) },
      { title: "GPU", value: (row) => row.gpu, cell: (row) => text("span", gpuName(row.gpu), { class: "whole" }) },
      { title: "Protocol", value: (row) => row.protocol, cell: (row) => text("span", row.protocol, { class: "whole" }) },
      { title: "Rows", align: "right", value: (row) => row.rows, cell: (row) => `${row.rows} of ${row.of_rows}` },
    ],
  }).node;
}

function notRacedTable(libraries) {
  if (!libraries.length) return empty("Nobody has listed one in solutions/not_raced.toml.");
  return table({
    rows: libraries,
    columns: [
      { title: "Library", value: (row) => row.library, cell: (row) => row.library },
      { title: "Operators", value: (row) => list(row.operators), cell: (row) => list(row.operators) },
      { title: "Why", value: (row) => row.why, cell: (row) => text("span", row.why, { class: "message" }) },
      { title: "Needs", value: (row) => row.needs, cell: (row) => row.needs || "its kernel does not fit" },
    ],
  }).node;
}

function missingTable(missing) {
  return table({
    rows: missing,
    columns: [
      { title: "Solution", value: (row) => row.solution, cell: (row) => breakable(row.solution) },
      { title: "Author", value: (row) => row.author, cell: (row) => row.author },
      { title: "Operator", value: (row) => row.definition, cell: (row) => operatorLink(row.definition) },
      { title: "GPU", value: (row) => row.gpu, cell: (row) => text("span", gpuName(row.gpu), { class: "whole" }) },
      { title: "Needs", value: (row) => row.needs, cell: (row) => row.needs || "nothing beyond torch" },
    ],
  }).node;
}

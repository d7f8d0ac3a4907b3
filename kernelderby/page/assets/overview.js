// Overview: who won what, by how much, and how near to light.
function overview() {
  const gpu = page.gpus[gpuPlace()];
  // The result and the matrix first; what was measured beside the published shapes follows them.
  const [result, ...legs] = (page.leads[state.gpu] ?? []).map((each) => text("p", each, { class: "lead" }));
  const made = [welcome(), ...(result ? [result] : [])];
  const raced = page.operators.filter((operator) => raceOf(operator));
  if (!raced.length) {
    made.push(...legs, facts(gpu), empty(gpu ? `Nothing was recorded on ${gpu.name}. Its floors stand under Operators; \`derby bench\` on one records times.` : "This set holds no recorded rows: measure with `derby bench`."));
    return made;
  }
  made.push(...matrix(raced), ...legs, facts(gpu));
  made.push(text("h2", "Races"), note("A row an operator: the solution that stands first in derby rank, and its lead over the one solution of another author that stands next (that one's time over the winner's, 95 % interval). S is the floor over the time of the fastest solution on a shape, the median over the shapes; S fair divides the reachable time instead, the geomean."));
  const all = raced.flatMap((operator) => racesOf(operator).map((race) => ({ operator, race, order: orderOf(race) })));
  const [competed, alone] = [all.filter(({ order }) => order.lead), all.filter(({ order }) => !order.lead)];
  made.push(competed.length ? raceTable(competed, "races", true).node : empty("No operator has rows of two authors yet."));
  if (alone.length) made.push(text("h2", "Measured, without a rival"), raceTable(alone, "alone", false).node);
  made.push(...scoreTables(), ...changeTables());
  return made;
}

// For who comes here first: what this is, and where more stands.
function welcome() {
  const links = page.repository ? [element("a", { href: page.repository }, "Repository"), ...page.docs.map((each) => element("a", { href: `${page.repository}/blob/HEAD/${each}` }, each.split("/").pop().replace(".md", "")))] : [];
  return element("div", { class: "welcome" },
    text("p", "Competing GPU kernels for one operator, checked against a reference and timed in turn on one GPU. Each row below is an operator, and its name opens its race on every shape. Operators, above, has the contracts, all solutions and their sources. S is how near a time comes to the hardware's limit: 100% is the limit."),
    links.length ? element("p", { class: "links" }, links) : null);
}

const PLAIN = "baseline"; // the author of plain torch

// Operator by author: the geomean of the author's best-placed solution over the first one.
function matrix(raced) {
  const rows = raced.map((operator) => ({ operator, order: orderOf(raceOf(operator)), race: raceOf(operator) })).filter(({ order }) => order.standings.length > 1);
  const counts = new Map();
  const best = (row, author) => row.order.standings.find((each) => each.author === author && each.place !== null);
  for (const row of rows) for (const author of new Set(row.order.standings.filter((each) => each.place !== null).map((each) => each.author))) counts.set(author, (counts.get(author) || 0) + 1);
  const authors = [...counts].sort((one, other) => (one[0] === PLAIN) - (other[0] === PLAIN) || other[1] - one[1] || one[0].localeCompare(other[0])).map(([author]) => author);
  if (!rows.length || authors.length < 2) return [];
  const over = (row, author) => {
    const own = best(row, author);
    return own && (own.solution === row.order.baseline ? 1 : own.geomean && own.geomean[INTERVAL.value]);
  };
  const cell = (row, author) => {
    const own = best(row, author), value = over(row, author);
    if (!own || value === null || value === undefined) return text("span", NOTHING, { class: "muted" });
    const part = own.passed < row.race.shapes.length ? text("small", ` ${own.passed}/${row.race.shapes.length}`) : null;
    return element("span", { class: own.solution === row.order.standings[0].solution ? "beats" : value > 2 ? "far" : "", title: `${own.solution}: ${own.passed} of ${row.race.shapes.length} shapes` }, factor(value), part);
  };
  return [
    text("h2", "Operator by library"),
    note("Time over that of the first in the order, geomean over the shapes that both passed; 1 is the first, 2 takes twice as long. Grey: more than 2. Beside a number: shapes passed, where not all."),
    table({
      id: "matrix",
      rows,
      key: (row) => row.operator.name,
      columns: [
        { title: "Operator", value: (row) => row.operator.name, cell: (row) => element("a", { href: `#race/${encodeURIComponent(row.operator.name)}` }, breakable(row.operator.name)) },
        ...authors.map((author) => ({ title: author === PLAIN ? "plain torch" : author, align: "right", ascending: true, value: (row) => over(row, author) ?? null, cell: (row) => cell(row, author) })),
      ],
    }).node,
  ];
}

function facts(gpu) {
  const races = page.races.filter((race) => race.gpu === state.gpu);
  const one = (values) => [...new Set(values)].sort().join(", ");
  const moments = races.map((race) => [race.measured_from, race.measured_to]).flat().filter(Boolean).sort();
  const lines = [
    ["GPU", gpu ? gpu.name : NOTHING],
    ["Measured", moments.length ? days(moments[0], moments[moments.length - 1]) : "nothing here"],
    ["Rows", gpu ? String(gpu.rows) : "0"],
    ["Protocols", one(races.map((race) => race.protocol)) || NOTHING],
    ["Drivers", one(races.flatMap((race) => race.drivers)) || NOTHING],
    ["Commits", one(races.flatMap((race) => race.commits)) || NOTHING],
    ["Derby", page.version],
  ];
  return element("dl", { class: "facts" }, lines.map(([name, value]) => element("div", {}, text("dt", name), text("dd", value))));
}

function raceTable(races, id, hasLead) {
  const rows = races.map((each) => ({ ...each, first: each.order.standings[0], lead: each.order.lead }));
  return table({
    id,
    rows,
    key: (row) => row.operator.name,
    columns: [
      { title: "Operator", value: (row) => row.operator.name, cell: (row) => element("span", {}, operatorLink(row.operator.name), row.race === raceOf(row.operator) ? null : text("small", ` ${row.race.origin}`)) },
      { title: "First", value: (row) => row.first.solution, cell: (row) => breakable(row.first.solution) },
      { title: "Author", value: (row) => row.first.author, cell: (row) => row.first.author },
      ...(hasLead ? leadColumns() : []),
      { title: "S", align: "right", value: (row) => row.order.share, cell: (row) => shareBar(row.order.share) },
      { title: "S fair", align: "right", value: (row) => row.order.fair, cell: (row) => percent(row.order.fair) },
      { title: "Passed", align: "right", value: (row) => row.first.passed / Math.max(1, row.race.shapes.length), cell: (row) => `${row.first.passed}/${row.race.shapes.length}`, hint: "workloads that the winner passed" },
      { title: "Time", value: (row) => row.order.kind, cell: (row) => text("span", row.order.kind, { title: row.race.protocol }) },
      ...(hasLead ? [] : [{ title: "Protocol", value: (row) => row.race.protocol, cell: (row) => text("span", row.race.protocol, { class: "whole" }) }]),
    ],
  });
}

const leadColumns = () => [
  { title: "Lead", align: "right", value: (row) => row.lead.ratio[INTERVAL.value], cell: (row) => ratio(row.lead.ratio), hint: "the best library's time on each shape over the best of the first one's author, geomean" },
  { title: "over", value: (row) => row.lead.second, cell: (row) => (row.lead.libraries > 1 ? `${row.lead.second} of ${row.lead.libraries}` : row.lead.second), hint: "the library that is fastest on most shapes, and how many were raced" },
  { title: "Win tie loss", align: "right", value: (row) => row.lead.wins / row.lead.workloads, cell: (row) => `${row.lead.wins} ${row.lead.ties} ${row.lead.losses}` },
];

const operatorLink = (name) => element("a", { href: `#${encodeURIComponent(name)}` }, breakable(name));

function scoreTables() {
  const own = page.scores.filter((score) => score.gpu === state.gpu);
  const made = [...new Set(own.map((score) => score.protocol))].flatMap((protocol) => {
    const rows = own.filter((score) => score.protocol === protocol);
    return [
      text("h3", protocol),
      table({
        rows,
        columns: [
          { title: "Author", value: (row) => row.author, cell: (row) => row.author },
          { title: "S, missing as 0", align: "right", value: (row) => row.share_everywhere, cell: (row) => shareBar(row.share_everywhere) },
          { title: "S where measured", align: "right", value: (row) => row.share, cell: (row) => percent(row.share) },
          { title: "S fair, missing as 0", align: "right", value: (row) => row.fair_everywhere, cell: (row) => (row.fair === null ? NOTHING : percent(row.fair_everywhere)) },
          { title: "S fair where measured", align: "right", value: (row) => row.fair, cell: (row) => percent(row.fair) },
          { title: "Operators", align: "right", value: (row) => row.operators, cell: (row) => `${row.operators}/${row.of_operators}` },
          { title: "Importance measured", align: "right", value: (row) => row.weight, cell: (row) => percent(row.weight) },
          { title: "Shapes passed", align: "right", value: (row) => row.shapes, cell: (row) => `${row.shapes}/${row.of_shapes}` },
        ],
      }).node,
    ];
  });
  if (!made.length) return [];
  return [text("h2", "Over all operators, weighted by importance"), note("Each operator counts by its share of the GPU time in production. best of all takes the fastest solution of any author on every shape."), ...made];
}

function changeTables() {
  if (!page.changes) return [];
  const lines = page.changes.lines.filter((line) => gpuIs(line.gpu));
  const { against, unchanged } = page.changes;
  const made = [text("h2", "Changes"), note(`Against ${against}. Time now over time then: below 1 is faster. ${unchanged} solutions have the same rows in both.`)];
  const verdict = { faster: "faster", slower: "slower", tie: "tie" };
  if (!lines.length) made.push(empty("No solution was measured anew on this GPU."));
  else
    made.push(
      table({
        id: "changes",
        rows: lines,
        columns: [
          { title: "Solution", value: (row) => row.solution, cell: (row) => breakable(row.solution) },
          { title: "Operator", value: (row) => row.definition, cell: (row) => operatorLink(row.definition) },
          { title: "Now over then", align: "right", ascending: true, value: (row) => row.ratio[INTERVAL.value], cell: (row) => ratio(row.ratio) },
          { title: "Verdict", value: (row) => row.ratio[INTERVAL.verdict], cell: (row) => text("span", verdict[row.ratio[INTERVAL.verdict]], { class: `verdict ${row.ratio[INTERVAL.verdict]}` }) },
          { title: "Win tie loss", align: "right", value: (row) => row.wins / row.workloads, cell: (row) => `${row.wins} ${row.ties} ${row.losses}` },
          { title: "Time", value: (row) => row.kind, cell: (row) => row.kind },
          { title: "Sources", value: (row) => String(row.same_sources), cell: (row) => (row.same_sources ? "the same" : "changed") },
        ],
      }).node
    );
  for (const [title, names] of [["Only in this run", page.changes.only_here], ["Only in the other run", page.changes.only_there]])
    if (names.length) made.push(element("details", {}, text("summary", `${title}: ${names.length}`), element("ul", {}, names.map((name) => element("li", {}, breakable(name))))));
  return made;
}

const gpuIs = (id) => id === state.gpu;

// Operators: every definition, its shapes, the floors of any GPU, and what was reached where rows are.
let operatorTable = null;

function operators() {
  const filter = element("input", { type: "search", id: "filter", placeholder: "name, type, dtype, solution, author", value: state.filter, oninput: () => { state.filter = filter.value; keepChoices(); apply(); } });
  const found = element("output", { for: "filter" });
  const isMeasured = page.operators.some((operator) => raceOf(operator));
  operatorTable = table({
    id: "operators",
    rows: page.operators.map((operator) => operatorRow(operator)),
    key: (row) => row.operator.name,
    open: (row) => operatorDetail(row),
    columns: operatorColumns(isMeasured),
  });
  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = operatorTable.filter((row) => words.every((word) => row.words.includes(word)));
    found.textContent = `${shown} of ${page.operators.length}`;
  }
  apply();
  const explanation = isMeasured
    ? "S of a row is the median over its shapes (of the fastest solution on each). Shape, floor and time beside it are those of the shape that has this S. * measured under an older protocol only. Open a row for every shape."
    : `Nothing was recorded on ${gpuName(state.gpu)}: floors only, of the shape in the middle of each list. Open a row for every shape.`;
  return [element("div", { class: "tools" }, element("label", {}, "Filter ", filter), found), note(explanation), operatorTable.node];
}

function operatorRow(operator) {
  const race = raceOf(operator), order = race && orderOf(race);
  const middle = order && order.middle !== null ? race.shapes[order.middle] : Math.floor(operator.shapes.length / 2);
  const shape = operator.shapes[middle];
  const standing = standingOf(operator, middle);
  const time = standing && standing.time;
  const words = [operator.name, operator.op_type, ...operator.dtypes, ...(race ? race.solutions : []), ...(race ? order.standings.map((each) => each.author) : [])];
  const share = order && isOfTable(race) ? order.share : null;
  return { operator, race, order, share, shape, floor: shape && shape[SHAPE.floors][gpuPlace()], time: time && time[TIME.time_us], words: words.join(" ").toLowerCase() };
}

// Rows of an older protocol have times, but no S beside those of the newest.
const isOfTable = (race) => race.protocol === page.protocols[race.gpu];

function operatorColumns(isMeasured) {
  const columns = [
    { title: "Operator", value: (row) => row.operator.name, cell: (row) => breakable(row.operator.name) },
    { title: "Type", value: (row) => row.operator.op_type, cell: (row) => breakable(row.operator.op_type) },
    { title: "Importance", align: "right", value: (row) => row.operator.importance, cell: (row) => (row.operator.importance === null ? NOTHING : `${digits(row.operator.importance, 1)}%`), hint: "share of the GPU time in production, as published" },
    { title: "Regime", value: (row) => row.operator.regime, cell: (row) => row.operator.regime || NOTHING, hint: "C more than 10 flop/byte, M fewer, I no arithmetic" },
    { title: "Shapes", align: "right", value: (row) => row.operator.shapes.length, cell: (row) => (row.order ? `${row.order.with_share}/${row.race.shapes.length}` : String(row.operator.shapes.length)), hint: "with an S, of all" },
  ];
  if (isMeasured)
    columns.push(
      { title: "First", value: (row) => row.order && row.order.standings[0].solution, cell: (row) => (row.order ? element("span", { class: "winner" }, breakable(row.order.standings[0].solution)) : NOTHING) },
      { title: "Lead", align: "right", value: (row) => row.order && row.order.lead && row.order.lead.ratio[INTERVAL.value], cell: (row) => (row.order && row.order.lead ? factor(row.order.lead.ratio[INTERVAL.value]) : NOTHING), hint: "the best library's time on each shape over the best of the first one's author, geomean" },
      { title: "S", align: "right", value: (row) => row.share, cell: (row) => shareBar(row.share) },
      { title: "S fair", align: "right", value: (row) => row.order && row.order.fair, cell: (row) => percent(row.order && row.order.fair) }
    );
  columns.push(
    { title: "Shape", value: (row) => row.shape && row.shape[SHAPE.label], cell: (row) => (row.shape ? text("span", numbered(row.shape), { class: "clip", title: row.shape[SHAPE.axes] }) : NOTHING), hint: "its number in the published list, as --workloads '#3' names it; else its size" },
    { title: "Floor", unit: "us", align: "right", value: (row) => row.floor && row.floor[0], cell: (row) => floorCell(row.floor) }
  );
  if (isMeasured) columns.push({ title: "Time", unit: "us", align: "right", value: (row) => row.time, cell: (row) => element("span", { title: row.race ? row.race.protocol : null }, microseconds(row.time), row.race && !isOfTable(row.race) ? text("small", " *") : null) });
  columns.push({ title: "Intensity", unit: "flop/byte", align: "right", value: (row) => row.shape && row.shape[SHAPE.flops_per_byte], cell: (row) => intensity(row.shape && row.shape[SHAPE.flops_per_byte]) });
  return columns;
}

const numbered = (shape) => (shape[SHAPE.shape_id] === null ? shape[SHAPE.label] : `#${shape[SHAPE.shape_id]}`);

const floorCell = (floor) => (floor ? element("span", { title: `set by ${floor[1]}` }, floorUs(floor[0]), text("small", ` ${floor[1][0].toUpperCase()}`)) : text("span", NOTHING, { class: "muted" }));

function operatorDetail({ operator, race }) {
  const made = [element("p", { class: "facts-line" }, element("a", { href: `#${encodeURIComponent(operator.name)}` }, "link"), " · ", operator.description || "no description", ` · ${operator.dtypes.join(", ")}`)];
  if (race) {
    for (const each of racesOf(operator)) {
      const own = orderOf(each);
      made.push(note(`${gpuName(each.gpu)} · ${each.protocol} · ${own.kind} time · ${each.shapes.length} shapes${each.origin ? ` of origin ${each.origin}` : ""} · measured ${days(each.measured_from, each.measured_to)}`));
      if (each === race) made.push(element("div", { class: "side" }, standingsTable(each, own), rooflineOf(operator, each)));
      else made.push(standingsTable(each, own));
    }
    made.push(element("p", {}, element("a", { href: `#race/${encodeURIComponent(operator.name)}` }, "The race, workload by workload")));
  } else made.push(rooflineOf(operator, null));
  made.push(aboutSolutions(race ? orderOf(race).standings.map((each) => each.solution) : solutionsOf(operator)));
  made.push(shapesTable(operator, race));
  return element("div", { class: "detail-body" }, made.filter(Boolean));
}

const solutionsOf = (operator) => Object.values(page.solutions).filter((each) => each.definition === operator.name).map((each) => each.name);

function aboutSolutions(names) {
  const about = names.map((name) => page.solutions[name]).filter(Boolean);
  if (!about.length) return null;
  const lines = about.map((each) => element("div", {}, element("dt", {}, breakable(each.name), ` ${each.author}, ${each.language}`), element("dd", {}, each.description + (each.needs ? ` Needs ${each.needs}.` : ""), sourceOf(each.name))));
  return element("details", {}, text("summary", "What each solution is"), element("dl", { class: "about" }, lines));
}

function standingsTable(race, order) {
  const [raced, others] = [true, false].map((has) => order.standings.filter((row) => race.solutions.includes(row.solution) === has));
  const standings = table({
    caption: `Solutions, baseline ${order.baseline || "none"}`,
    rows: raced,
    columns: [
      { title: "#", align: "right", ascending: true, value: (row) => row.place, cell: (row) => (row.place === null ? NOTHING : String(row.place)) },
      { title: "Solution", value: (row) => row.solution, cell: (row) => breakable(row.solution) },
      { title: "Author", value: (row) => row.author, cell: (row) => row.author },
      { title: "Passed", align: "right", value: (row) => row.passed, cell: (row) => String(row.passed) },
      { title: "Over baseline", align: "right", ascending: true, value: (row) => row.geomean && row.geomean[INTERVAL.value], cell: (row) => (row.solution === order.baseline ? "1 (baseline)" : ratio(row.geomean)) },
      { title: "Total", unit: "ms", align: "right", ascending: true, value: (row) => row.total_us, cell: (row) => milliseconds(row.total_us) },
      { title: "Fastest on", align: "right", value: (row) => row.fastest_on, cell: (row) => String(row.fastest_on) },
    ],
  }).node;
  return element("div", { class: "standings" }, standings, others.length ? note(`Not measured on these shapes: ${others.map((row) => row.solution).join(", ")}`) : null);
}

function shapesTable(operator, race) {
  const rows = operator.shapes.map((shape, place) => ({ shape, place, floor: shape[SHAPE.floors][gpuPlace()], best: null, time: null, ...standingOf(operator, place) }));
  const columns = [
    { title: "Shape", value: (row) => row.shape[SHAPE.label], cell: (row) => breakable(row.shape[SHAPE.label], row.shape[SHAPE.axes]) },
    { title: "#", align: "right", ascending: true, value: (row) => row.shape[SHAPE.shape_id], cell: (row) => (row.shape[SHAPE.shape_id] === null ? NOTHING : String(row.shape[SHAPE.shape_id])), hint: "number in the published list" },
    { title: "Origin", value: (row) => row.shape[SHAPE.origin], cell: (row) => row.shape[SHAPE.origin] || NOTHING },
    { title: "Intensity", unit: "flop/byte", align: "right", value: (row) => row.shape[SHAPE.flops_per_byte], cell: (row) => intensity(row.shape[SHAPE.flops_per_byte]) },
    { title: "Floor", unit: "us", align: "right", value: (row) => row.floor && row.floor[0], cell: (row) => floorCell(row.floor) },
  ];
  if (race)
    columns.push(
      { title: "Fastest", value: (row) => (row.best === null ? null : row.race.solutions[row.best]), cell: (row) => (row.best === null ? NOTHING : breakable(row.race.solutions[row.best])) },
      { title: "Time", unit: "us", align: "right", value: (row) => row.time && row.time[TIME.time_us], cell: (row) => microseconds(row.time && row.time[TIME.time_us]) },
      { title: "S", align: "right", value: (row) => row.time && row.time[TIME.share], cell: (row) => shareBar(row.time && row.time[TIME.share], row.time && row.time[TIME.fair]), hint: "bar: S; tick: S fair" },
      { title: "S fair", align: "right", value: (row) => row.time && row.time[TIME.fair], cell: (row) => percent(row.time && row.time[TIME.fair]) }
    );
  return table({ rows, columns, key: (row) => row.shape[SHAPE.uuid], open: race ? (row) => (row.race ? solutionsOfShape(row.race, row.order, row.at) : empty("Nobody measured this shape here.")) : undefined }).node;
}

// All solutions on one shape: the three times, and what each is of the floor.
function solutionsOfShape(race, order, at) {
  const rows = race.solutions.map((name, place) => ({ name, cell: race.cells[at][place] }));
  const timed = (kind) => (each) => timeOf(each.cell, kind) && timeOf(each.cell, kind)[TIME.time_us];
  const own = (each) => timeOf(each.cell, order.kind);
  return table({
    caption: `Times in us; S and ratio by ${order.kind} time`,
    rows,
    columns: [
      { title: "Solution", value: (each) => each.name, cell: (each) => breakable(each.name) },
      ...page.kinds.map((kind) => ({ title: kind, align: "right", ascending: true, value: timed(kind), cell: (each) => microseconds(timed(kind)(each)) })),
      { title: "Over baseline", align: "right", ascending: true, value: (each) => own(each) && own(each)[TIME.ratio] && own(each)[TIME.ratio][INTERVAL.value], cell: (each) => ratio(own(each) && own(each)[TIME.ratio]) },
      { title: "S", align: "right", value: (each) => own(each) && own(each)[TIME.share], cell: (each) => shareBar(own(each) && own(each)[TIME.share], own(each) && own(each)[TIME.fair]) },
      { title: "Host", unit: "us", align: "right", ascending: true, value: (each) => each.cell[CELL.host_us], cell: (each) => microseconds(each.cell[CELL.host_us]) },
      { title: "Status", value: (each) => each.cell[CELL.status], cell: (each) => statusOf(each.cell) },
    ],
  }).node;
}

function statusOf(cell) {
  const status = cell[CELL.status], marks = cell[CELL.marks];
  const is = status === "passed" ? (marks.length ? "doubt" : "good") : status === "not measured" ? "muted" : "bad";
  return text("span", [status, ...marks].join(", "), { class: is, title: cell[CELL.message] || null });
}

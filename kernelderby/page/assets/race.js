// Race: a workload a row, a solution a lane on one logarithmic axis of time, with the floor drawn.
let raceChosen = null; // [operator's name, place in its races]
const raceHidden = new Set(); // names of solutions whose lanes the reader took away
const MANY_LANES = 4;
const FAR_FLOOR = 3;

function race() {
  const raced = page.operators.filter((operator) => raceOf(operator));
  if (!raced.length) return [empty(`Nothing was recorded on ${gpuName(state.gpu)}.`)];
  const mostRivals = raced.reduce((most, each) => (raceOf(each).solutions.length > raceOf(most).solutions.length ? each : most));
  const operator = raced.find((each) => raceChosen && each.name === raceChosen[0]) || mostRivals;
  const all = operator.races[state.gpu];
  const place = all[raceChosen && raceChosen[0] === operator.name && raceChosen[1] < all.length ? raceChosen[1] : 0];
  const chosen = page.races[place];
  const order = orderOf(chosen);
  const again = (name, at) => {
    raceChosen = [name, at];
    keepChoices(`race/${encodeURIComponent(name)}`);
    show("race", true);
  };
  const tools = element(
    "div",
    { class: "tools" },
    selector("Operator", raced.map((each) => [each.name, each.name]), operator.name, (name) => again(name, 0)),
    selector("Measured", all.map((each, at) => [String(at), `${page.races[each].protocol}${page.races[each].origin ? `, ${page.races[each].origin}` : ""}, ${days(page.races[each].measured_from, page.races[each].measured_to)}`]), String(all.indexOf(place)), (at) => again(operator.name, Number(at)))
  );
  const lanes = raceLanes(operator, chosen, order, place);
  return [
    tools,
    note(`${gpuName(chosen.gpu)} · ${order.kind} time, us, median · whisker: 95 % interval of the ratio to ${order.baseline || "the baseline"} · dashed: the floor`),
    laneChoice(chosen, () => again(operator.name, all.indexOf(place))),
    lanes.node,
    order.notes.length ? element("details", {}, text("summary", `Notes: ${order.notes.length}`), element("ul", {}, order.notes.map((each) => text("li", each)))) : null,
  ];
}

// The legend, whose entries take a lane away and bring it back. The axis holds the lanes that are left.
function laneChoice(chosen, again) {
  const pick = (name, at) =>
    element(
      "button",
      {
        type: "button",
        class: "lane-choice",
        "aria-pressed": String(!raceHidden.has(name)),
        title: raceHidden.has(name) ? "show this lane" : "take this lane away",
        onclick: () => {
          if (!raceHidden.delete(name)) raceHidden.add(name);
          again();
        },
      },
      text("span", look(at).mark, { class: "mark", style: { color: look(at).color }, "aria-hidden": "true" }),
      " ",
      breakable(name)
    );
  return element("ul", { class: "legend stays" }, chosen.solutions.map((name, at) => element("li", {}, pick(name, at))));
}

const lanesOf = (chosen) => [...chosen.solutions.keys()].filter((at) => !raceHidden.has(chosen.solutions[at]));

function raceLanes(operator, chosen, order, place) {
  const values = [];
  chosen.cells.forEach((cells, at) => {
    for (const solution of lanesOf(chosen)) {
      const time = timeOf(cells[solution], order.kind);
      if (time) values.push(time[TIME.time_us]);
    }
  });
  // A floor far below every time would press the times together: it stands at the left edge then, with an arrow.
  const fastest = Math.min(...values);
  chosen.shapes.forEach((shape) => {
    const floor = operator.shapes[shape][SHAPE.floors][gpuPlace()];
    if (floor && floor[0] > fastest / FAR_FLOOR) values.push(floor[0]);
  });
  const axis = logAxis(values);
  const list = element("ol", { class: lanesOf(chosen).length > MANY_LANES ? "lanes many" : "lanes" });
  list.append(element("li", { class: "axis", "aria-hidden": "true" }, element("span"), axisTicks(axis)));
  chosen.shapes.forEach((shape, at) => list.append(raceRow(operator.shapes[shape], at, chosen, order, axis, place)));
  return { node: list };
}

function axisTicks(axis) {
  return element("div", { class: "lane-area ticks" }, axis.ticks.map((tick) => element("span", { class: "tick", style: { left: parts(axis.at(tick)) } }, floorUs(tick))));
}

function raceRow(shape, at, chosen, order, axis, place) {
  const floor = shape[SHAPE.floors][gpuPlace()];
  const area = element("div", { class: "lane-area" }, axis.ticks.map((tick) => element("i", { class: "grid", style: { left: parts(axis.at(tick)) } })));
  if (floor) area.append(element("i", { class: floor[0] < axis.low ? "floor beyond" : "floor", style: { left: parts(Math.max(0, axis.at(floor[0]))) }, title: `floor ${floorUs(floor[0])} us, ${floor[1]}` }));
  for (const solution of lanesOf(chosen)) area.append(lane(chosen, at, solution, order, axis));
  const detail = element("div", { class: "race-detail", hidden: true });
  const button = element(
    "button",
    {
      type: "button",
      class: "opener",
      "aria-expanded": "false",
      onclick: () => {
        const isOpen = button.getAttribute("aria-expanded") !== "true";
        button.setAttribute("aria-expanded", String(isOpen));
        if (isOpen && !detail.childNodes.length) detail.append(raceDetail(chosen, at, order, place));
        detail.hidden = !isOpen;
      },
    },
    breakable(shape[SHAPE.label], shape[SHAPE.axes])
  );
  const best = order.rows[at][ROW.fastest];
  const says = best === null ? "nothing passed" : `${chosen.solutions[best]} ${microseconds(timeOf(chosen.cells[at][best], order.kind)[TIME.time_us])} us`;
  const rivals = chosen.solutions.map((name, solution) => [name, timeOf(chosen.cells[at][solution], order.kind)]).filter(([, time], solution) => time && solution !== best).map(([name, time]) => [name, time[TIME.time_us]]).sort((one, other) => one[1] - other[1]);
  const others = rivals.map(([name, us]) => `${name} ${microseconds(us)}`).join(", ");
  const head = element("div", { class: "lane-head" }, button, text("small", says, { class: "muted" }), rivals.length ? text("small", others, { class: "muted rivals", title: others }) : null);
  return element("li", { "data-key": shape[SHAPE.uuid] }, head, area, detail);
}

function lane(chosen, at, solution, order, axis) {
  const cell = chosen.cells[at][solution], time = timeOf(cell, order.kind), { color, mark } = look(solution);
  const made = element("div", { class: "lane" });
  if (!time) {
    const status = cell[CELL.status] === "passed" ? `no ${order.kind} time` : cell[CELL.status];
    if (status !== "not measured") made.append(text("span", `${chosen.solutions[solution]}: ${status}`, { class: "lane-status" }));
    return made;
  }
  const [low, high] = [time[TIME.low_us], time[TIME.high_us]];
  if (low !== null) {
    const [from, to] = [axis.at(low), axis.at(high)];
    made.append(element("i", { class: "whisker", style: { left: parts(from), width: parts(to - from), background: color } }));
  }
  const words = `${chosen.solutions[solution]}: ${microseconds(time[TIME.time_us])} us, S ${percent(time[TIME.share])}`;
  made.append(element("span", { class: "point", role: "img", "aria-label": words, title: words, "data-solution": chosen.solutions[solution], "data-value": time[TIME.time_us], style: { left: parts(axis.at(time[TIME.time_us])), color } }, mark));
  return made;
}

// What a row rests on: every raw sample, and the row's own facts.
function raceDetail(chosen, at, order, place) {
  const wait = page.has_samples ? "Unpacking the samples …" : "A page of this many rows leaves raw samples out; they are in the files under traces/.";
  const samples = element("div", { class: "samples" }, text("p", wait, { class: "note" }));
  if (page.has_samples) samplesOf(place).then((all) => samples.replaceChildren(sampleStrips(chosen, all[at], order.kind)));
  const rows = chosen.solutions.map((name, solution) => ({ name, cell: chosen.cells[at][solution] })).filter((row) => row.cell[CELL.status] !== "not measured");
  const facts = table({
    caption: "The rows",
    rows,
    columns: [
      { title: "Solution", value: (row) => row.name, cell: (row) => breakable(row.name) },
      { title: "Status", value: (row) => row.cell[CELL.status], cell: (row) => statusOf(row.cell) },
      ...page.kinds.map((kind) => ({ title: kind, unit: "us", align: "right", ascending: true, value: (row) => timeOf(row.cell, kind) && timeOf(row.cell, kind)[TIME.time_us], cell: (row) => microseconds(timeOf(row.cell, kind) && timeOf(row.cell, kind)[TIME.time_us]) })),
      { title: "Host", unit: "us", align: "right", value: (row) => row.cell[CELL.host_us], cell: (row) => microseconds(row.cell[CELL.host_us]) },
      { title: "Wall", unit: "us", align: "right", value: (row) => row.cell[CELL.wall_us], cell: (row) => microseconds(row.cell[CELL.wall_us]) },
      { title: "Matched", align: "right", value: (row) => row.cell[CELL.matched_ratio], cell: (row) => or((value) => general(value, 6))(row.cell[CELL.matched_ratio]), hint: "smallest share of elements within a tolerance" },
      { title: "Error norm", align: "right", value: (row) => row.cell[CELL.error_norm], cell: (row) => or((value) => general(value, 3))(row.cell[CELL.error_norm]) },
      { title: "Hash", value: (row) => row.cell[CELL.hash], cell: (row) => text("code", row.cell[CELL.hash] || NOTHING) },
      { title: "Clocks", value: (row) => row.cell[CELL.clocks], cell: (row) => row.cell[CELL.clocks] || NOTHING },
      { title: "When", value: (row) => row.cell[CELL.timestamp], cell: (row) => row.cell[CELL.timestamp].replace("T", " ").slice(0, 19) },
    ],
  }).node;
  const used = [...new Set(rows.map((row) => row.cell[CELL.environment]))].filter((each) => each >= 0);
  const environments = used.map((each) => element("details", {}, text("summary", `Environment${used.length > 1 ? ` ${each}` : ""}`), environmentList(page.environments[each])));
  return element("div", {}, note(`${chosen.protocol} · ${gpuName(chosen.gpu)}`), samples, facts, ...environments);
}

function environmentList(environment) {
  const lines = Object.entries(environment).map(([name, value]) => [name, value && typeof value === "object" ? Object.entries(value).map(([key, each]) => `${key} ${each}`).join(", ") : String(value)]);
  return element("dl", { class: "environment" }, lines.map(([name, value]) => element("div", {}, text("dt", name), text("dd", value))));
}

function sampleStrips(chosen, cells, kind) {
  const rows = chosen.solutions.map((name, place) => ({ name, place, rounds: (cells[place] || {})[kind] })).filter((row) => row.rounds);
  if (!rows.length) return empty(`The rows hold no samples of ${kind} time.`);
  const axis = logAxis(rows.flatMap((row) => row.rounds.flat()));
  const strip = (row) => {
    const { color } = look(row.place);
    const area = element("div", { class: "lane-area strip" });
    row.rounds.forEach((round, at) => round.forEach((value) => area.append(element("i", { class: "sample", style: { left: parts(axis.at(value)), top: `${(100 * (at + 0.5)) / row.rounds.length}%`, background: color } }))));
    const count = row.rounds.reduce((sum, round) => sum + round.length, 0);
    return element("li", {}, element("div", { class: "lane-head" }, breakable(row.name), text("small", `${row.rounds.length} rounds, ${count} samples`, { class: "muted" })), area);
  };
  return element("ol", { class: "lanes strips", "aria-label": `Samples of ${kind} time, us` }, element("li", { class: "axis", "aria-hidden": "true" }, text("span", `${kind} time, us`), axisTicks(axis)), rows.map(strip));
}

// Timeline: what ran when, a lane a stream, a colour a role. All times are ns from the recording's first operation on.
let timelineChosen = 0;
const NAMED_ROLES = COLORS - 1; // the others share the last colour: eight of them nobody tells apart

function timeline() {
  if (!page.timelines.length) return [empty("No recording with events lies under profiles/ or reports/profiles/ (sums have no order): make one with `derby profile run`.")];
  const chosen = page.timelines[Math.min(timelineChosen, page.timelines.length - 1)];
  const choose = (value) => {
    timelineChosen = Number(value);
    show("timeline", true);
  };
  return [
    element("div", { class: "tools" }, selector("Recording", page.timelines.map((each, place) => [String(place), each.title]), String(page.timelines.indexOf(chosen)), choose)),
    note(`${chosen.gpu} · ${chosen.form} · ${chosen.operations} operations in ${duration(chosen.wall_ns)}`),
    chosen.listed < chosen.operations ? note(`Drawn are ${chosen.listed} of them, in the middle of the recording: from ${duration(chosen.part[0])} to ${duration(chosen.part[1])}.`) : null,
    chosen.hidden_lanes ? note(`${chosen.hidden_lanes} streams in which less ran are left out.`) : null,
    legend(chosen.roles.map(([role, operations, time]) => [`${role}: ${operations} operations, ${microseconds(time)} us`, roleLook(role)])),
    ...timelineView(chosen),
  ];
}

// One colour a role on the whole page: those that take most time have their own.
let roleOrder = null;
function roleLook(role) {
  if (roleOrder === null) {
    const times = new Map();
    for (const each of page.timelines) for (const [name, , time] of each.roles) times.set(name, (times.get(name) || 0) + time);
    roleOrder = [...times].sort((one, other) => other[1] - one[1]).map(([name]) => name).filter((name) => !["unknown", "memset"].includes(name));
  }
  const place = roleOrder.indexOf(role);
  if (place < 0) return { color: "var(--rest)", on: "var(--ink)", mark: "□" };
  return place < NAMED_ROLES ? look(place) : { ...look(NAMED_ROLES), mark: MARKS[place % MARKS.length] };
}

// 12.5 us, 1.204 ms, 3.2 s: a moment or a stretch. step: where given, the last digit that tells two ticks apart.
function duration(ns, step) {
  const [unit, name] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"]].find(([size]) => Math.abs(ns) >= size) || [1e3, "us"];
  const count = step ? Math.max(0, Math.ceil(Math.log10(unit / step) - 1e-9)) : 3;
  return `${general(Number(digits(ns / unit, Math.min(count, 9))), 12)} ${name}`;
}

function timelineView(chosen) {
  const [from, to] = chosen.part;
  const whole = { from, length: Math.max(1, to - from) };
  let view = { ...whole };
  const told = element("output", { class: "timeline-told", "aria-live": "polite" }, "Pick an operation to read it here.");
  const lanes = element("ul", { class: "tl-lanes" });
  const windows = [["", "everything drawn"], ...chosen.invocations.map(([name], place) => [String(place), name])];
  const select = selector("Show", windows, "", (value) => {
    if (value === "") return move(whole);
    const [, start, end] = chosen.invocations[Number(value)];
    const margin = 0.04 * (end - start);
    move({ from: start - margin, length: end - start + 2 * margin });
  });
  function move(next) {
    const length = Math.min(whole.length, Math.max(100, next.length));
    view = { from: Math.min(Math.max(next.from, from), from + whole.length - length), length };
    lanes.replaceChildren(axisOf(view), ...chosen.lanes.map((lane) => laneOf(chosen, lane, view)));
  }
  const zoom = (times) => move({ from: view.from + (view.length * (1 - times)) / 2, length: view.length * times });
  const step = (part) => move({ from: view.from + part * view.length, length: view.length });
  const button = (words, title, act) => element("button", { type: "button", "aria-label": title, title, onclick: act }, words);
  lanes.addEventListener("click", (event) => {
    const box = event.target.closest(".tl-box");
    if (box) told.textContent = box.title;
  });
  move(whole);
  return [
    element("div", { class: "tools tl-tools" }, chosen.invocations.length ? select : null, button("+", "Nearer", () => zoom(0.5)), button("−", "Further away", () => zoom(2)), button("◂", "Earlier", () => step(-0.5)), button("▸", "Later", () => step(0.5)), button("All", "Everything drawn", () => move(whole))),
    lanes,
    element("p", {}, told),
  ];
}

function axisOf(view) {
  const area = element("div", { class: "lane-area" });
  for (const tick of ticksOf(view)) {
    const place = (tick.at - view.from) / view.length;
    // The first one's words would be cut at the edge.
    area.append(text("span", duration(tick.at, tick.step), { class: "tick", style: { left: parts(place), transform: place < 0.04 ? "none" : null } }));
  }
  return element("li", { class: "axis" }, element("span", { class: "lane-head" }, text("small", "from the first operation on")), area);
}

function ticksOf(view) {
  const rough = view.length / 6, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
  const found = [];
  // None in the last stretch: its words would stand over the edge.
  for (let number = Math.ceil(view.from / step); number * step <= view.from + 0.97 * view.length; number += 1) found.push({ at: number * step, step });
  return found;
}

function laneOf(chosen, lane, view) {
  const area = element("div", { class: "lane-area tl-area", style: { height: `${0.4 + 1.5 * Math.max(1, lane.rows)}rem` }, role: "img", "aria-label": `${lane.gpu}, ${lane.stream}: ${lane.operations} operations, busy ${microseconds(lane.busy_us)} us` });
  for (const tick of ticksOf(view)) area.append(element("span", { class: "grid", style: { left: parts((tick.at - view.from) / view.length) } }));
  for (let place = 0; place < lane.spans.length; place += 4) {
    const [name, start, length, row] = lane.spans.slice(place, place + 4);
    if (start + length < view.from || start > view.from + view.length) continue;
    area.append(boxOf(chosen.names[name], start, length, row, view));
  }
  const head = element("span", { class: "lane-head" }, element("span", { class: "name" }, `${lane.gpu}, ${lane.stream}`), text("small", `${lane.operations} operations, busy ${microseconds(lane.busy_us)} us`));
  return element("li", {}, head, area);
}

// Cut at the edges of what is in view, so that its name stays readable.
function boxOf([short, name, role], start, length, row, view) {
  const left = Math.max(0, (start - view.from) / view.length), right = Math.min(1, (start + length - view.from) / view.length);
  const { color, on } = roleLook(role);
  const words = `${role}: ${name}, ${duration(length)}, from ${duration(start)} to ${duration(start + length)}`;
  const box = element("i", { class: "tl-box", title: words, "data-role": role, "data-start": start, "data-length": length, style: { left: parts(left), width: parts(right - left), top: `${0.2 + 1.5 * row}rem`, background: color } });
  if (right - left > 0.045) box.append(text("span", short, { class: "stack-name", style: { color: on } }));
  return box;
}

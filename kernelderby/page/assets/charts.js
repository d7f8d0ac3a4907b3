// Places on axes and marks. Colours are the Okabe-Ito palette, with a shape each, so that colour is never alone.
const MARKS = ["●", "■", "▲", "◆", "▼", "★", "✚", "⬟"];
const COLORS = 8;
const look = (place) => ({ color: `var(--c${place % COLORS})`, on: `var(--o${place % COLORS})`, mark: MARKS[Math.floor(place / COLORS + place) % MARKS.length] });

// Of positive values on a logarithmic axis: value -> part of the axis, and its ticks.
function logAxis(values) {
  const usable = values.filter((value) => value > 0);
  let low = usable.length ? Math.min(...usable) : 1, high = usable.length ? Math.max(...usable) : 10;
  low *= 0.9;
  high *= 1.1;
  const span = Math.log(high / low);
  const at = (value) => Math.log(value / low) / span;
  const fine = [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.2, 2.5, 2.8, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9];
  const steps = [[1000, [1]], [40, [1, 3]], [9, [1, 2, 5]], [2, [1, 1.5, 2, 3, 4, 5, 7]], [0, fine]].find(([from]) => span > Math.log(from))[1];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
    for (const step of steps) {
      const tick = Number((step * 10 ** power).toPrecision(3));
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  return { low, high, at, ticks };
}

const parts = (share) => `${(100 * share).toFixed(2)}%`;

// A share of 1 as a bar with its number beside it.
function shareBar(share, fair) {
  if (share === null || share === undefined) return text("span", NOTHING, { class: "muted" });
  const bar = element("span", { class: "bar-track", "aria-hidden": "true" }, element("span", { class: "bar-fill", style: { width: parts(Math.min(1, share)) } }));
  if (fair !== null && fair !== undefined) bar.append(element("span", { class: "bar-tick", style: { left: parts(fair) }, title: `S fair ${shortPercent(fair)}` }));
  return element("span", { class: "share" }, bar, text("span", percent(share), { class: "number" }));
}

function legend(entries) {
  return element(
    "ul",
    { class: "legend" },
    entries.map(([name, each, what]) => element("li", {}, text("span", each.mark, { class: "mark", style: { color: each.color }, "aria-hidden": "true" }), " ", what ? [element("b", {}, breakable(name)), ` ${what}`] : breakable(name)))
  );
}

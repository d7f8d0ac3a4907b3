// The roofline of one GPU: what light allows at each flop per byte, and what was reached under it.
//
// Per dtype: bandwidth x intensity up to the dtype's peak. A shape stands at its intensity and at S x the roof, so its
// distance to the roof is what S says. Where there is no arithmetic there is no intensity: those stand in a column of
// their own at the left, by S of the bandwidth.
function rooflineChart(gpu, points, { width = 760, height = 380, label }) {
  const left = 58, right = 14, top = 14, bottom = 40;
  const peaks = Object.entries(gpu.flops_per_second).filter(([dtype]) => points.some((point) => point.dtypes.includes(dtype)));
  const bandwidth = gpu.memory_bytes_per_second;
  const shown = points.filter((point) => point.intensity > 0 && point.flops > 0);
  if (!bandwidth || !peaks.length || !shown.length) return null;
  const x = logAxis([...shown.map((point) => point.intensity), ...peaks.map(([, peak]) => peak / bandwidth)]);
  const highest = Math.max(...peaks.map(([, peak]) => peak));
  const y = logAxis([...shown.map((point) => point.flops), highest]);
  const across = (value) => left + x.at(value) * (width - left - right);
  const up = (value) => height - bottom - y.at(value) * (height - top - bottom);
  const grid = x.ticks.map((tick) => drawn("line", { x1: across(tick), x2: across(tick), y1: top, y2: height - bottom, class: "grid-line" }));
  const named = [
    ...x.ticks.map((tick) => drawn("text", { x: across(tick), y: height - bottom + 15, "text-anchor": "middle", class: "axis-text" }, intensity(tick))),
    ...y.ticks.filter((tick) => Number.isInteger(Math.log10(tick)) || y.ticks.length < 8).map((tick) => drawn("text", { x: left - 6, y: up(tick) + 4, "text-anchor": "end", class: "axis-text" }, flopsText(tick))),
    drawn("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle", class: "axis-text" }, "flop / byte"),
    drawn("text", { x: left, y: top - 3, class: "axis-text" }, "flop/s"),
  ];
  const roofs = peaks.map(([dtype, peak], place) => roof(dtype, peak, place, bandwidth, x, y, across, up));
  const dots = shown.map((point) => pointOf(point, across, up));
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": label }, drawn("clipPath", { id: `plot-${width}-${height}` }, drawn("rect", { x: left, y: top - 4, width: width - left - right, height: height - top - bottom + 4 })), grid, roofs, dots, named);
  return svg;
}

const flopsText = (value) => (value >= 1e15 ? `${general(value / 1e15, 3)} P` : value >= 1e12 ? `${general(value / 1e12, 3)} T` : value >= 1e9 ? `${general(value / 1e9, 3)} G` : `${general(value / 1e6, 3)} M`);

function roof(dtype, peak, place, bandwidth, x, y, across, up) {
  const ridge = peak / bandwidth;
  const start = Math.max(x.low, y.low / bandwidth);
  const line = ridge > start ? [[start, start * bandwidth], [ridge, peak], [x.high, peak]] : [[start, peak], [x.high, peak]];
  const path = line.filter(([value]) => value <= x.high).map(([value, height]) => `${across(value).toFixed(1)},${up(height).toFixed(1)}`).join(" ");
  return drawn("g", {}, drawn("polyline", { points: path, class: "roof" }), drawn("text", { x: across(x.high) - 4, y: up(peak) - 4 + 12 * place * 0, "text-anchor": "end", class: "axis-text" }, dtype));
}

function pointOf(point, across, up) {
  const made = drawn("circle", { cx: across(point.intensity).toFixed(1), cy: up(point.flops).toFixed(1), r: point.radius || 4, fill: point.color, class: "dot", tabindex: point.href ? 0 : -1 }, drawn("title", {}, point.title));
  if (!point.href) return made;
  return drawn("a", { href: point.href, "aria-label": point.title }, made);
}

// The shapes of one operator: the fastest solution on each.
function rooflineOf(operator, race, order) {
  const gpu = page.gpus[gpuPlace()];
  const points = shapePoints(operator, race, order);
  const chart = gpu && rooflineChart(gpu, points, { width: 560, height: 300, label: `Roofline of ${gpu.name} with the shapes of ${operator.name}` });
  if (!chart) return operator.shapes.some((shape) => shape[SHAPE.flops]) || !operator.shapes.length ? null : note("No arithmetic: a roofline has no place for it, S is of the bandwidth.");
  return element("figure", {}, chart, text("figcaption", race ? "Roofline: a dot a shape, its fastest solution. The roof is the vendor's peak." : "Roofline: a ring a shape, at its floor.", { class: "note" }));
}

function shapePoints(operator, race, order) {
  return operator.shapes
    .map((shape, place) => {
      const floor = shape[SHAPE.floors][gpuPlace()];
      if (!floor || !shape[SHAPE.flops]) return null;
      const best = race ? order.rows[place][ROW.fastest] : null;
      const time = best === null ? null : timeOf(race.cells[place][best], order.kind);
      if (race && !time) return null;
      const reached = time ? time[TIME.flops_per_second] : shape[SHAPE.floor_flops][gpuPlace()];
      const says = time ? `${race.solutions[best]} ${microseconds(time[TIME.time_us])} us, S ${percent(time[TIME.share])}` : `floor ${floorUs(floor[0])} us`;
      return { dtypes: operator.dtypes, intensity: shape[SHAPE.flops_per_byte], flops: reached, color: time ? "var(--c0)" : "none", title: `${operator.name}, ${shape[SHAPE.label]}: ${says}` };
    })
    .filter(Boolean);
}

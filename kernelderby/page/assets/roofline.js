// The roofline of one GPU: what light allows at each flop per byte, and what was reached under it.
//
// Per dtype: bandwidth x intensity up to the dtype's peak. A shape stands at its intensity and at S x the roof, so its
// distance to the roof is what S says. Where there is no arithmetic there is no intensity: those stand in a column of
// their own at the left, by S of the bandwidth.
function rooflineChart(gpu, points, { width = 760, height = 380, label }) {
  const left = 58, right = 14, top = 14, bottom = 40;
  const peaks = roofs(gpu, points);
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
  const lines = peaks.map(([dtype, peak], place) => roof(dtype, peak, bandwidth, x, y, across, up, isBelow(peaks, place, up)));
  const dots = shown.map((point) => pointOf(point, across, up));
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: points.some((point) => point.href) ? "group" : "img", "aria-label": label }, drawn("clipPath", { id: `plot-${width}-${height}` }, drawn("rect", { x: left, y: top - 4, width: width - left - right, height: height - top - bottom + 4 })), grid, lines, dots, named);
  return svg;
}

const flopsText = (value) => (value >= 1e15 ? `${general(value / 1e15, 3)} P` : value >= 1e12 ? `${general(value / 1e12, 3)} T` : value >= 1e9 ? `${general(value / 1e9, 3)} G` : `${general(value / 1e6, 3)} M`);

// [dtypes, peak] of the points' dtypes; those with one peak share a line.
function roofs(gpu, points) {
  const used = Object.entries(gpu.flops_per_second).filter(([dtype]) => points.some((point) => point.dtypes.includes(dtype)));
  const found = new Map();
  for (const [dtype, peak] of used) found.set(peak, [...(found.get(peak) || []), dtype]);
  return [...found].map(([peak, dtypes]) => [dtypes.join(", "), peak]);
}

// A roof's name stands above its line, or below it where the next roof is so near that two names would meet.
const isBelow = (peaks, place, up) => peaks.some(([, other], at) => at !== place && up(peaks[place][1]) > up(other) && up(peaks[place][1]) - up(other) < 14);

function roof(dtype, peak, bandwidth, x, y, across, up, below) {
  const ridge = peak / bandwidth;
  const start = Math.max(x.low, y.low / bandwidth);
  const line = ridge > start ? [[start, start * bandwidth], [ridge, peak], [x.high, peak]] : [[start, peak], [x.high, peak]];
  const path = line.filter(([value]) => value <= x.high).map(([value, height]) => `${across(value).toFixed(1)},${up(height).toFixed(1)}`).join(" ");
  return drawn("g", {}, drawn("polyline", { points: path, class: "roof" }), drawn("text", { x: across(x.high) - 4, y: up(peak) + (below ? 12 : -4), "text-anchor": "end", class: "axis-text" }, dtype));
}

function pointOf(point, across, up) {
  const [x, y] = [across(point.intensity).toFixed(1), up(point.flops).toFixed(1)];
  const made = point.mark
    ? drawn("text", { x, y, class: "glyph", fill: point.color }, point.mark, drawn("title", {}, point.title))
    : drawn("circle", { cx: x, cy: y, r: 4, fill: point.color, class: "dot" }, drawn("title", {}, point.title));
  if (!point.href) return made;
  return drawn("a", { href: point.href, "aria-label": point.title }, made);
}

// The shapes of one operator: the fastest solution on each.
function rooflineOf(operator, race) {
  const gpu = page.gpus[gpuPlace()];
  const points = shapePoints(operator, Boolean(race));
  const chart = gpu && rooflineChart(gpu, points, { width: 560, height: 300, label: `Roofline of ${gpu.name} with the shapes of ${operator.name}` });
  if (!chart) return operator.shapes.some((shape) => shape[SHAPE.flops]) || !operator.shapes.length ? null : note("No arithmetic: a roofline has no place for it, S is of the bandwidth.");
  return element("figure", {}, chart, text("figcaption", race ? "Roofline: a dot a shape, its fastest solution. The roof is the vendor's peak." : "Roofline: a ring a shape, at its floor.", { class: "note" }));
}

function shapePoints(operator, isMeasured) {
  return operator.shapes
    .map((shape, place) => {
      const floor = shape[SHAPE.floors][gpuPlace()];
      if (!floor || !shape[SHAPE.flops]) return null;
      const standing = isMeasured ? standingOf(operator, place) : null, time = standing && standing.time;
      if (isMeasured && !time) return null;
      const reached = time ? time[TIME.flops_per_second] : shape[SHAPE.floor_flops][gpuPlace()];
      const says = time ? `${standing.race.solutions[standing.best]} ${microseconds(time[TIME.time_us])} us, S ${percent(time[TIME.share])}` : `floor ${floorUs(floor[0])} us`;
      return { dtypes: operator.dtypes, intensity: shape[SHAPE.flops_per_byte], flops: reached, color: time ? "var(--c0)" : "none", title: `${operator.name}, ${shape[SHAPE.label]}: ${says}` };
    })
    .filter(Boolean);
}

// The section: every shape of every operator, and what the GPU's peaks are.
let rooflineChosen = "";

function roofline() {
  const gpu = page.gpus[gpuPlace()];
  if (!gpu || !gpu.memory_bytes_per_second) return [empty(`The peaks of ${gpu ? gpu.name : "this GPU"} are unknown: describe it under kernelderby/hardware/gpus/.`)];
  const types = [...new Set(page.operators.map((operator) => operator.op_type))].sort();
  const isMeasured = page.operators.some((operator) => raceOf(operator));
  const chosen = page.operators.filter((operator) => !rooflineChosen || operator.op_type === rooflineChosen);
  const points = chosen.flatMap((operator) => {
    const race = raceOf(operator);
    if (isMeasured && !race) return [];
    const { color, mark } = look(types.indexOf(operator.op_type));
    return shapePoints(operator, Boolean(race)).map((point) => ({ ...point, color, mark, href: `#${encodeURIComponent(operator.name)}` }));
  });
  const width = Math.max(340, Math.min(1100, content.clientWidth - 40));
  const chart = rooflineChart(gpu, points, { width, height: Math.max(320, Math.round(width * 0.5)), label: `Roofline of ${gpu.name}: ${points.length} shapes` });
  const shapes = chosen.reduce((sum, operator) => sum + operator.shapes.length, 0);
  const choose = (value) => {
    rooflineChosen = value;
    show("roofline", true);
  };
  return [
    element("div", { class: "tools" }, selector("Operators", [["", "all types"], ...types.map((type) => [type, type])], rooflineChosen, choose)),
    note(`${points.length} of ${shapes} shapes: ${isMeasured ? "the fastest solution on each that has a time" : "their floors, as nothing was recorded on this GPU"}. Shapes without arithmetic have no place here. The roofs are the vendor's dense peaks by dtype under the bandwidth.`),
    legend(types.filter((type) => !rooflineChosen || type === rooflineChosen).map((type) => [type, look(types.indexOf(type))])),
    chart ? element("figure", {}, chart) : empty("No shape with arithmetic and a time here."),
    text("h2", "Peaks and ceilings"),
    note(`${gpu.source}${gpu.date ? `, ${gpu.date}` : ""}. Ceilings: what was reached on one such GPU.`),
    peaksTable(gpu),
  ];
}

function peaksTable(gpu) {
  const rows = [["memory", gpu.memory_bytes_per_second, gpu.ceiling_bytes_per_second], ...Object.keys(gpu.flops_per_second).map((dtype) => [dtype, gpu.flops_per_second[dtype], gpu.ceiling_flops_per_second[dtype]])];
  const amount = (name, value) => (value === null || value === undefined ? NOTHING : name === "memory" ? `${general(value / 1e12, 4)} TB/s` : `${general(value / 1e12, 4)} TFLOP/s`);
  return table({
    rows,
    columns: [
      { title: "What", value: (row) => row[0], cell: (row) => row[0] },
      { title: "Peak", align: "right", value: (row) => row[1], cell: (row) => amount(row[0], row[1]) },
      { title: "Ceiling", align: "right", value: (row) => row[2], cell: (row) => amount(row[0], row[2]) },
    ],
  }).node;
}

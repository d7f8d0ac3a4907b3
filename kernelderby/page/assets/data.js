// The model, and the places of what is an array in it. Nothing here or below computes a number that is shown.
if (!window.DecompressionStream) {
  document.getElementById("content").textContent = "This browser is too old to unpack the page (it lacks DecompressionStream): take one of 2023 or newer.";
  return;
}
const page = await unpacked("model");
const places = (name) => Object.fromEntries(page.fields[name].map((field, place) => [field, place]));
const INTERVAL = places("ShownInterval"), TIME = places("ShownTime"), CELL = places("ShownCell");
const ROW = places("ShownRow"), SHAPE = places("ShownShape");
const KIND = Object.fromEntries(page.kinds.map((kind, place) => [kind, place]));
const operatorOf = new Map(page.operators.map((operator) => [operator.name, operator]));

// What the reader chose: a GPU, a kind of time ("" is each race's own), words of the filter.
const state = { gpu: page.gpus.length ? page.gpus[0].id : "", kind: "", filter: "" };

const gpuPlace = () => page.gpus.findIndex((gpu) => gpu.id === state.gpu);
const gpuName = (id) => (page.gpus.find((gpu) => gpu.id === id) || { name: id }).name;
const raceOf = (operator) => page.races[(operator.races[state.gpu] || [])[0]];
const racesOf = (operator) => (operator.races[state.gpu] || []).map((place) => page.races[place]).filter((race) => race.is_default);
// Of a shape: the race that has it, its place there, and who was fastest by the chosen time. null without any.
function standingOf(operator, place) {
  const race = racesOf(operator).find((each) => each.shapes.includes(place));
  if (!race) return null;
  const order = orderOf(race), at = race.shapes.indexOf(place), best = order.rows[at][ROW.fastest];
  return { race, order, at, best, time: best === null ? null : timeOf(race.cells[at][best], order.kind) };
}
const orderOf = (race) => race.orders[state.kind] || race.orders[race.kind];
const timeOf = (cell, kind) => cell[CELL.times][KIND[kind]];

// What kernelderby/page/html.py packed into the element of that id. A promise.
function unpacked(id) {
  const packed = atob(document.getElementById(id).textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

const samplesRead = new Map();
// Raw samples of a race: [workload][solution] {kind: rounds}. A promise; unpacked once.
function samplesOf(place) {
  if (!samplesRead.has(place)) samplesRead.set(place, unpacked(`samples-${place}`));
  return samplesRead.get(place);
}

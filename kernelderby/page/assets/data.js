// The model, and the places of what is an array in it. Nothing here or below computes a number that is shown.
const page = JSON.parse(document.getElementById("model").textContent);
const places = (name) => Object.fromEntries(page.fields[name].map((field, place) => [field, place]));
const INTERVAL = places("ShownInterval"), TIME = places("ShownTime"), CELL = places("ShownCell");
const ROW = places("ShownRow"), SHAPE = places("ShownShape");
const KIND = Object.fromEntries(page.kinds.map((kind, place) => [kind, place]));
const operatorOf = new Map(page.operators.map((operator) => [operator.name, operator]));

// What the reader chose: a GPU, and a kind of time ("" is each race's own).
const state = { gpu: page.gpus.length ? page.gpus[0].id : "", kind: "" };

const gpuPlace = () => page.gpus.findIndex((gpu) => gpu.id === state.gpu);
const gpuName = (id) => (page.gpus.find((gpu) => gpu.id === id) || { name: id }).name;
const raceOf = (operator) => page.races[(operator.races[state.gpu] || [])[0]];
const orderOf = (race) => race.orders[state.kind] || race.orders[race.kind];
const timeOf = (cell, kind) => cell[CELL.times][KIND[kind]];

const samplesRead = new Map();
// Raw samples of a race: [workload][solution] {kind: rounds}. A promise; unpacked once.
function samplesOf(place) {
  if (!samplesRead.has(place)) {
    const packed = atob(document.getElementById(`samples-${place}`).textContent);
    const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    samplesRead.set(place, new Response(stream).json());
  }
  return samplesRead.get(place);
}

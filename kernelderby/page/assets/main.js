// Sections, deep links, the reader's choices, keys, print.
const SECTIONS = [
  ["overview", "Overview", overview],
  ["operators", "Operators", operators],
  ["race", "Race", race],
  ["roofline", "Roofline", roofline],
  ["pipeline", "Pipeline", pipeline],
  ["timeline", "Timeline", timeline],
  ["layers", "Layers", layers],
  ["kernels", "Kernels", kernels],
  ["profiles", "Profiles", studies],
  ["trust", "Trust", trust],
];
const content = document.getElementById("content");
const sections = new Map();
const drawnSections = new Set();

for (const [id, title, make] of SECTIONS) {
  const node = element("section", { id: `section-${id}`, "aria-label": title, hidden: true });
  sections.set(id, { id, title, make, node });
  content.append(node);
}

function draw(section) {
  section.node.replaceChildren(text("h2", section.title, { class: "section-title" }), ...section.make().filter(Boolean));
  drawnSections.add(section.id);
}

function show(id, isFresh) {
  if (sections.get(id).node.hidden) window.scrollTo(0, 0);
  for (const section of sections.values()) section.node.hidden = section.id !== id;
  if (isFresh || !drawnSections.has(id)) draw(sections.get(id));
  for (const link of document.querySelectorAll("#nav a")) link.toggleAttribute("aria-current", link.dataset.section === id);
  measureHead();
  for (const link of document.querySelectorAll("#nav a[aria-current]")) link.setAttribute("aria-current", "page");
}

function decoded(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word; // a link that somebody cut
  }
}

// #race, #race/rms_norm, #unified_attention (its row under Operators, opened).
function follow() {
  const [place, query] = location.hash.slice(1).split("?");
  if (query !== undefined) readChoices(new URLSearchParams(query));
  const [word, rest] = place.split("/").map(decoded);
  keepChoices(place);
  if (operatorOf.has(word) || (word === "operators" && operatorOf.has(rest))) return openOperator(operatorOf.has(word) ? word : rest);
  if (word === "race" && operatorOf.has(rest)) {
    raceChosen = [rest, 0];
    drawnSections.delete("race");
  }
  const id = sections.has(word) ? word : "overview";
  show(id);
  document.title = `${sections.get(id).title}, KernelDerby`;
}

// What the reader chose stands in the address behind the place: #race/rms_norm?gpu=h200&time=eager&filter=norm.
function readChoices(given) {
  const [gpu, kind] = [document.getElementById("gpu"), document.getElementById("kind")];
  const known = page.gpus.some((each) => each.id === given.get("gpu")) ? given.get("gpu") : page.gpus.length ? page.gpus[0].id : "";
  const time = page.kinds.includes(given.get("time")) ? given.get("time") : "";
  if (known === state.gpu && time === state.kind && (given.get("filter") || "") === state.filter) return;
  Object.assign(state, { gpu: known, kind: time, filter: given.get("filter") || "" });
  [gpu.value, kind.value] = [state.gpu, state.kind];
  drawnSections.clear();
}

function keepChoices(place = location.hash.slice(1).split("?")[0]) {
  const chosen = new URLSearchParams();
  if (page.gpus.length && state.gpu !== page.gpus[0].id) chosen.set("gpu", state.gpu);
  if (state.kind) chosen.set("time", state.kind);
  if (state.filter) chosen.set("filter", state.filter);
  const query = chosen.toString();
  history.replaceState(null, "", query ? `#${place}?${query}` : place ? `#${place}` : location.pathname + location.search);
}

// The header grows where it wraps; what stays in view below it follows.
function measureHead() {
  const header = document.querySelector("header"), head = getComputedStyle(header).position === "sticky" ? header.offsetHeight : 0, legend = document.querySelector(".legend.stays");
  document.documentElement.style.setProperty("--head", `${head}px`);
  document.documentElement.style.setProperty("--legend", `${legend ? legend.offsetHeight : 0}px`);
}

function openOperator(name) {
  show("operators");
  const entry = operatorTable.entry(name);
  entry.toggle(true);
  entry.node.scrollIntoView({ block: "start" });
  entry.focus();
  document.title = `${name}, KernelDerby`;
}

function redraw() {
  drawnSections.clear();
  follow();
}

const preferred = window.matchMedia("(prefers-color-scheme: dark)");
function theme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = name === "dark" ? "Light" : "Dark";
}

function controls() {
  const gpu = document.getElementById("gpu"), kind = document.getElementById("kind");
  for (const each of page.gpus) gpu.append(element("option", { value: each.id }, each.rows ? each.name : `${each.name} (floors only)`));
  gpu.addEventListener("change", () => { state.gpu = gpu.value; keepChoices(); redraw(); });
  for (const [value, words] of [["", "as ranked"], ...page.kinds.map((each) => [each, each])]) kind.append(element("option", { value }, words));
  kind.addEventListener("change", () => { state.kind = kind.value; keepChoices(); redraw(); });
  theme(preferred.matches ? "dark" : "light");
  preferred.addEventListener("change", () => theme(preferred.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  const nav = document.getElementById("nav");
  for (const { id, title } of sections.values()) nav.append(element("a", { href: `#${id}`, "data-section": id }, title));
}

// Paper shows every section, one after another.
window.addEventListener("beforeprint", () => {
  for (const section of sections.values()) if (!drawnSections.has(section.id)) draw(section);
});

// "/" goes to the filter, the digits to the sections.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const at = Number(event.key) - 1;
  if (event.key === "/") {
    location.hash = "operators";
    show("operators");
    document.getElementById("filter").focus();
    event.preventDefault();
  } else if (SECTIONS[at]) location.hash = SECTIONS[at][0];
});

controls();
window.addEventListener("hashchange", follow);
window.addEventListener("resize", measureHead);
follow();
performance.mark("first section");

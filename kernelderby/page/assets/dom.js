// Elements from data. Texts become text nodes, never markup: a solution called <script> is shown.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.flat());
  return made;
}

const text = (tag, words, attributes = {}) => element(tag, attributes, String(words));

// A long name that may break after _ and :: and keeps its whole self in the tooltip.
function breakable(name, title = name) {
  const made = element("span", { class: "name", title });
  String(name).split(/(?<=_|::|,|-|\/)/).forEach((part) => made.append(part, document.createElement("wbr")));
  return made;
}

const note = (words) => text("p", words, { class: "note" });
const empty = (words) => text("p", words, { class: "empty" });

function selector(label, choices, chosen, onchange) {
  const select = element("select", { onchange: () => onchange(select.value) });
  for (const [value, words] of choices) select.append(element("option", { value, selected: value === chosen }, words));
  return element("label", {}, `${label} `, select);
}

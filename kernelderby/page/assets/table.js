// A table that sorts by every column, whose rows may open. On a narrow page a row becomes a card (page.css).
//
// columns: {title, unit, align, value(row) to sort by, cell(row) a text or node, hint, sortable}. A column without
// value sorts by its text. open(row): what an opened row shows, made at the first opening.
function table({ id, caption, columns, rows, key, open, sort, count }) {
  const body = element("tbody");
  const made = rows.map((row) => tableRow(row, columns, key, open));
  const heads = columns.map((column, place) => tableHead(column, () => sortBy(place)));
  const choice = element("select", { onchange: () => sortBy(Number(choice.value), true) });
  columns.forEach((column, place) => choice.append(element("option", { value: place }, column.title)));
  let sorted = null, isUp = true;

  function sortBy(place, fresh) {
    const column = columns[place];
    isUp = sorted === place && !fresh ? !isUp : column.align !== "right" || Boolean(column.ascending);
    sorted = place;
    const direction = isUp ? 1 : -1;
    const keyed = made.map((entry, at) => [tableKey(column, entry.row), entry, at]);
    keyed.sort(([one, , at], [other, , place]) => tableCompare(one, other, direction) || at - place);
    body.replaceChildren(...keyed.flatMap(([, entry]) => entry.nodes()));
    heads.forEach((head, at) => head.setAttribute("aria-sort", at !== place ? "none" : isUp ? "ascending" : "descending"));
    choice.value = String(place);
  }

  body.append(...made.flatMap((entry) => entry.nodes()));
  if (sort !== undefined) sortBy(sort);
  body.addEventListener("keydown", moveFocus);
  const whole = element(
    "table",
    { id, class: "sortable" },
    caption ? text("caption", caption) : null,
    element("thead", {}, element("tr", {}, heads)),
    body
  );
  const wrapper = element("div", { class: "table" }, element("label", { class: "sort-choice" }, "Sort by ", choice), whole);
  return {
    node: wrapper,
    entry: (name) => made.find((entry) => entry.key === name),
    filter: (isShown) => made.reduce((shown, entry) => shown + entry.show(isShown(entry.row)), 0),
  };
}

function tableHead(column, onclick) {
  const label = element("button", { type: "button", onclick, title: column.hint }, column.title, column.unit ? text("small", ` ${column.unit}`) : null);
  return element("th", { scope: "col", class: column.align || "left", "aria-sort": "none" }, label);
}

function tableKey(column, row) {
  if (column.value) return column.value(row);
  const cell = column.cell(row);
  return typeof cell === "string" ? cell : cell === null ? null : cell.textContent;
}

// What is not there comes last, whichever way.
function tableCompare(one, other, direction) {
  const [none, nothing] = [one === null || one === undefined, other === null || other === undefined];
  if (none || nothing) return none - nothing;
  if (typeof one === "string") return direction * one.localeCompare(other, "en", { numeric: true });
  return direction * (one - other);
}

function tableRow(row, columns, key, open) {
  const cells = columns.map((column, place) => {
    const cell = column.cell(row);
    const node = element(place ? "td" : "th", { class: column.align || "left", "data-label": column.unit ? `${column.title} ${column.unit}` : column.title, scope: place ? null : "row" }, cell);
    if (column.value) {
      const value = column.value(row);
      if (value !== null && value !== undefined) node.setAttribute("data-value", value);
    }
    return node;
  });
  const own = element("tr", {}, cells);
  let detail = null, button = null;
  const entry = {
    row,
    key: key ? key(row) : null,
    nodes: () => (detail ? [own, detail] : [own]),
    show: (isShown) => {
      own.hidden = !isShown;
      if (detail) detail.hidden = !isShown || button.getAttribute("aria-expanded") !== "true";
      return isShown ? 1 : 0;
    },
    toggle: (isOpen) => {
      if (isOpen && !detail) {
        detail = element("tr", { class: "detail" }, element("td", { colspan: columns.length }, open(row)));
        own.after(detail);
      }
      button.setAttribute("aria-expanded", String(isOpen));
      if (detail) detail.hidden = !isOpen;
    },
    focus: () => (button || own).focus(),
    node: own,
  };
  if (open) {
    button = element("button", { type: "button", class: "opener", "aria-expanded": "false", onclick: () => entry.toggle(button.getAttribute("aria-expanded") !== "true") });
    button.append(...cells[0].childNodes);
    cells[0].append(button);
  }
  if (entry.key !== null) own.setAttribute("data-key", entry.key);
  return entry;
}

// Up and down go from opener to opener, Escape closes.
function moveFocus(event) {
  if (!event.target.classList.contains("opener")) return;
  if (event.key === "Escape" && event.target.getAttribute("aria-expanded") === "true") event.target.click();
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const all = [...event.currentTarget.querySelectorAll(":scope > tr:not([hidden]) > th > .opener")];
  const next = all[all.indexOf(event.target) + step];
  if (next) {
    next.focus();
    event.preventDefault();
  }
}

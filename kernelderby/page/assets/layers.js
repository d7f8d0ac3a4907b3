// Layers: a served model's layer on a time line, column under column on one scale; what overlaps lies on a lane below.
function layers() {
  if (!page.layers.length) return [empty("No module table lies under profiles/ (*.toml).")];
  return page.layers.flatMap((each) => layerTable(each));
}

function layerTable(shown) {
  const groups = [...new Set(shown.rows.map((row) => row.group))];
  const longest = Math.max(...shown.columns.map((column) => column.layer_us));
  return [
    text("h2", shown.title),
    note(`One layer, us; all on one scale. A lower lane runs beside the module above it and is counted once. ${shown.source}`),
    legend(groups.map((group, place) => [group, look(place)])),
    ...shown.columns.map((column) => layerLine(column, groups, longest)),
    layerRows(shown),
    element("details", {}, text("summary", `Notes: ${shown.notes.length}`), element("ul", {}, shown.notes.map((each) => text("li", each)))),
  ];
}

function layerLine(column, groups, longest) {
  const line = element("div", { class: "timeline", role: "img", "aria-label": `${column.title}: ${column.modules.map((each) => `${each.module} ${microseconds(each.time_us)} us`).join(", ")}` });
  for (const each of column.modules) {
    const words = `${each.group} / ${each.module}: ${microseconds(each.time_us)} us, from ${microseconds(each.start_us)}`;
    const { color, on } = look(groups.indexOf(each.group));
    const box = element("i", { class: `module lane${each.lane}`, title: words, "data-value": each.time_us, "data-start": each.start_us, style: { left: parts(each.start_us / longest), width: parts(each.time_us / longest), background: color } });
    if (each.time_us / longest > 0.055) box.append(text("span", each.module, { class: "stack-name", style: { color: on } }));
    line.append(box);
  }
  const partial = column.have < column.of ? `, only ${column.have} of ${column.of} kernels have a time: no whole layer` : "";
  const overlapped = column.overlapped_us ? `, ${microseconds(column.overlapped_us)} us of it beside other modules` : "";
  return element("div", { class: "layer-column" }, element("h3", {}, `${column.title} (${column.gpu}): ${microseconds(column.layer_us)} us${overlapped}${partial}`), line, column.facts.length ? note(column.facts.join(" · ")) : null);
}

function layerRows(shown) {
  const rows = shown.rows.filter((row) => !row.kernel);
  const kernelsOf = (row) => shown.rows.filter((each) => each.kernel && each.group === row.group && (!row.module || each.module === row.module));
  const against = (place) => (row) => row.ratios[place] && row.ratios[place][0];
  const columns = [
    { title: "Module", value: (row) => `${row.group} ${row.module}`, cell: (row) => (row.module ? breakable(row.module) : text("strong", row.group)) },
    ...shown.columns.map((column, place) => ({ title: column.title, unit: "us", align: "right", value: (row) => row.times[place], cell: (row) => microseconds(row.times[place]) })),
    ...shown.columns.slice(1).map((column, at) => ({
      title: `${column.title} / ${shown.columns[0].title}`,
      align: "right",
      value: against(at + 1),
      cell: (row) => (row.ratios[at + 1] ? `${factor(row.ratios[at + 1][0])}${row.ratios[at + 1][1] < row.ratios[at + 1][2] ? " ~" : ""}` : NOTHING),
      hint: "below 1 is faster; ~ over the kernels that both have",
    })),
  ];
  const kernels = (row) =>
    table({
      rows: kernelsOf(row),
      columns: [{ title: "Kernel", value: (each) => each.kernel, cell: (each) => breakable(each.kernel) }, ...columns.slice(1)],
    }).node;
  return table({ id: "layer-rows", rows, columns, key: (row) => `${row.group}/${row.module}`, open: kernels }).node;
}

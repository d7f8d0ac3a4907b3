// Kernels: whose each is, from which file, for which architecture; and the share that no rule knows.
let kernelsChosen = 0;

function kernels() {
  if (!page.kernels.length) return [empty("No profile lies under profiles/ or reports/profiles/.")];
  const chosen = page.kernels[Math.min(kernelsChosen, page.kernels.length - 1)];
  const choose = (value) => {
    kernelsChosen = Number(value);
    show("kernels", true);
  };
  const filter = element("input", { type: "search", placeholder: "kernel, library, role", oninput: () => apply() });
  const found = element("output");
  const made = kernelTable(chosen);
  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = made.filter((row) => words.every((word) => row.join(" ").toLowerCase().includes(word)));
    found.textContent = `${shown} of ${chosen.kernels.length}`;
  }
  apply();
  const [count, share] = chosen.left_out;
  return [
    element("div", { class: "tools" }, selector("Profile", page.kernels.map((each, place) => [String(place), each.title]), String(page.kernels.indexOf(chosen)), choose)),
    note(`${chosen.gpu} · ${chosen.form} · ${milliseconds(chosen.total_us)} ms of kernels`),
    element("p", {}, text("strong", percent(chosen.unknown)), " of the time is of unknown kernels, ", text("strong", percent(chosen.guessed)), " of guessed ones."),
    ...chosen.findings.map(([severity, words]) => element("p", { class: "finding" }, text("span", severity, { class: severity === "high" ? "bad" : "muted" }), " ", words)),
    element("div", { class: "side even" }, ["library", "role", "architecture", "dtype"].map((by) => totals(by, chosen.totals[by]))),
    element("div", { class: "tools" }, element("label", {}, "Filter ", filter), found),
    made.node,
    count ? note(`${count} more kernels, ${percent(share)} of the time.`) : null,
    ...chosen.notes.map(note),
  ];
}

function totals(by, rows) {
  return table({
    caption: `By ${by}`,
    rows,
    columns: [
      { title: by, value: (row) => row[0], cell: (row) => text("span", row[0], { class: row[0] === "unknown" ? "bad" : null }) },
      { title: "Share", align: "right", value: (row) => row[1], cell: (row) => shareBar(row[1]) },
      { title: "Launches", align: "right", value: (row) => row[3], cell: (row) => String(row[3]) },
    ],
  }).node;
}

function kernelTable(chosen) {
  const K = places("ShownKernel");
  const plain = (field) => ({ value: (row) => row[K[field]], cell: (row) => row[K[field]] || NOTHING });
  return table({
    id: "kernel-rows",
    rows: chosen.kernels,
    columns: [
      { title: "Kernel", value: (row) => row[K.short], cell: (row) => element("span", { class: "kernel" }, breakable(row[K.short], row[K.name])) },
      { title: "Share", align: "right", value: (row) => row[K.share], cell: (row) => shareBar(row[K.share]) },
      { title: "Total", unit: "ms", align: "right", value: (row) => row[K.total_us], cell: (row) => milliseconds(row[K.total_us]) },
      { title: "Launches", align: "right", value: (row) => row[K.instances], cell: (row) => String(row[K.instances]) },
      { title: "Average", unit: "us", align: "right", value: (row) => row[K.average_us], cell: (row) => microseconds(row[K.average_us]) },
      { title: "Median", unit: "us", align: "right", value: (row) => row[K.median_us], cell: (row) => microseconds(row[K.median_us]) },
      { title: "Library", value: (row) => row[K.library], cell: (row) => text("span", row[K.library] + (row[K.is_guess] ? " ?" : ""), { class: row[K.library] === "unknown" ? "bad" : null }) },
      { title: "Source file", value: (row) => row[K.source] || null, cell: (row) => (row[K.source] ? breakable(row[K.source]) : NOTHING) },
      { title: "Role", ...plain("role") },
      { title: "Dtype", ...plain("dtype") },
      { title: "Architecture", ...plain("architecture") },
    ],
  });
}

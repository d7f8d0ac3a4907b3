// Pipeline: each stage's share, workload by workload and solution by solution; and what a faster stage would gain.
let pipelineChosen = 0;

function pipeline() {
  if (!page.pipelines.length) return [empty("No profile of a pipeline lies under profiles/ or reports/profiles/: record one with `derby profile run`.")];
  const solutions = [...new Set(page.pipelines.map((each) => each.solution))];
  return [
    note("One bar per profile, one part per stage: its share of the pipeline's kernel time. The number at the end is the total in us. Pick a bar to see its stages and move the sliders."),
    ...solutions.flatMap((solution) => stageBars(solution)),
    element("div", { id: "whatif" }, whatIf(page.pipelines[Math.min(pipelineChosen, page.pipelines.length - 1)])),
  ];
}

// A solution's stages have one colour each, over all of its profiles.
function stageLooks(solution) {
  const names = stagesOf(solution).filter((stage) => !stage.is_rest).map((stage) => stage.name);
  return (stage) => (stage.is_rest ? { color: "var(--rest)", on: "var(--ink)", mark: "□" } : look(names.indexOf(stage.name)));
}

// Every stage that any profile has; in the order of the one that has most.
function stagesOf(solution) {
  const own = page.pipelines.filter((each) => each.solution === solution).sort((one, other) => other.stages.length - one.stages.length);
  return [...new Map(own.flatMap((each) => each.stages.map((stage) => [stage.name, stage]))).values()];
}

function stageBars(solution) {
  const own = page.pipelines.map((each, place) => [each, place]).filter(([each]) => each.solution === solution);
  const looks = stageLooks(solution);
  const bars = own.map(([each, place]) => {
    const parted = element("span", { class: "stack", role: "img", "aria-label": each.stages.map((stage) => `${stage.name} ${percent(stage.share)}`).join(", ") });
    for (const stage of each.stages) {
      const words = `${stage.name}: ${stage.title}, ${microseconds(stage.time_us)} us, ${percent(stage.share)}`;
      const part = element("i", { class: "stack-part", title: words, "data-stage": stage.name, "data-value": stage.share, style: { width: parts(stage.share), background: looks(stage).color } });
      if (stage.share >= 0.06) part.append(text("span", stage.name, { class: "stack-name", style: { color: looks(stage).on } }));
      parted.append(part);
    }
    const pick = element("button", { type: "button", class: "pick", "aria-pressed": String(place === pipelineChosen), "data-place": place, onclick: () => choosePipeline(place) }, `${each.title}, ${each.gpu}`);
    return element("li", {}, pick, parted, element("span", { class: "stack-total" }, microseconds(each.total_us), text("small", each.basis === "us an invocation" ? " us" : " us in all")));
  });
  return [
    text("h2", solution),
    legend(stagesOf(solution).map((stage) => [stage.name, looks(stage), stage.title])),
    element("ul", { class: "stacks" }, bars),
  ];
}

function choosePipeline(place) {
  pipelineChosen = place;
  for (const button of document.querySelectorAll(".pick")) button.setAttribute("aria-pressed", String(Number(button.dataset.place) === place));
  const box = document.getElementById("whatif");
  box.replaceChildren(...whatIf(page.pipelines[place]));
  box.scrollIntoView({ block: "nearest" });
}

// The sliders are the one place where the reader's own numbers enter: the total is the sum of the stages' times over them.
function whatIf(chosen) {
  const looks = stageLooks(chosen.solution);
  const factors = new Map();
  const total = element("output", { id: "whatif-total" });
  const say = () => {
    const now = chosen.stages.reduce((sum, stage) => sum + stage.time_us, 0);
    const then = chosen.stages.reduce((sum, stage) => sum + stage.time_us / (factors.get(stage.name) || 1), 0);
    total.textContent = `${microseconds(then)} us of ${microseconds(now)} us, ${factor(now / then)} times as fast`;
  };
  const slider = (stage) => {
    const out = text("output", "as it is");
    const input = element("input", {
      type: "range",
      min: 0,
      max: 100,
      value: 0,
      "aria-label": `${stage.name} so many times as fast`,
      "data-stage": stage.name,
      oninput: () => {
        const times = 10 ** (Number(input.value) / 100);
        factors.set(stage.name, times);
        out.textContent = times === 1 ? "as it is" : `${factor(times)} x`;
        input.setAttribute("aria-valuetext", out.textContent);
        say();
      },
    });
    return element("span", { class: "slider" }, input, out);
  };
  say();
  const made = table({
    rows: chosen.stages,
    columns: [
      { title: "Stage", value: (row) => row.name, cell: (row) => element("span", {}, text("span", looks(row).mark, { class: "mark", style: { color: looks(row).color }, "aria-hidden": "true" }), " ", breakable(row.name)) },
      { title: "What it does", value: (row) => row.title, cell: (row) => element("span", { title: row.notes.join("; ") || null }, row.title, row.notes.length ? text("small", ` ${row.notes.length} ${row.notes.length > 1 ? "notes" : "note"}`) : null) },
      { title: "Time", unit: "us", align: "right", value: (row) => row.time_us, cell: (row) => microseconds(row.time_us) },
      { title: "Share", align: "right", value: (row) => row.share, cell: (row) => percent(row.share) },
      ...chosen.factors.map((times, at) => ({ title: `${times} x faster`, align: "right", value: (row) => row.speedups[at], cell: (row) => factor(row.speedups[at]), hint: "the pipeline's speedup" })),
      { title: "gone", align: "right", value: (row) => row.speedups[chosen.factors.length], cell: (row) => factor(row.speedups[chosen.factors.length]), hint: "the pipeline's speedup with this stage free" },
      { title: "What if", value: (row) => row.name, cell: (row) => (row.is_rest ? "" : slider(row)) },
    ],
  }).node;
  const outside = chosen.outside.length
    ? [text("h3", "Beside the pipeline, in the same profile"), table({ rows: chosen.outside, columns: [{ title: "Kind", value: (row) => row[0], cell: (row) => row[0] }, { title: "Time", unit: "us", align: "right", value: (row) => row[1], cell: (row) => microseconds(row[1]) }, { title: "Share of all GPU work", align: "right", value: (row) => row[2], cell: (row) => percent(row[2]) }] }).node]
    : [];
  return [
    text("h2", `${chosen.solution}, ${chosen.title}`),
    note(`${chosen.gpu} · ${chosen.basis} · ${chosen.source}${chosen.span_us ? ` · first start to last end ${microseconds(chosen.span_us)} us` : ""}`),
    element("p", { class: "total" }, "What if: ", total),
    made,
    ...outside,
  ];
}

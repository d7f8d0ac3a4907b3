// A solution's source, and how it differs from its former version or from another solution of its operator.
let allSources = null;
const sourcesRead = () => (allSources = allSources || unpacked("sources"));

function sourceOf(name) {
  const shown = element("div", { class: "source" });
  const made = element("details", { "data-source": name }, text("summary", "Source"), shown);
  made.addEventListener("toggle", () => {
    if (made.open && !shown.childNodes.length) sourcesRead().then((all) => shown.replaceChildren(...sourceView(all, name)));
  });
  return made;
}

function sourceView(all, name) {
  const own = all.now[name] || {};
  const others = Object.keys(all.now).filter((each) => each !== name && page.solutions[each].definition === page.solutions[name].definition);
  const choices = [["", "nothing"], ...(all.before[name] ? [["<before>", `its version in ${page.changes.against}`]] : []), ...others.map((each) => [each, each])];
  const paths = Object.keys(own);
  let path = paths.find((each) => each.endsWith("main.py")) || paths[0], other = all.before[name] ? "<before>" : "";
  const body = element("pre", { tabindex: "0", "aria-label": `source of ${name}` });
  const tools = element("div", { class: "tools" },
    selector("File", paths.map((each) => [each, each]), path, (chosen) => { path = chosen; draw(); }),
    selector("Compared with", choices, other, (chosen) => { other = chosen; draw(); }));
  function draw() {
    const theirs = other === "<before>" ? all.before[name] : other ? all.now[other] : null;
    const key = theirs && (theirs[path] || Object.entries(theirs).find(([each]) => each.split("/").pop() === path.split("/").pop())?.[1]);
    if (!theirs) return body.replaceChildren(all.texts[own[path]]);
    body.replaceChildren(...lineDifferences(key ? all.texts[key] : "", all.texts[own[path]]).map(([mark, line]) => text(mark === "+" ? "ins" : mark === "-" ? "del" : "span", `${mark} ${line}\n`)));
  }
  draw();
  const link = page.repository && page.solutions[name].path ? element("a", { href: `${page.repository}/blob/HEAD/${page.solutions[name].path}` }, "in the repository") : null;
  return [tools, link, body].filter(Boolean);
}

// Lines kept, added (+) and taken away (-): the longest common subsequence of what stands between equal ends.
function lineDifferences(before, after) {
  const one = before.split("\n"), two = after.split("\n");
  let start = 0, end = 0;
  while (start < Math.min(one.length, two.length) && one[start] === two[start]) start += 1;
  while (end < Math.min(one.length, two.length) - start && one[one.length - 1 - end] === two[two.length - 1 - end]) end += 1;
  const a = one.slice(start, one.length - end), b = two.slice(start, two.length - end);
  const found = one.slice(0, start).map((line) => [" ", line]);
  if (a.length * b.length > 9e6) found.push(...a.map((line) => ["-", line]), ...b.map((line) => ["+", line]));
  else {
    const width = b.length + 1, length = new Uint16Array((a.length + 1) * width);
    for (let i = a.length - 1; i >= 0; i -= 1) for (let j = b.length - 1; j >= 0; j -= 1) length[i * width + j] = a[i] === b[j] ? length[(i + 1) * width + j + 1] + 1 : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
    for (let i = 0, j = 0; i < a.length || j < b.length;) {
      if (i < a.length && j < b.length && a[i] === b[j]) [found.push([" ", a[i]]), i += 1, j += 1];
      else if (j < b.length && (i === a.length || length[i * width + j + 1] >= length[(i + 1) * width + j])) [found.push(["+", b[j]]), j += 1];
      else [found.push(["-", a[i]]), i += 1];
    }
  }
  return [...found, ...one.slice(one.length - end).map((line) => [" ", line])];
}

"use strict";

/* Cost, the paper's numbers, and what is needed to repeat it. */

const COSTS = [
  ["ms", "Time per step (ms)", (value) => value.toFixed(1)],
  ["train", "Training (s)", (value) => grouped(value)],
  ["reach", (rows) => `Until ${(rows.find(({ cost }) => cost.level)?.cost.level ?? 0).toFixed(1)} dB (s)`, (value) => grouped(value)],
  ["memory", "Peak memory (MB)", (value) => grouped(value)],
  ["quantizer", "Quantizer parameters", (value) => grouped(value)],
  ["network", "Network parameters", (value) => grouped(value)],
];

/** Cost as a table whose cells are bars, for the chosen place of the sweep. */
function costPart(comparison) {
  const shown = COSTS.filter(([key]) => comparison.rows.some(({ cost }) => cost[key] !== null && cost[key] !== undefined));
  if (!shown.length) return null;
  const largest = (key) => Math.max(...comparisons.flatMap((each) => each.rows.filter(({ point }) => isShown(each, point)).map(({ cost }) => cost[key] ?? 0)));
  const box = el("div", { class: "cost" });
  const bar = (key, value, write) => {
    if (value === null || value === undefined) return "–";
    const line = styled(el("span", { class: "bar-line", "aria-hidden": "true" }), { width: `${(100 * value) / (largest(key) || 1)}%` });
    return el("div", { class: "bar-cell" }, el("span", {}, write(value)), el("span", { class: "bar-track" }, line));
  };
  const draw = () => {
    const rows = comparison.rows.filter((row) => isShown(comparison, row.point) && row.done);
    const cells = rows.map((row) => [methodOf(comparison, row).label, ...shown.map(([key, , write]) => bar(key, row.cost[key], write))]);
    box.replaceChildren(simpleTable(`Cost, ${comparison.name}`, ["Method", ...shown.map(([, heading]) => (typeof heading === "string" ? heading : heading(rows)))], cells));
  };
  draw();
  onChange(draw);
  return box;
}

function paperPart(comparison) {
  const { paper, sweep } = comparison;
  if (!paper) return null;
  const headings = ["Method", ...(sweep ? [sweep.label] : []), ...paper.columns.flatMap(({ label }) => [`${label}, paper`, `${label}, here`])];
  const rows = paper.rows.map(({ label, ours, point, values }) => [
    el("div", { class: "method" }, el("span", { class: "label" }, label), ours && ours !== label ? el("span", { class: "soft" }, `here: ${ours}`) : null),
    ...(sweep ? [String(point ?? "any")] : []),
    ...paper.columns.flatMap(({ name }) => {
      const { paper: there, ours: here, spread } = values[name];
      const found = here ? el("span", {}, el("strong", {}, here), spread ? el("span", { class: "spread" }, ` ± ${spread}`) : null) : "–";
      return [there ?? "–", found];
    }),
  ]);
  return el(
    "div",
    {},
    el("p", { class: "measure" }, paper.difference),
    paper.agreement.map((text) => el("p", { class: "measure" }, text)),
    simpleTable(`${paper.source}, beside ours`, headings, rows),
    el("p", { class: "soft" }, `The paper's numbers: ${paper.source}.`),
  );
}

/** The command, the circumstances and the settings. */
function repeatPart(comparison) {
  const { notes, seeds, facts, configs, created, folder } = comparison;
  const groups = Object.entries(facts).filter(([, values]) => Object.keys(values).length);
  const runs = { Seeds: seeds.join(", "), Started: created.replace("T", " "), Folder: folder, Recipe: comparison.recipe, ...(comparison.scale && { Scale: comparison.scale }) };
  return el(
    "div",
    {},
    commandBox(comparison.command),
    notes.length ? el("ul", { class: "notes" }, notes.map((note) => el("li", {}, note))) : null,
    el("div", { class: "facts" }, factList("Run", runs), groups.map(([title, values]) => factList(title, values))),
    configs.length ? configDetails(configs) : null,
  );
}

function commandBox(command) {
  const code = el("code", {}, command);
  const status = el("span", { class: "hidden", role: "status" });
  const button = el("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    const done = await copyText(command, code);
    button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
    status.textContent = done ? "The command was copied." : "The command is selected.";
    setTimeout(() => (button.textContent = "Copy"), 2500);
  });
  return el("div", { class: "command" }, el("pre", { tabindex: 0 }, code), button, status);
}

/** Copy, or where a browser does not allow it to a page from disk, select. */
async function copyText(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return document.execCommand("copy");
  }
}

function factList(title, values) {
  const entries = Object.entries(values).map(([key, value]) => [el("dt", {}, key), el("dd", {}, plain(value))]);
  return el("div", {}, el("h3", {}, title), el("dl", {}, entries));
}

function plain(value) {
  if (value === null) return "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function configDetails(configs) {
  const parts = configs.map(({ label, point, config }) =>
    el("details", {}, el("summary", {}, point === null ? label : `${label}, ${point}`), el("pre", { tabindex: 0 }, JSON.stringify(config, null, 2))),
  );
  return el("details", { class: "more" }, el("summary", {}, "Settings of each method"), el("div", { class: "configs" }, parts));
}

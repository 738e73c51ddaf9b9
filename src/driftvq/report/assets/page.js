"use strict";

/* The page from top to bottom. */

const several = comparisons.length > 1;

function header() {
  const first = comparisons[0];
  const head = [el("p", { class: "eyebrow" }, several ? "driftvq · comparisons side by side" : eyebrow(first)), el("h1", {}, report.title)];
  if (!several) head.push(first.question ? el("p", { class: "question" }, first.question) : "", answerBox(first), countsLine(first));
  else {
    const boxes = comparisons.map((each) => el("div", { class: "one" }, el("h2", { class: "run" }, each.name), answerBox(each), countsLine(each)));
    head.push(el("div", { class: "side" }, boxes));
  }
  document.getElementById("header").append(...head);
}

function eyebrow({ name, scale, created }) {
  return ["driftvq", name, scale && `${scale} scale`, created.slice(0, 10)].filter(Boolean).join(" · ");
}

function answerBox({ answer }) {
  const together = answer.best.replaceAll(" ± ", "\u00a0±\u00a0").replace(/p ([=<]) /g, "p\u00a0$1\u00a0");
  const box = el("div", { class: "answer" }, el("p", { class: "best" }, together));
  for (const text of [answer.collapsed, answer.references]) if (text) box.append(el("p", {}, text));
  if (answer.progress) box.append(el("p", { class: "progress" }, answer.progress));
  return box;
}

function countsLine({ methods, seeds, facts, sweep, single }) {
  const { source, evaluation, size } = facts.Data;
  const parts = [single ? methods[0].label : `${methods.length} methods`, seeds.length === 1 ? "1 seed" : `${seeds.length} seeds`];
  if (sweep) parts.push(`${sweep.label}: ${sweep.values.join(typeof sweep.values[0] === "string" ? "; " : ", ")}`);
  if (source) parts.push(size ? `${source}, ${size} px` : source);
  if (evaluation) parts.push(`${grouped(evaluation)} evaluation images`);
  return el("p", { class: "soft" }, parts.join(" · "));
}

/** [id, title, text below it, content] of all sections; those without content are left out. */
function sections() {
  const sweep = comparisons.find((comparison) => comparison.sweep)?.sweep;
  const alone = comparisons.every(({ rows }) => rows.length === 1);
  return [
    several ? ["joint", "Side by side", "Values, and what changed from the first comparison to the others.", jointTable()] : null,
    ["numbers", "The numbers", alone ? null : "Click a heading to sort: best first, then the other way.", tables()],
    sweep ? ["sweep", `Against ${sweep.label}`, "Quality and usage as one setting changes, all else equal.", withLegend(sideBySide(sweepPart), drawnInSweep)] : null,
    allPoints.length > 1 ? ["picker", null, null, pointPicker()] : null,
    ["training", "While training", "Codes in use and quality as training goes on. Point at a chart, or move through it with the arrow keys, to read values.", withLegend(sideBySide(trainingPart), drawnIn("quality"))],
    ["histograms", "How evenly the codes are used", "Each method's codes from most to least used, on a log scale, by the latents that usage is counted over. Dashed: all codes used alike. Hatched: dead codes, which none of these latents selects.", sideBySide(histogramPart)],
    ["drift", "The drift meter", "How far the encoder moves its latents, whether the codes follow, measured on a fixed batch during training, and what moves lost codes.", withLegend(sideBySide(driftPart), drawnIn("drift"))],
    ["strips", "Reconstructions", `${alone ? "" : "The same images through every method. "}Click, or press Enter, to look closer.`, sideBySide(stripsPart)],
    ["maps", "Where the codes lie", "Codes and latents projected to the two directions in which they vary most. Codes that lie together share a mark: a number says how many are under a cross.", withKey(sideBySide(mapPart))],
    ["cost", "What it costs", "Measured on the machine named below, mean of the seeds. One column has the time to the PSNR on the validation images that half of the methods have in the end; –: never.", sideBySide(costPart)],
    ["paper", "Beside the paper", null, sideBySide(paperPart)],
    ["repeat", "To repeat it", "The exact command, the machine, and every setting.", sideBySide(repeatPart)],
  ].filter((section) => section && section[3]);
}

function tables() {
  if (!several) return resultsTable(comparisons[0]);
  return el("div", {}, comparisons.map((each) => el("div", {}, el("h3", { class: "run" }, each.name), resultsTable(each))));
}

function withLegend(part, drawn) {
  return part && el("div", {}, legend(drawn), part);
}

function withKey(part) {
  return part && el("div", {}, mapKey(), part);
}

function build() {
  header();
  const main = document.getElementById("main");
  const links = [];
  for (const [id, title, text, content] of sections()) {
    if (title === null) {
      main.append(content);
      continue;
    }
    const heading = el("h2", { id: `${id}-title` }, title);
    main.append(el("section", { id, "aria-labelledby": `${id}-title` }, heading, text ? el("p", { class: "lead" }, text) : null, content));
    links.push(el("a", { href: `#${id}` }, title));
  }
  document.getElementById("nav").append(...links);
  const version = comparisons[0].facts.Environment.driftvq;
  document.getElementById("footer").append(el("p", {}, `Made by driftvq${version ? ` ${version}` : ""} from results on disk. This file loads nothing.`));
}

build();
later(() => {});

"use strict";

/* What is shown: the results, the place in the sweep, and which methods. */

const report = JSON.parse(document.getElementById("results").textContent);
const { comparisons } = report;

const COLOURS = 8;
const DASHES = ["", "7 4", "2 3", "10 3 2 3", "5 2", "12 4", "1 4"];
const MARKERS = ["circle", "square", "triangle", "diamond", "cross"];

/** How a method is drawn, by name: the same in all comparisons of the page. */
const styles = new Map();
for (const { methods } of comparisons) {
  for (const { name, group } of methods) {
    const index = styles.size;
    if (styles.has(name)) continue;
    const own = group === "ours";
    styles.set(name, {
      colour: group === "reference" ? "var(--soft)" : `var(--m${index % COLOURS})`,
      dash: own ? "" : DASHES[1 + (index % (DASHES.length - 1))],
      marker: MARKERS[index % MARKERS.length],
      width: own ? 2.6 : 1.8,
    });
  }
}

const allPoints = [...new Set(comparisons.flatMap(({ sweep }) => (sweep ? sweep.values : [])))];
if (allPoints.every((point) => typeof point === "number")) allPoints.sort((a, b) => a - b);

const state = { point: allPoints.at(-1) ?? null, hidden: new Set(), strong: null };
const listeners = new Set();

function onChange(listener) {
  listeners.add(listener);
}

function change(values) {
  Object.assign(state, values);
  for (const listener of listeners) listener();
}

/** Whether something measured at a place is shown now; what the sweep does not touch always is. */
function isShown(comparison, point) {
  return point === null || !comparison.sweep || point === state.point;
}

/** The place in words, e.g. "K = 1024", or nothing. */
function placeOf(comparison, point = state.point) {
  return comparison.sweep && point !== null ? `${comparison.sweep.label} ${point}` : "";
}

function methodOf(comparison, { method }) {
  return comparison.methods[method];
}

/** The choice of the place in the sweep; all figures below follow it. */
function pointPicker() {
  const label = comparisons.find(({ sweep }) => sweep).sweep.label;
  const radios = allPoints.map((point, i) => {
    const radio = el("input", { type: "radio", name: "point", id: `point-${i}`, value: i, change: () => change({ point }) });
    radio.checked = point === state.point;
    return [radio, el("label", { for: `point-${i}` }, String(point))];
  });
  return el(
    "div",
    { class: "bar" },
    el("fieldset", { class: "segments" }, el("legend", {}, `Figures at ${label}`), el("div", {}, radios)),
  );
}

/** A piece of a method's line with its marker. */
function swatch(name) {
  const style = styles.get(name);
  return styled(
    svg(
      "svg",
      { class: "swatch", viewBox: "0 0 28 12", width: 28, height: 12, "aria-hidden": "true" },
      svg("line", { class: "curve", x1: 1, x2: 27, y1: 6, y2: 6, "stroke-width": style.width, "stroke-dasharray": style.dash }),
      svg("path", { class: "mark", d: markerPath(style.marker, 14, 6, 4) }),
    ),
    { "--c": style.colour },
  );
}

function markerPath(kind, x, y, r) {
  if (kind === "circle") return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
  if (kind === "square") return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
  if (kind === "triangle") return `M${x} ${y - r}l${r} ${1.8 * r}h${-2 * r}z`;
  if (kind === "diamond") return `M${x} ${y - 1.3 * r}l${1.1 * r} ${1.3 * r}l${-1.1 * r} ${1.3 * r}l${-1.1 * r} ${-1.3 * r}z`;
  const t = r / 3;
  return `M${x - r} ${y - t}h${r - t}v${t - r}h${2 * t}v${r - t}h${r - t}v${2 * t}h${t - r}v${r - t}h${-2 * t}v${t - r}h${t - r}z`;
}

/** The method whose lines stand out: one that is hidden has none. */
function strongest() {
  return state.hidden.has(state.strong) ? null : state.strong;
}

function isFaded(name) {
  return strongest() !== null && strongest() !== name;
}

/**
 * Buttons that show and hide methods in all charts; pointing at one makes its lines stand out. `drawn` tells which methods
 * of a comparison have a line below: the others get no button.
 */
function legend(drawn) {
  const seen = new Map(comparisons.flatMap((each) => each.methods.filter((_, i) => drawn(each).has(i)).map((method) => [method.name, method])));
  const buttons = [...seen.values()].map(({ name, label }) => {
    const toggle = () => {
      const hidden = new Set(state.hidden);
      if (!hidden.delete(name)) hidden.add(name);
      change({ hidden });
    };
    const strong = (value) => () => change({ strong: value });
    const listen = { click: toggle, pointerenter: strong(name), pointerleave: strong(null) };
    const button = el("button", { type: "button", "aria-pressed": "true", ...listen }, swatch(name), el("span", {}, label));
    onChange(() => button.setAttribute("aria-pressed", String(!state.hidden.has(name))));
    return button;
  });
  return el("div", { class: "legend", role: "group", "aria-label": "Methods shown in the charts" }, buttons);
}

/** One part for each comparison; several are put side by side under their names. */
function sideBySide(make) {
  const parts = comparisons.map((comparison) => [comparison, make(comparison)]).filter(([, part]) => part);
  if (!parts.length) return null;
  if (comparisons.length === 1) return parts[0][1];
  return el(
    "div",
    { class: "side" },
    parts.map(([{ name }, part]) => el("div", { class: "one" }, el("h3", { class: "run" }, name), part)),
  );
}

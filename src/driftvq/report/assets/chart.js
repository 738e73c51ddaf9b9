"use strict";

/* Line charts, drawn at the size they have, with a read-out for pointer and keyboard. */

const FONT = 12;
const LABEL_SPACE = 214;
const LABELLED = 640;

function niceTicks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i += 1) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

const MOST_TICKS = 7;

/** Ticks at 1, 2 and 5 times powers of ten, or at these alone, or at every second of them, if there were too many. */
function logTicks(low, high) {
  const powers = Math.log10(high / low);
  const factors = powers > 2.5 ? [1] : [1, 2, 5];
  const every = Math.ceil(powers / MOST_TICKS);
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    if (power % every) continue;
    for (const factor of factors) ticks.push(Number((factor * 10 ** power).toPrecision(6)));
  }
  return ticks.filter((value) => value >= low && value <= high);
}

/** Whether a chart that allows a log scale needs one: all values are above 0, and the largest is so many times the smallest. */
function isLogY(series, { logY }) {
  const values = logY ? series.flatMap(({ ys, low = [] }) => [...ys, ...low]) : [];
  return values.length > 0 && Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > logY;
}

const WORTH_CLIPPING = 1.5;

/** Where most values lie, and as far again: what is farther out is clipped, and marked at the edge. */
function coreOf(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
  const width = at(0.9) - at(0.1);
  return [Math.max(sorted[0], at(0.1) - width), Math.min(sorted.at(-1), at(0.9) + width)];
}

/** The range of the values that are to be seen; the first moments of a training may leave the picture. */
function rangeOf(series, { percent, skipStart, logY, clips, shows }) {
  if (percent) return [0, 1];
  const last = Math.max(...series.flatMap(({ xs }) => xs));
  let [low, high] = shows ?? [Infinity, -Infinity];
  for (const { xs, ys, low: lows = ys, high: highs = ys } of series) {
    xs.forEach((x, i) => {
      if (skipStart && !isLogY(series, { logY }) && x < 0.1 * last) return;
      low = Math.min(low, lows[i]);
      high = Math.max(high, highs[i]);
    });
  }
  if (!(low <= high)) return [0, 1];
  if (clips && !isLogY(series, { logY })) {
    const core = [...coreOf(series.flatMap(({ ys }) => ys)), ...(shows ?? [])].sort((a, b) => a - b);
    if (high - low > WORTH_CLIPPING * (core.at(-1) - core[0])) [low, high] = [Math.max(low, core[0]), Math.min(high, core.at(-1))];
  }
  if (isLogY(series, { logY })) return [low / (high / low) ** 0.06, high * (high / low) ** 0.06];
  const margin = 0.06 * (high - low) || 0.1 * Math.abs(high) || 1;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

/**
 * A chart. `spec` has title, note, xName, percent, logX, logY (from how many times the smallest value on the scale is a log
 * one), xTicks, skipStart, clips, shows (values that are always on the scale), threshold, compact; series() gives what is shown
 * now as {name, label, xs, ys, low, high}, flat if it holds for every x, and range() the series that the axes have to fit
 * (those of all comparisons).
 */
function lineChart(spec) {
  const plot = el("div", { class: "plot", tabindex: 0, role: "slider", "aria-label": spec.title });
  const tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const note = el("span", {}, spec.note);
  const chart = { spec, plot, tip, note, cursor: null, width: 0 };
  const numbers = dataTable(spec.title, () => chartNumbers(spec));
  const caption = el("figcaption", {}, el("strong", {}, spec.title), note);
  const figure = el("figure", { class: spec.compact ? "chart compact" : "chart" }, caption, plot, numbers);
  new ResizeObserver(() => chart.width && plot.clientWidth && plot.clientWidth !== chart.width && drawChart(chart)).observe(plot);
  later(() => drawChart(chart));
  onChange(() => {
    drawChart(chart);
    numbers.refresh();
  });
  plot.addEventListener("pointermove", (event) => point(chart, event));
  plot.addEventListener("pointerleave", () => document.activeElement !== plot && moveCursor(chart, null));
  plot.addEventListener("focus", () => plot.matches(":focus-visible") && moveCursor(chart, chart.cursor ?? (chart.xs?.length ?? 0) - 1));
  plot.addEventListener("blur", () => moveCursor(chart, null));
  plot.addEventListener("keydown", (event) => step(chart, event));
  return figure;
}

function visibleSeries(spec) {
  return spec.series().filter(({ name }) => !state.hidden.has(name));
}

function drawChart(chart) {
  const { spec, plot } = chart;
  const width = (chart.width = plot.clientWidth || 640);
  const height = spec.compact ? 190 : width < 480 ? 250 : 320;
  const labelled = !spec.compact && width >= LABELLED;
  const box = { left: 46, right: width - (labelled ? LABEL_SPACE : 14), top: 12, bottom: height - 36 };
  const range = spec.range();
  const all = range.flatMap(({ xs }) => xs);
  chart.series = visibleSeries(spec);
  chart.xs = [...new Set(chart.series.flatMap(({ xs }) => xs))].sort((a, b) => a - b);
  const warp = spec.logX ? Math.log2 : (value) => value;
  let [first, last] = [warp(Math.min(...all)), warp(Math.max(...all))];
  chart.only = first === last ? [all[0]] : null;
  if (chart.only) [first, last] = [first - 1, last + 1];
  const [low, high] = rangeOf(range, spec);
  chart.x = (value) => box.left + ((warp(value) - first) / (last - first)) * (box.right - box.left);
  const rise = isLogY(range, spec) ? Math.log : (value) => value;
  chart.y = (value) => box.bottom - ((rise(value) - rise(low)) / (rise(high) - rise(low) || 1)) * (box.bottom - box.top);
  chart.yTicks = rise === Math.log ? logTicks(low, high) : niceTicks(low, high, spec.compact ? 3 : 5);
  Object.assign(chart, { box, height, low, high });
  const beyond = spec.clips && chart.series.some(({ ys }) => ys.some((value) => value < low || value > high));
  const words = [spec.note, rise === Math.log ? "log scale" : null, beyond ? "▲ ▼ beyond the scale" : null];
  chart.note.textContent = words.filter(Boolean).join("; ");

  const clip = `clip-${(drawChart.count = (drawChart.count ?? 0) + 1)}`;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true", focusable: "false" });
  const clipBox = { x: box.left - 5, y: box.top - 5, width: box.right - box.left + 10, height: box.bottom - box.top + 8 };
  picture.append(svg("defs", {}, svg("clipPath", { id: clip }, svg("rect", clipBox))));
  picture.append(axes(chart, first, last));
  const curves = svg("g", { "clip-path": `url(#${clip})` });
  if (spec.threshold) curves.append(thresholdLine(chart));
  for (const series of inOrder(chart.series)) curves.append(curve(chart, series));
  picture.append(curves);
  if (spec.clips) picture.append(clipMarks(chart));
  if (labelled) picture.append(endLabels(chart));
  chart.cursorLayer = svg("g");
  picture.append(chart.cursorLayer);
  plot.replaceChildren(picture, chart.tip);
  if (!chart.series.length) plot.append(el("p", { class: "empty" }, "No method is shown here."));
  moveCursor(chart, chart.cursor === null ? null : Math.min(chart.cursor, chart.xs.length - 1));
}

/** Our methods are drawn last, so that they lie on top; the one pointed at above all. */
function inOrder(series) {
  const weight = ({ name }) => (name === strongest() ? 99 : styles.get(name).width);
  return [...series].sort((a, b) => weight(a) - weight(b));
}

function axes({ spec, box, x, y, yTicks, width, only }, first, last) {
  const group = svg("g", { class: "axes" });
  for (const value of yTicks) {
    group.append(svg("line", { x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
    group.append(svg("text", { x: box.left - 8, y: y(value) + 4, "text-anchor": "end" }, short(value, spec.percent)));
  }
  let free = -Infinity;
  const ticks = spec.xTicks ? spec.xTicks() : only ?? niceTicks(first, last, clamp(Math.floor(width / 90), 2, 8));
  for (const value of ticks) {
    const at = x(value);
    const text = spec.xTicks ? String(value) : short(value);
    if (at < box.left - 1 || at > box.right + 1 || at - 4 * text.length < free) continue;
    free = at + 4 * text.length + 8;
    group.append(svg("line", { class: "tick", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 5 }));
    const anchor = at > box.right - 16 && !spec.xTicks ? "end" : "middle";
    group.append(svg("text", { x: at, y: box.bottom + 18, "text-anchor": anchor }, text));
  }
  group.append(svg("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  group.append(svg("text", { class: "name", x: (box.left + box.right) / 2, y: box.bottom + 33, "text-anchor": "middle" }, spec.xName));
  return group;
}

function curve({ x, y, spec }, { name, xs, ys, low, high }) {
  const style = styles.get(name);
  const place = (values) => values.map((value, i) => `${x(xs[i]).toFixed(1)} ${y(value).toFixed(1)}`);
  const group = styled(svg("g", { class: isFaded(name) ? "faded" : null }), { "--c": style.colour });
  if (low && high) group.append(svg("path", { class: "band", d: `M${place(low).join("L")}L${reversed(place(high)).join("L")}z` }));
  const path = { class: "curve", d: `M${place(ys).join("L")}`, "stroke-width": style.width, "stroke-dasharray": style.dash };
  group.append(svg("path", path));
  const every = spec.logX ? 1 : Math.max(1, Math.round(xs.length / 5));
  const offset = Math.round((every * (MARKERS.indexOf(style.marker) + 1)) / (MARKERS.length + 1));
  const marked = xs.map((_, i) => i).filter((i) => i === xs.length - 1 || (i > 0 && i % every === offset % every) || spec.logX);
  const size = spec.compact ? 2.6 : 3.6;
  group.append(svg("path", { class: "mark", d: marked.map((i) => markerPath(style.marker, x(xs[i]), y(ys[i]), size)).join("") }));
  return group;
}

/** Below it a codebook counts as collapsed. */
function thresholdLine({ spec, box, y }) {
  const at = y(spec.threshold.value);
  const line = svg("line", { class: "threshold", x1: box.left, x2: box.right, y1: at, y2: at });
  return svg("g", {}, line, svg("text", { class: "threshold-label", x: box.left + 6, y: at + 14 }, spec.threshold.label));
}

/** A triangle at the edge for each stretch that lies beyond the scale, at its farthest value; the farthest of all are written. */
function clipMarks({ series, low, high, x, box, spec }) {
  const group = svg("g", { class: "clipped" });
  for (const [up, edge] of [[true, box.top], [false, box.bottom]]) {
    const out = (value) => (up ? value > high : value < low);
    const found = series.flatMap((each) => farthest(each, out, up));
    for (const { name, label, at, value } of found) {
      const tip = up ? -5 : 5;
      const mark = svg("path", { d: `M${x(at) - 4} ${edge}h8l-4 ${tip}z`, class: isFaded(name) ? "mark faded" : "mark" }, svg("title", {}, `${label}: ${read(value, spec.percent)}`));
      group.append(styled(mark, { "--c": styles.get(name).colour }));
    }
    if (!found.length) continue;
    const most = found.reduce((a, b) => ((up ? b.value > a.value : b.value < a.value) ? b : a));
    const right = x(most.at) > (box.left + box.right) / 2;
    const place = { x: x(most.at) + (right ? -8 : 8), y: edge + (up ? 9 : -4), "text-anchor": right ? "end" : "start" };
    group.append(svg("text", place, read(most.value, spec.percent)));
  }
  return group;
}

/** The farthest value of each stretch of a line for which `out` holds. */
function farthest({ name, label, xs, ys }, out, up) {
  const found = [];
  ys.forEach((value, i) => {
    if (!out(value)) return;
    const last = found.at(-1);
    const goesOn = last && last.end === i - 1;
    if (!goesOn) found.push({ name, label, at: xs[i], value, end: i });
    else {
      if (up ? value > last.value : value < last.value) Object.assign(last, { at: xs[i], value });
      last.end = i;
    }
  });
  return found;
}

function reversed(list) {
  return [...list].reverse();
}

/** Names at the ends of the lines, moved apart where they would overlap. */
function endLabels({ series, box, y, x }) {
  const labels = series.map((each) => {
    const end = { x: x(each.xs.at(-1)), y: clamp(y(each.ys.at(-1)), box.top, box.bottom) };
    return { ...each, end, at: end.y };
  });
  labels.sort((a, b) => a.end.y - b.end.y);
  const gap = Math.min(16, (box.bottom - box.top + 8) / Math.max(1, labels.length - 1));
  for (let i = 1; i < labels.length; i += 1) labels[i].at = Math.max(labels[i].at, labels[i - 1].at + gap);
  const below = Math.max(0, (labels.at(-1)?.at ?? 0) - box.bottom - 4);
  if (below) {
    labels.at(-1).at -= below;
    for (let i = labels.length - 2; i >= 0; i -= 1) labels[i].at = Math.min(labels[i].at, labels[i + 1].at - gap);
  }
  return svg(
    "g",
    { class: "ends" },
    labels.map(({ name, label, end, at }) =>
      styled(
        svg(
          "g",
          { class: isFaded(name) ? "faded" : null },
          svg("path", { class: "leader", d: `M${end.x + 5} ${end.y}L${box.right + 12} ${at}` }),
          svg("path", { class: "mark", d: markerPath(styles.get(name).marker, box.right + 17, at, 3.4) }),
          svg("text", { x: box.right + 26, y: at + 4 }, label.length > 26 ? `${label.slice(0, 25)}…` : label, svg("title", {}, label)),
        ),
        { "--c": styles.get(name).colour },
      ),
    ),
  );
}

/* ---- Read-out ---- */

function valueAt({ xs, ys, low, high, flat }, x) {
  const i = flat ? 0 : xs.indexOf(x);
  return i < 0 ? null : { value: ys[i], low: low?.[i], high: high?.[i] };
}

function readOut(chart, x) {
  const found = chart.series.map((series) => ({ ...series, ...valueAt(series, x) })).filter(({ value }) => value !== undefined);
  return found.sort((a, b) => b.value - a.value);
}

function moveCursor(chart, index) {
  const { plot, tip, spec, box, cursorLayer, xs } = chart;
  if (!cursorLayer) return;
  chart.cursor = index;
  cursorLayer.replaceChildren();
  const at = index ?? xs.length - 1;
  const text = xs.length ? `${spec.xName} ${short(xs[at])}` : "";
  const values = xs.length ? readOut(chart, xs[at]) : [];
  const words = values.map(({ label, value }) => `${label} ${read(value, spec.percent)}`).join(", ");
  for (const [name, value] of [["min", 0], ["max", Math.max(0, xs.length - 1)], ["now", Math.max(0, at)]]) {
    plot.setAttribute(`aria-value${name}`, value);
  }
  plot.setAttribute("aria-valuetext", `${text}: ${words || "nothing measured"}`);
  tip.hidden = index === null || !values.length;
  if (tip.hidden) return;
  const x = chart.x(xs[index]);
  cursorLayer.append(svg("line", { class: "cursor", x1: x, x2: x, y1: box.top, y2: box.bottom }));
  tip.replaceChildren(el("p", {}, text), el("table", {}, values.map((each) => tipRow(each, spec))));
  const right = x < (box.left + box.right) / 2;
  styled(tip, { left: right ? `${x + 12}px` : "auto", right: right ? "auto" : `${chart.width - x + 12}px` });
}

function tipRow({ name, label, value }, { percent }) {
  return el("tr", {}, el("td", {}, swatch(name)), el("td", {}, label), el("td", { class: "number" }, read(value, percent)));
}

function point(chart, event) {
  if (!chart.xs?.length) return;
  const at = event.clientX - chart.plot.getBoundingClientRect().left;
  const distance = (i) => Math.abs(chart.x(chart.xs[i]) - at);
  moveCursor(chart, chart.xs.reduce((best, _, i) => (distance(i) < distance(best) ? i : best), 0));
}

function step(chart, event) {
  if (!chart.xs?.length) return;
  const last = chart.xs.length - 1;
  const now = chart.cursor ?? last;
  const far = Math.max(1, Math.round(last / 10));
  const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -far, PageUp: far, Home: -last, End: last };
  if (event.key === "Escape") moveCursor(chart, null);
  if (!(event.key in moves)) return;
  event.preventDefault();
  moveCursor(chart, clamp(now + moves[event.key], 0, last));
}

function chartNumbers(spec) {
  const series = spec.series();
  const xs = [...new Set(series.flatMap(({ xs: all }) => all))].sort((a, b) => a - b);
  const count = Math.min(xs.length, 9);
  const chosen = Array.from({ length: count }, (_, i) => xs[Math.round((i * (xs.length - 1)) / Math.max(1, count - 1))]);
  const cell = (each, x) => {
    const found = valueAt(each, x);
    return found ? read(found.value, spec.percent) : "–";
  };
  return {
    headings: [spec.xName, ...chosen.map((x) => short(x))],
    rows: series.map((each) => [each.label, ...chosen.map((x) => cell(each, x))]),
  };
}

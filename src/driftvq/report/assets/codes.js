"use strict";

/* How evenly codes are used, and where they lie. */

/** Small screens get smaller panels, not smaller letters. */
const narrow = matchMedia("(max-width: 640px)");

function shownCodes(comparison) {
  return comparison.codes.filter(({ point }) => isShown(comparison, point));
}

/** Panels that are made again when another place of the sweep is chosen. */
function codePanels(comparison, className, make) {
  const box = el("div", { class: `grid ${className}` });
  let shown;
  const draw = () => {
    const wanted = JSON.stringify([state.point, narrow.matches]);
    if (shown === wanted) return;
    shown = wanted;
    const panels = shownCodes(comparison).map((codes) => make(comparison, codes)).filter(Boolean);
    box.replaceChildren(...(panels.length ? panels : [el("p", { class: "empty" }, "No codes were recorded here.")]));
  };
  later(draw);
  onChange(draw);
  narrow.addEventListener("change", draw);
  return box;
}

function histogramPart(comparison) {
  if (!comparison.codes.length) return null;
  const most = Math.max(...comparisons.flatMap(({ codes }) => codes.map(({ counts }) => counts[0])));
  const panels = codePanels(comparison, "small", (_, codes) => histogram(comparison, codes, most));
  return el("div", {}, selectedOfReference(comparison), panels);
}

/** Counts sorted from the most used code to the least, on a log scale; the dead are hatched. */
function histogram(comparison, codes, most) {
  const { label, name } = methodOf(comparison, codes);
  const [width, height, left, top, bottom] = narrow.matches ? [164, 140, 34, 8, 114] : [260, 170, 38, 8, 140];
  const right = width - 6;
  const x = (rank) => left + (rank / codes.size) * (right - left);
  const floor = Math.log10(0.7);
  const y = (count) => bottom - ((Math.log10(Math.max(count, 0.7)) - floor) / (Math.log10(most) - floor || 1)) * (bottom - top);
  const outline = [`M${x(0)} ${bottom}`];
  codes.ranks.forEach((rank, i) => {
    if (codes.counts[i] > 0) outline.push(`L${x(rank).toFixed(1)} ${y(codes.counts[i]).toFixed(1)}`);
  });
  const last = codes.ranks.reduce((found, rank, i) => (codes.counts[i] > 0 ? i : found), 0);
  outline.push(`L${x(codes.alive).toFixed(1)} ${y(codes.counts[last]).toFixed(1)}L${x(codes.alive).toFixed(1)} ${bottom}z`);
  const dead = codes.size - codes.alive;
  const summary = `${share(codes.alive / codes.size)} alive${judged(codes)}, perplexity ${grouped(codes.perplexity)}`;
  const id = `hatch-${(histogram.count = (histogram.count ?? 0) + 1)}`;
  const hatch = { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label}: ${summary}` },
    svg("defs", {}, svg("pattern", hatch, svg("line", { class: "hatch", x1: 0, x2: 0, y1: 0, y2: 6 }))),
  );
  const axis = svg("g", { class: "axes" });
  for (let count = 1; count <= most; count *= 10) {
    axis.append(svg("line", { x1: left, x2: right, y1: y(count), y2: y(count) }));
    axis.append(svg("text", { x: left - 6, y: y(count) + 4, "text-anchor": "end" }, count < 1000 ? String(count) : `${count / 1000}k`));
  }
  picture.append(axis);
  if (dead) picture.append(svg("rect", { x: x(codes.alive), y: top, width: right - x(codes.alive), height: bottom - top, fill: `url(#${id})` }));
  picture.append(svg("path", { class: "area", d: outline.join("") }));
  const even = y(codes.total / codes.size);
  picture.append(svg("line", { class: "even", x1: left, x2: right, y1: even, y2: even }));
  if (right - x(codes.alive) > 60) picture.append(svg("text", { class: "dead-label", x: (x(codes.alive) + right) / 2, y: (top + bottom) / 2 + 4, "text-anchor": "middle" }, `${grouped(dead)} dead`));
  const base = svg("g", { class: "axes" }, svg("line", { class: "base", x1: left, x2: right, y1: bottom, y2: bottom }));
  base.append(svg("text", { x: left, y: bottom + 17 }, "1"), svg("text", { x: right, y: bottom + 17, "text-anchor": "end" }, grouped(codes.size)));
  if (!narrow.matches) base.append(svg("text", { class: "name", x: (left + right) / 2, y: bottom + 17, "text-anchor": "middle" }, "code, by use"));
  picture.append(base);
  styled(picture, { "--c": styles.get(name).colour });
  const table = dataTable(`code use of ${label}`, () => histogramNumbers(codes));
  return el("figure", { class: "panel" }, el("figcaption", {}, el("strong", {}, label), el("span", {}, summary), selected(codes)), picture, table);
}

function histogramNumbers({ ranks, counts }) {
  const chosen = ranks.map((_, i) => i).filter((i) => i % Math.ceil(ranks.length / 10) === 0 || i === ranks.length - 1);
  return { headings: ["Rank", "Selected"], rows: chosen.map((i) => [grouped(ranks[i] + 1), grouped(counts[i])]) };
}

function judged({ state }) {
  return state === "collapsed" ? " (collapsed)" : "";
}

function these(images) {
  return `these ${images === null ? "" : `${grouped(images)} `}images`;
}

/** What the evaluated images select. */
function selected({ selected: found, images }) {
  return found === null ? null : el("span", {}, `${share(found)} selected by ${these(images)}`);
}

/** What they select of the codes of a yardstick. */
function selectedOfReference(comparison) {
  const box = el("p", { class: "soft measure" });
  const draw = () => {
    const found = shownCodes(comparison).find(({ reference }) => reference);
    box.hidden = !found;
    if (found) {
      const { label, selected } = found.reference;
      const why = selected < 1 ? ": a few images select fewer codes than are alive, of any codebook" : "";
      box.textContent = `Of ${label}, ${these(found.images)} select ${share(selected)}${why}.`;
    }
  };
  draw();
  onChange(draw);
  return box;
}

function share(value) {
  return value > 0.999 && value < 1 ? ">99.9%" : `${Number((100 * value).toFixed(1))}%`;
}

/* ---- Maps ---- */

function mapPart(comparison) {
  if (!comparison.codes.some(({ map }) => map)) return null;
  return codePanels(comparison, "maps", codeMap);
}

const MANY = 5;
const NUMBERS = 6;

/** Codes over latents: living ones as dots, dead ones as crosses, larger and with their number where many lie together. */
function codeMap(comparison, codes) {
  const { map } = codes;
  if (!map) return null;
  const { label } = methodOf(comparison, codes);
  const unit = 1000 / 280;
  const pad = 8 * unit;
  const size = 1000 + 2 * pad;
  const [dx, dy] = [(1000 - map.width) / 2 + pad, (1000 - map.height) / 2 + pad];
  const each = (flat, draw) => {
    const parts = [];
    for (let i = 0; i < flat.length; i += 2) parts.push(draw(flat[i] + dx, size - (flat[i + 1] + dy)));
    return parts.join("");
  };
  const dot = (x, y) => `M${x} ${y.toFixed(0)}h0`;
  const r = 2.6 * unit;
  const cross = (x, y, s) => `M${(x - s).toFixed(0)} ${(y - s).toFixed(0)}l${(2 * s).toFixed(1)} ${(2 * s).toFixed(1)}m0 ${(-2 * s).toFixed(1)}l${(-2 * s).toFixed(1)} ${(2 * s).toFixed(1)}`;
  const crosses = [];
  for (let i = 0; i < map.dead.length; i += 3) {
    const [x, y, count] = [map.dead[i] + dx, size - (map.dead[i + 1] + dy), map.dead[i + 2]];
    crosses.push({ x, y, count, r: r * Math.min(2.2, 1 + 0.25 * Math.log2(count)) });
  }
  const numbered = [];
  for (const one of crosses.filter(({ count }) => count >= MANY).sort((a, b) => b.count - a.count)) {
    if (numbered.every(({ x, y }) => Math.abs(one.x - x) > 40 * unit || Math.abs(one.y - y) > 14 * unit)) numbered.push(one);
  }
  const crowd = map.alive.length / 2;
  const dotSize = (crowd > 800 ? 2.6 : crowd > 200 ? 3.6 : 6) * unit;
  const dead = codes.size - codes.alive;
  const part = map.shown < codes.size ? ` (${grouped(map.shown)} shown)` : "";
  const summary = `${grouped(codes.alive)} alive, ${grouped(dead)} dead${judged(codes)}${part}`;
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": `${label}: ${summary}` },
    svg("path", { class: "latents", d: each(map.latents, dot), "stroke-width": 5 * unit }),
    svg("path", { class: "alive", d: each(map.alive, dot), "stroke-width": dotSize }),
    svg("path", { class: "dead", d: crosses.map((one) => cross(one.x, one.y, one.r)).join(""), "stroke-width": 1.3 * unit }),
    numbered.slice(0, NUMBERS).map((one) => {
      const left = one.x > size / 2;
      const place = { x: one.x + (left ? -1 : 1) * (one.r + 3 * unit), y: one.y + 4 * unit, "text-anchor": left ? "end" : "start" };
      return styled(svg("text", { class: "under", ...place }, grouped(one.count)), { "font-size": `${12 * unit}px` });
    }),
  );
  return el("figure", { class: "panel" }, el("figcaption", {}, el("strong", {}, label), el("span", {}, summary)), picture);
}

function mapKey() {
  const icon = (kind, d, width) =>
    svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, svg("path", { class: kind, d, "stroke-width": width }));
  return el(
    "ul",
    { class: "key" },
    el("li", {}, icon("alive", "M8 8h0", 9), " alive: some of the latents that usage is counted over selects the code"),
    el("li", {}, icon("dead", "M3 3l10 10m0-10l-10 10", 2), " dead: none does"),
    el("li", {}, icon("latents", "M8 8h0", 7), " latents of the evaluation images"),
  );
}

"use strict";

/* Charts against steps and against the place in the sweep. */

function stepSeries(comparison, chart) {
  const { curves, steps } = comparison.training;
  const all = steps.flat();
  const index = comparison.training.charts.findIndex(({ key }) => key === chart.key);
  return curves
    .filter((curve) => curve.chart === index && isShown(comparison, curve.point))
    .map((curve) => {
      const { name, label, group } = methodOf(comparison, curve);
      const xs = steps[curve.steps];
      const ends = [Math.min(...all), Math.max(...all)];
      // A yardstick without a training of its own holds for every step.
      if (group === "reference" && xs.length === 1) return { name, label, xs: ends, ys: [curve.mean[0], curve.mean[0]], flat: true };
      return { name, label, xs, ys: curve.mean, low: curve.low, high: curve.high };
    });
}

const LOG_FROM = 50;

function stepChart(comparison, chart, compact = false) {
  const seeds = comparison.seeds.length > 1 ? "mean of the seeds, band from the lowest to the highest" : "one seed";
  const shows = chart.key.includes("/follow_") ? [0, 1] : null; // not at all, and fully
  return lineChart({
    title: chart.label,
    note: compact ? null : `${chart.where}; ${seeds}`,
    xName: "step",
    percent: chart.percent,
    skipStart: !compact,
    logY: compact && !shows ? LOG_FROM : null,
    clips: compact,
    shows,
    threshold: chart.usage ? { value: report.collapsed, label: `collapsed: below ${short(report.collapsed, true)}` } : null,
    compact,
    series: () => stepSeries(comparison, chart),
    range: () => comparisons.flatMap((each) => stepSeries(each, chart)),
  });
}

/** Usage and PSNR against steps. */
function trainingPart(comparison) {
  const charts = comparison.training.charts.filter(({ kind }) => kind === "quality");
  if (!charts.length) return null;
  return el("div", { class: "stack" }, charts.map((chart) => stepChart(comparison, chart)));
}

/** The methods of a comparison that have a line in charts of a kind. */
function drawnIn(kind) {
  return ({ training }) => new Set(training.curves.filter(({ chart }) => training.charts[chart].kind === kind).map(({ method }) => method));
}

function drawnInSweep({ rows, lead }) {
  return new Set(rows.filter(({ values }) => values[lead] || values.usage).map(({ method }) => method));
}

const FADING =
  "Drift fades: as the loss flattens, the encoder takes smaller steps, so latents move less from reading to reading. The first reading may be " +
  "hundreds of times the last, hence the log scales. How far codes follow is a ratio to what the latents near them did: where these hardly " +
  "move any more, it is mostly noise, and a low value does not mean that codes are lost. Whether they are, usage tells.";

/** The readings of the drift meter: those that tell most, the others on demand. */
function driftPart(comparison) {
  const charts = comparison.training.charts.filter(({ kind }) => kind === "drift");
  if (!charts.length) return null;
  const grid = (some) => el("div", { class: "grid" }, some.map((chart) => stepChart(comparison, chart, true)));
  const rest = charts.filter(({ first }) => !first);
  const fading = el("p", { class: "soft measure" }, FADING);
  if (!rest.length) return el("div", {}, fading, grid(charts));
  const more = el("details", { class: "more" }, el("summary", {}, rest.length === 1 ? "One more reading" : `${rest.length} more readings`));
  more.addEventListener("toggle", () => more.open && more.childElementCount === 1 && more.append(grid(rest)));
  return el("div", {}, fading, grid(charts.filter(({ first }) => first)), more);
}

function sweepSeries(comparison, name) {
  const values = comparison.sweep.values;
  return comparison.methods
    .map((method, index) => {
      const rows = comparison.rows.filter((row) => row.method === index && row.values[name]);
      const constant = rows.find((row) => row.point === null);
      const found = values
        .map((x) => ({ x, value: (rows.find((row) => row.point === x) ?? constant)?.values[name] }))
        .filter(({ value }) => value);
      const spread = found.some(({ value }) => value.spread !== null);
      const bound = (sign) => found.map(({ value }) => value.mean + sign * (value.spread ?? 0));
      return {
        name: method.name,
        label: method.label,
        xs: found.map(({ x }) => x),
        ys: found.map(({ value }) => value.mean),
        ...(spread ? { low: bound(-1), high: bound(1) } : {}),
      };
    })
    .filter(({ xs }) => xs.length);
}

/** The lead metric, rFID and usage against the place in the sweep. */
function sweepPart(comparison) {
  const { sweep } = comparison;
  if (!sweep || sweep.values.length < 2 || !sweep.values.every((value) => typeof value === "number")) return null;
  const names = [...new Set([comparison.lead, "rfid", "usage"])];
  const columns = names.map((name) => comparison.columns.find((column) => column.name === name)).filter(Boolean);
  const seeds = comparison.seeds.length > 1 ? "mean of the seeds, band of one standard deviation" : "one seed";
  const charts = columns.map(({ name, heading, size, percent, better }) => {
    const peers = () => comparisons.filter((each) => each.sweep?.field === sweep.field);
    return lineChart({
      title: size ? `${heading}, ${size}` : heading,
      note: seeds,
      xName: sweep.label,
      percent,
      logY: better === "lower" ? 4 : null,
      threshold: name === "usage" ? { value: report.collapsed, label: `collapsed: below ${short(report.collapsed, true)}` } : null,
      logX: sweep.values.every((value) => value > 0),
      xTicks: () => [...sweep.values].sort((a, b) => a - b),
      series: () => sweepSeries(comparison, name),
      range: () => peers().flatMap((each) => sweepSeries(each, name)),
    });
  });
  return el("div", { class: "stack" }, charts);
}

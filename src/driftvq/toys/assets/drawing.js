"use strict";

/* Pictures on canvases: a cloud with its codes, and a curve over time. They read colours from the style sheet. */

const SPOKES = 420;
const TARGETS = 500;
const TRAIL = 14;
const RING = 4.5;
const MARGIN = 16;
const OUTLIERS = 0.003;
const CHART_LEFT = 46;
const CHART_RIGHT = 10;
const BATCH_LABELS = [10, 20, 40, 60, 100, 200];
const DASHES = { ns_vq_toy: [7, 4], trans_vq_toy: [7, 4] };

function themeColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "card", "ink", "soft", "line", "cloud", "batch", "target", ...Object.keys(METHODS)];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** The canvas's context in CSS pixels, cleared; its pixels match the screen's. */
function freshContext(canvas) {
  const density = Math.min(window.devicePixelRatio || 1, 2);
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * density) || canvas.height !== Math.round(height * density)) {
    canvas.width = Math.round(width * density);
    canvas.height = Math.round(height * density);
  }
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

const between = (low, high, share) => low.map((value, i) => value + share * (high[i] - value));

/** What surrounds the first codes and nearly all of the cloud, at its start and at its end. */
function boundsOf(cloud) {
  const [left, right] = rangeOf(cloud, 0);
  const [bottom, top] = rangeOf(cloud, 1);
  return { left, right, bottom, top };
}

function rangeOf({ initial, targets, codebook }, axis) {
  const ends = [...codebook.filter((_, i) => i % 2 === axis)];
  for (const points of [initial, targets]) {
    const sorted = points.filter((_, i) => i % 2 === axis).sort();
    const rare = Math.floor(sorted.length * OUTLIERS);
    ends.push(sorted[rare], sorted[sorted.length - 1 - rare]);
  }
  return [Math.min(...ends), Math.max(...ends)];
}

/** A map from the plane to the canvas, one scale for both axes. */
function viewOf(bounds, width, height) {
  const { left, right, bottom, top } = bounds;
  const scale = Math.min((width - 2 * MARGIN) / (right - left), (height - 2 * MARGIN) / (top - bottom));
  const centreX = (left + right) / 2;
  const centreY = (bottom + top) / 2;
  return {
    width,
    height,
    scale,
    x: (x) => width / 2 + (x - centreX) * scale,
    y: (y) => height / 2 - (y - centreY) * scale,
  };
}

/** One method's cloud and codes at a time that may lie between two states. */
function drawPanel(canvas, run, bounds, time, side, method, colours) {
  const { context, width, height } = freshContext(canvas);
  const view = viewOf(bounds, width, height);
  const now = Math.floor(time);
  const state = run.states[now];
  const next = run.states[Math.min(now + 1, run.states.length - 1)];
  const codebook = between(state.methods[side].codebook, next.methods[side].codebook, time - now);
  const { demo, initial, targets } = run.cloud;
  const points = movedPoints(demo, initial, between(state.drift, next.drift, time - now));

  const size = width < 420 ? 1.4 : 2;
  dots(context, view, targets, 2 * TARGETS, colours.target, size, 0.8);
  spokes(context, view, points, codebook, colours[method]);
  dots(context, view, points, points.length, colours.cloud, size, 0.75);
  if (state.indices) dots(context, view, batchOf(points, state.indices), 2 * state.indices.length, colours.batch, 1.7 * size, 1);
  trails(context, view, run, time, side, codebook, colours[method]);
  codes(context, view, codebook, state.methods[side].alive, colours, colours[method], markSize(view.scale, run.optimumAt(now)));
}

/** Half a cross in pixels: less than the distance between the codes of a well-covered cloud. */
const markSize = (scale, optimum) => Math.min(Math.max(0.55 * scale * Math.sqrt(optimum), 3.6), 7);

function dots(context, view, points, length, colour, size, alpha) {
  context.globalAlpha = alpha;
  context.fillStyle = colour;
  for (let i = 0; i < length; i += 2) context.fillRect(view.x(points[i]) - size / 2, view.y(points[i + 1]) - size / 2, size, size);
  context.globalAlpha = 1;
}

function batchOf(points, indices) {
  const batch = new Float64Array(2 * indices.length);
  indices.forEach((index, i) => batch.set(points.subarray(2 * index, 2 * index + 2), 2 * i));
  return batch;
}

function spokes(context, view, points, codebook, colour) {
  context.beginPath();
  for (let i = 0; i < 2 * SPOKES && i < points.length; i += 2) {
    const code = 2 * nearestCode(codebook, points[i], points[i + 1]);
    context.moveTo(view.x(points[i]), view.y(points[i + 1]));
    context.lineTo(view.x(codebook[code]), view.y(codebook[code + 1]));
  }
  context.strokeStyle = colour;
  context.globalAlpha = 0.4;
  context.lineWidth = 0.7;
  context.stroke();
  context.globalAlpha = 1;
}

/** Where the codes were a few states ago. */
function trails(context, view, run, time, side, codebook, colour) {
  const now = Math.floor(time);
  context.beginPath();
  for (let k = 0; k < codebook.length; k += 2) {
    context.moveTo(view.x(codebook[k]), view.y(codebook[k + 1]));
    for (let t = now; t >= Math.max(0, now - TRAIL); t -= 1) {
      const past = run.states[t].methods[side].codebook;
      context.lineTo(view.x(past[k]), view.y(past[k + 1]));
    }
  }
  context.strokeStyle = colour;
  context.globalAlpha = 0.45;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.stroke();
  context.globalAlpha = 1;
}

/**
 * Living codes as crosses, dead ones as rings, each on a halo that keeps it apart from the cloud.
 * A code beyond the picture is drawn at its edge.
 */
function codes(context, view, codebook, alive, colours, colour, size) {
  const marks = { cross: new Path2D(), ring: new Path2D() };
  for (let k = 0; k < alive.length; k += 1) {
    const x = Math.min(Math.max(view.x(codebook[2 * k]), MARGIN / 2), view.width - MARGIN / 2);
    const y = Math.min(Math.max(view.y(codebook[2 * k + 1]), MARGIN / 2), view.height - MARGIN / 2);
    if (alive[k]) {
      marks.cross.moveTo(x - size, y);
      marks.cross.lineTo(x + size, y);
      marks.cross.moveTo(x, y - size);
      marks.cross.lineTo(x, y + size);
    } else {
      marks.ring.moveTo(x + RING, y);
      marks.ring.arc(x, y, RING, 0, 2 * Math.PI);
    }
  }
  context.lineCap = "round";
  for (const [path, width, stroke] of [
    [marks.ring, 4, colours.card],
    [marks.ring, 1.8, colours.ink],
    [marks.cross, 0.45 * size + 2.5, colours.card],
    [marks.cross, 0.45 * size, colour],
  ]) {
    context.lineWidth = width;
    context.strokeStyle = stroke;
    context.stroke(path);
  }
}

/**
 * Curves over the timeline, as far as they are known: strong until now, faint after.
 * `chart` has low, high, log, ticks (value → label), batches (the labels of time) and value(t, side).
 */
function drawChart(canvas, chart, run, now, methods, colours) {
  const { context, width, height } = freshContext(canvas);
  const [left, right, top, bottom] = [CHART_LEFT, width - CHART_RIGHT, 8, height - 20];
  const scale = chart.log ? Math.log : (value) => value;
  const [low, high] = [scale(chart.low), scale(chart.high)];
  const last = run.moments.length - 1;
  const x = (t) => left + (run.placeOf(t) / last) * (right - left);
  const y = (value) => bottom - ((Math.min(Math.max(scale(value), low), high) - low) / (high - low)) * (bottom - top);

  drawAxes(context, chart, { left, right, top, bottom, x, y }, run, colours);
  context.strokeStyle = colours.ink;
  segment(context, x(now), top, x(now), bottom);
  const known = run.states.length - 1;
  methods.forEach((method, side) => {
    context.strokeStyle = context.fillStyle = colours[method];
    context.lineWidth = 2.4;
    context.setLineDash(methods.indexOf(method) < side ? [2, 6] : DASHES[method] ?? []);
    context.globalAlpha = 0.4;
    curve(context, chart, run, side, known, x, y);
    context.globalAlpha = 1;
    curve(context, chart, run, side, now, x, y);
    context.setLineDash([]);
    context.beginPath();
    context.arc(x(now), y(chart.value(now, side)), 4, 0, 2 * Math.PI);
    context.fill();
  });
}

/** Labels of the values and of time, which is stretched while the cloud moves. */
function drawAxes(context, chart, { left, right, bottom, top, x, y }, run, colours) {
  context.font = "12px system-ui, sans-serif";
  context.lineWidth = 1;
  context.strokeStyle = colours.line;
  context.fillStyle = colours.soft;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const [value, label] of chart.ticks) {
    segment(context, left, y(value), right, y(value));
    context.fillText(label, left - 6, y(value));
  }
  context.textBaseline = "alphabetic";
  let free = -Infinity;
  for (const batch of [0, ...BATCH_LABELS.filter((label) => label < 0.8 * run.steps), run.steps]) {
    if (x(batch) < free) continue;
    free = x(batch) + 34;
    segment(context, x(batch), top, x(batch), bottom);
    context.textAlign = batch === run.steps ? "right" : "center";
    context.fillText(batch === 0 ? "batch 0" : String(batch), x(batch), bottom + 15);
  }
}

function segment(context, fromX, fromY, toX, toY) {
  context.beginPath();
  context.moveTo(fromX, fromY);
  context.lineTo(toX, toY);
  context.stroke();
}

function curve(context, chart, run, side, to, x, y) {
  context.beginPath();
  for (const t of run.moments.filter((moment) => moment < to)) context.lineTo(x(t), y(chart.value(t, side)));
  context.lineTo(x(to), y(chart.value(to, side)));
  context.stroke();
}

"use strict";

/*
 * The drifting clouds, rule for rule those of clouds.py.
 * Points are flat: x0, y0, x1, y1, … A drift is θ (two numbers) or the matrix A (four, by rows).
 */

const DEMOS = ["translation", "expansion", "shrinking", "split"];

const isScaling = (demo) => demo === "expansion" || demo === "shrinking";

/** The drift before the first batch: θ = 0 or A = I. */
function firstDrift(demo) {
  return isScaling(demo) ? Float64Array.of(1, 0, 0, 1) : Float64Array.of(0, 0);
}

/** Where points that started at `initial` are under a drift; `indices` picks some of them. */
function movedPoints(demo, initial, drift, indices = null) {
  const count = indices ? indices.length : initial.length / 2;
  const out = new Float64Array(2 * count);
  for (let i = 0; i < count; i += 1) {
    const at = 2 * (indices ? indices[i] : i);
    const x = initial[at];
    const y = initial[at + 1];
    if (isScaling(demo)) {
      out[2 * i] = x * drift[0] + y * drift[1];
      out[2 * i + 1] = x * drift[2] + y * drift[3];
    } else if (demo === "split") {
      out[2 * i] = x + Math.sign(x) * drift[0];
      out[2 * i + 1] = y + Math.sign(y) * drift[1];
    } else {
      out[2 * i] = x + drift[0];
      out[2 * i + 1] = y + drift[1];
    }
  }
  return out;
}

/** The drift after a batch, which moved at rate `speed` toward the batch's targets. */
function advancedDrift(demo, initial, targets, drift, indices, speed) {
  const now = movedPoints(demo, initial, drift, indices);
  const next = new Float64Array(drift);
  const rate = speed / indices.length;
  for (let i = 0; i < indices.length; i += 1) {
    const at = 2 * indices[i];
    const x = initial[at];
    const y = initial[at + 1];
    const errorX = targets[at] - now[2 * i];
    const errorY = targets[at + 1] - now[2 * i + 1];
    if (isScaling(demo)) {
      next[0] += 2 * rate * errorX * x;
      next[1] += 2 * rate * errorX * y;
      next[2] += 2 * rate * errorY * x;
      next[3] += 2 * rate * errorY * y;
    } else if (demo === "split") {
      next[0] += rate * Math.sign(x) * errorX;
      next[1] += rate * Math.sign(y) * errorY;
    } else {
      next[0] += rate * errorX;
      next[1] += rate * errorY;
    }
  }
  return next;
}

/** Random points, targets and first codebook of a demo; `constants` are those of clouds.py. */
function drawCloud(demo, seed, constants) {
  const initial = normals(stream(seed, "points"), 2 * constants.points);
  const codebook = normals(stream(seed, "codebook"), 2 * constants.codes);
  if (demo === "split") initial.forEach((value, i) => { initial[i] = value + constants.splitMean; });
  return { demo, initial, codebook, targets: targetsOf(demo, initial, seed, constants) };
}

function targetsOf(demo, initial, seed, constants) {
  if (isScaling(demo)) {
    const norm = demo === "expansion" ? constants.expansion : constants.shrinkage;
    return movedPoints(demo, initial, randomMatrix(stream(seed, "matrix"), norm, constants.maxCondition));
  }
  return initial.map((value) => value + constants.shift * (demo === "split" ? Math.sign(value) : 1));
}

/** M with |M|₂ = norm: Gaussian, drawn again while it would flatten the cloud, then scaled. */
function randomMatrix(uniform, norm, maxCondition) {
  for (;;) {
    const [a, b, c, d] = normals(uniform, 4);
    const half = (a * a + b * b + c * c + d * d) / 2;
    const spread = Math.sqrt(Math.max(half * half - (a * d - b * c) ** 2, 0));
    const largest = Math.sqrt(half + spread);
    const smallest = Math.sqrt(Math.max(half - spread, 0));
    if (largest <= maxCondition * smallest) return Float64Array.of(a, b, c, d).map((value) => (value * norm) / largest);
  }
}

"use strict";

/*
 * A demo with several methods on the same cloud and the same batches, simulated as far as it was asked for and kept,
 * so that any past moment can be shown again. State t has the codes after t batches and the cloud as it was when they
 * learned the last of them.
 */

const OPTIMUM_EVERY = 10;
const STARTS = 6;
const FIRST_STEPS = 10;
const LAST_STEPS = 40;
const STILL = 0.005;

/** Which codes win a point of the cloud, and the mean squared distance of the points to their codes. */
function measure(codebook, points) {
  const alive = new Uint8Array(codebook.length / 2);
  let total = 0;
  for (let i = 0; i < points.length; i += 2) {
    const winner = nearestCode(codebook, points[i], points[i + 1]);
    alive[winner] = 1;
    total += (points[i] - codebook[2 * winner]) ** 2 + (points[i + 1] - codebook[2 * winner + 1]) ** 2;
  }
  return { alive, count: alive.reduce((sum, one) => sum + one, 0), distortion: (2 * total) / points.length };
}

/** Lloyd's algorithm from a codebook; an empty cell keeps its code. */
function lloyd(codebook, points, steps) {
  let codes = codebook;
  for (let s = 0; s < steps; s += 1) {
    const { counts, sums } = cellSums(codes, points);
    codes = codes.map((value, i) => (counts[i >> 1] > 0 ? sums[i] / counts[i >> 1] : value));
  }
  return codes;
}

/** k-means++: each next code a point drawn in proportion to its squared distance to the codes so far. */
function spreadCodes(points, codes, uniform) {
  const count = points.length / 2;
  const nearest = new Float64Array(count).fill(Infinity);
  const codebook = new Float64Array(2 * codes);
  let chosen = Math.floor(uniform() * count);
  for (let k = 0; k < codes; k += 1) {
    const [x, y] = [points[2 * chosen], points[2 * chosen + 1]];
    codebook.set([x, y], 2 * k);
    let total = 0;
    for (let i = 0; i < count; i += 1) {
      nearest[i] = Math.min(nearest[i], (points[2 * i] - x) ** 2 + (points[2 * i + 1] - y) ** 2);
      total += nearest[i];
    }
    let left = uniform() * total;
    chosen = 0;
    while (chosen < count - 1 && left >= nearest[chosen]) {
      left -= nearest[chosen];
      chosen += 1;
    }
  }
  return codebook;
}

/** About the least distortion that as many codes can have on the cloud, followed from moment to moment. */
class Optimum {
  constructor(codes, seed) {
    this.codes = codes;
    this.uniform = stream(seed, "k-means");
    this.cells = null;
  }

  /** The optimum of a cloud under a drift; that of the last moment if the cloud has hardly moved since. */
  at(points, drift) {
    const size = drift.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    if (!this.drift || drift.some((value, i) => Math.abs(value - this.drift[i]) > STILL * size)) {
      this.drift = drift;
      this.distortion = this.search(points);
    }
    return this.distortion;
  }

  /** The best of several starts after a few steps of Lloyd's algorithm, then many more from there. */
  search(points) {
    const starts = Array.from({ length: STARTS }, () => spreadCodes(points, this.codes, this.uniform));
    if (this.cells) starts.push(this.meansOfCells(points));
    const tried = starts.map((start) => lloyd(start, points, FIRST_STEPS));
    const errors = tried.map((codebook) => measure(codebook, points).distortion);
    const best = lloyd(tried[errors.indexOf(Math.min(...errors))], points, LAST_STEPS);
    this.cells = new Uint8Array(points.length / 2).map((_, i) => nearestCode(best, points[2 * i], points[2 * i + 1]));
    return measure(best, points).distortion;
  }

  meansOfCells(points) {
    const counts = new Float64Array(this.codes);
    const sums = new Float64Array(2 * this.codes);
    this.cells.forEach((cell, i) => {
      counts[cell] += 1;
      sums[2 * cell] += points[2 * i];
      sums[2 * cell + 1] += points[2 * i + 1];
    });
    return sums.map((sum, i) => sum / Math.max(counts[i >> 1], 1));
  }
}

class Run {
  /**
   * @param cloud what drawCloud gives.
   * @param learners the methods, each starting from the cloud's codebook.
   * @param orderOf the order of the points in an epoch.
   * @param options batchSize, speed, steps (the last state), seed, and moments, the states that the timeline shows.
   */
  constructor(cloud, learners, orderOf, options) {
    Object.assign(this, { cloud, learners, orderOf, ...options });
    this.moments = [...this.moments.filter((moment) => moment < this.steps), this.steps];
    this.stepsPerEpoch = Math.max(1, Math.floor(cloud.initial.length / 2 / this.batchSize));
    this.optimum = new Optimum(cloud.codebook.length / 2, this.seed);
    this.states = [];
    this.drift = firstDrift(cloud.demo);
    this.keep(null);
  }

  keep(indices) {
    const { drift } = this;
    const points = movedPoints(this.cloud.demo, this.cloud.initial, drift);
    const t = this.states.length;
    const optimum = t % OPTIMUM_EVERY === 0 ? this.optimum.at(points, drift) : null;
    const methods = this.learners.map(({ codebook }) => ({ codebook, ...measure(codebook, points) }));
    this.states.push({ drift, indices, methods, optimum });
  }

  batchOf(step) {
    const epoch = Math.floor(step / this.stepsPerEpoch);
    if (this.order?.epoch !== epoch) this.order = { epoch, indices: this.orderOf(epoch) };
    const first = (step % this.stepsPerEpoch) * this.batchSize;
    return this.order.indices.subarray(first, first + this.batchSize);
  }

  /** Simulate until state t is known; gives the last state known. */
  ensure(t) {
    const { demo, initial, targets } = this.cloud;
    while (this.states.length <= Math.min(t, this.steps)) {
      const step = this.states.length - 1;
      const indices = this.batchOf(step);
      const batch = movedPoints(demo, initial, this.drift, indices);
      for (const learner of this.learners) {
        learner.step(batch);
        if ((step + 1) % this.stepsPerEpoch === 0) learner.endEpoch();
      }
      this.keep(indices);
      this.drift = advancedDrift(demo, initial, targets, this.drift, indices, this.speed);
    }
    return this.states.length - 1;
  }

  /** Where state t, which may lie between two, is on the timeline: from 0 to its last moment. */
  placeOf(t) {
    const after = this.moments.findIndex((moment) => moment > t);
    if (after < 0) return this.moments.length - 1;
    return after - 1 + (t - this.moments[after - 1]) / (this.moments[after] - this.moments[after - 1]);
  }

  /** The state at a place of the timeline. */
  stateAt(place) {
    const last = this.moments.length - 1;
    const before = Math.min(Math.max(Math.floor(place), 0), last);
    const after = Math.min(before + 1, last);
    return this.moments[before] + (place - before) * (this.moments[after] - this.moments[before]);
  }

  /** The optimum at state t, between those that were computed. */
  optimumAt(t) {
    const before = t - (t % OPTIMUM_EVERY);
    const after = before + OPTIMUM_EVERY;
    const low = this.states[before].optimum;
    if (after >= this.states.length) return low;
    return low + ((t - before) / OPTIMUM_EVERY) * (this.states[after].optimum - low);
  }

  /** Distortion of a method at state t over the optimum. */
  ratioAt(t, side) {
    return this.states[t].methods[side].distortion / this.optimumAt(t);
  }
}

/** A run from a seed; `settings` name demo, methods, seed, batchSize, speed and tau. */
function startRun(settings, constants, recordings) {
  const { demo, methods, seed, batchSize, speed, tau } = settings;
  const cloud = drawCloud(demo, seed, constants);
  const first = drawWeights(seed, constants.hidden);
  const learners = methods.map((method) => {
    const recording = findRecording(recordings, method, settings, constants);
    return makeLearner(method, cloud.codebook, { ...constants, tau }, first, recording);
  });
  const orderOf = (epoch) => permutation(stream(seed, `order ${epoch}`), constants.points);
  const perEpoch = Math.max(1, Math.floor(constants.points / batchSize));
  const steps = Math.min(constants.epochs * perEpoch, constants.steps);
  return new Run(cloud, learners, orderOf, { batchSize, speed, steps, seed, moments: constants.moments });
}

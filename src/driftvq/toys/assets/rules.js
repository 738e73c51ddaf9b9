"use strict";

/*
 * How a codebook follows a cloud, rule for rule rules.py and the library's TransVQ with a two-layer MLP.
 * A learner has a codebook (flat: x0, y0, x1, y1, …), step(batch) and endEpoch().
 */

/** The code nearest to (x, y); ties go to the lowest index. */
function nearestCode(codebook, x, y) {
  let best = 0;
  let bestDistance = Infinity;
  for (let k = 0; k < codebook.length; k += 2) {
    const dx = x - codebook[k];
    const dy = y - codebook[k + 1];
    const distance = dx * dx + dy * dy;
    if (distance < bestDistance) {
      bestDistance = distance;
      best = k >> 1;
    }
  }
  return best;
}

/** For each code the number of points it won and their sum. */
function cellSums(codebook, points) {
  const counts = new Float64Array(codebook.length / 2);
  const sums = new Float64Array(codebook.length);
  for (let i = 0; i < points.length; i += 2) {
    const winner = nearestCode(codebook, points[i], points[i + 1]);
    counts[winner] += 1;
    sums[2 * winner] += points[i];
    sums[2 * winner + 1] += points[i + 1];
  }
  return { counts, sums };
}

/** Vanilla: c_k ← (1-α) c_k + α mean{x_i : w_i = k} for every code that won a point; the others stay. */
class EMALearner {
  constructor(codebook, { alpha }) {
    this.codebook = new Float64Array(codebook);
    this.alpha = alpha;
  }

  step(batch) {
    const { counts, sums } = cellSums(this.codebook, batch);
    this.codebook = this.codebook.map((value, i) => {
      const count = counts[i >> 1];
      return count > 0 ? (1 - this.alpha) * value + this.alpha * (sums[i] / count) : value;
    });
  }

  endEpoch() {}
}

/** NS-VQ, sample by sample: ω = softmax(-|c_k - c_w|²/τ); the winner moves by lr (x - c), the others by lr ω_k (x - c). */
class NSVQLearner {
  constructor(codebook, { lr, tau, lrDecay, tauDecay }) {
    this.codebook = new Float64Array(codebook);
    Object.assign(this, { lr, tau, lrDecay, tauDecay });
  }

  step(batch) {
    const codes = new Float64Array(this.codebook);
    const weights = new Float64Array(codes.length / 2);
    for (let i = 0; i < batch.length; i += 2) this.pull(codes, weights, batch[i], batch[i + 1]);
    this.codebook = codes;
  }

  pull(codes, weights, x, y) {
    const winner = nearestCode(codes, x, y);
    const winnerX = codes[2 * winner];
    const winnerY = codes[2 * winner + 1];
    let total = 0;
    for (let k = 0; k < weights.length; k += 1) {
      const dx = codes[2 * k] - winnerX;
      const dy = codes[2 * k + 1] - winnerY;
      weights[k] = Math.exp((dx * dx + dy * dy) / -this.tau);
      total += weights[k];
    }
    for (let k = 0; k < weights.length; k += 1) {
      const rate = k === winner ? this.lr : weights[k] * (this.lr / total);
      codes[2 * k] += rate * (x - codes[2 * k]);
      codes[2 * k + 1] += rate * (y - codes[2 * k + 1]);
    }
  }

  endEpoch() {
    this.tau *= this.tauDecay;
    this.lr *= this.lrDecay;
  }
}

/** erf to the last digits: 2/√π e^{-x²} Σ 2ⁿ x^{2n+1} / (2n+1)!!, whose terms are all of one sign. */
function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let term = x;
  let sum = x;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n += 1) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

const normalCumulative = (x) => 0.5 * (1 + erf(x / Math.SQRT2));
const normalDensity = (x) => Math.exp(-0.5 * x * x) / Math.sqrt(2 * Math.PI);

/** Adam with its usual constants, on a list of arrays that it changes in place. */
class Adam {
  constructor(parameters, lr) {
    this.parameters = parameters;
    this.lr = lr;
    this.steps = 0;
    this.means = parameters.map((p) => new Float64Array(p.length));
    this.squares = parameters.map((p) => new Float64Array(p.length));
  }

  step(gradients) {
    this.steps += 1;
    const rate = this.lr / (1 - 0.9 ** this.steps);
    const correction = Math.sqrt(1 - 0.999 ** this.steps);
    this.parameters.forEach((parameter, index) => {
      const [gradient, mean, square] = [gradients[index], this.means[index], this.squares[index]];
      for (let i = 0; i < parameter.length; i += 1) {
        mean[i] += 0.1 * (gradient[i] - mean[i]);
        square[i] = 0.999 * square[i] + 0.001 * gradient[i] * gradient[i];
        parameter[i] -= (rate * mean[i]) / (Math.sqrt(square[i]) / correction + 1e-8);
      }
    });
  }
}

/**
 * TransVQ: C' = C + P_φ(C) with a two-layer MLP P_φ, zero at the start; Adam on mse(sg x, c'_win) moves φ only.
 * `first` holds the hidden layer's first weight (hidden × 2, by rows) and bias.
 */
class TransVQLearner {
  constructor(base, { adamLr }, first) {
    this.base = new Float64Array(base);
    this.weight = new Float64Array(first.weight);
    this.bias = new Float64Array(first.bias);
    this.hidden = this.bias.length;
    this.outWeight = new Float64Array(2 * this.hidden);
    this.outBias = new Float64Array(2);
    this.adam = new Adam([this.weight, this.bias, this.outWeight, this.outBias], adamLr);
    this.forward();
  }

  /** The codebook now, and what back-propagation needs of it. */
  forward() {
    const { base, weight, bias, outWeight, outBias, hidden } = this;
    const codebook = new Float64Array(base);
    this.before = new Float64Array((base.length / 2) * hidden);
    this.cumulative = new Float64Array(this.before.length);
    for (let k = 0; k < base.length / 2; k += 1) {
      let [x, y] = outBias;
      for (let h = 0; h < hidden; h += 1) {
        const at = k * hidden + h;
        const before = weight[2 * h] * base[2 * k] + weight[2 * h + 1] * base[2 * k + 1] + bias[h];
        this.before[at] = before;
        this.cumulative[at] = normalCumulative(before);
        const after = before * this.cumulative[at];
        x += outWeight[h] * after;
        y += outWeight[hidden + h] * after;
      }
      codebook[2 * k] += x;
      codebook[2 * k + 1] += y;
    }
    this.codebook = codebook;
  }

  /** The loss's gradient with respect to weight, bias, outWeight and outBias, from that with respect to the codes. */
  backward(codeGradient) {
    const { base, outWeight, hidden } = this;
    const gradients = this.adam.parameters.map((p) => new Float64Array(p.length));
    const [weight, bias, outW, outBias] = gradients;
    for (let k = 0; k < base.length / 2; k += 1) {
      const gx = codeGradient[2 * k];
      const gy = codeGradient[2 * k + 1];
      outBias[0] += gx;
      outBias[1] += gy;
      for (let h = 0; h < hidden; h += 1) {
        const at = k * hidden + h;
        const before = this.before[at];
        const after = before * this.cumulative[at];
        outW[h] += gx * after;
        outW[hidden + h] += gy * after;
        const slope = this.cumulative[at] + before * normalDensity(before);
        const inner = (gx * outWeight[h] + gy * outWeight[hidden + h]) * slope;
        weight[2 * h] += inner * base[2 * k];
        weight[2 * h + 1] += inner * base[2 * k + 1];
        bias[h] += inner;
      }
    }
    return gradients;
  }

  step(batch) {
    const { counts, sums } = cellSums(this.codebook, batch);
    const size = batch.length / 2;
    const codeGradient = this.codebook.map((value, i) => (counts[i >> 1] * value - sums[i]) / size);
    this.adam.step(this.backward(codeGradient));
    this.forward();
  }

  endEpoch() {}
}

/** What a quantizer of the library did: its codes at some moments, straight lines between. */
class RecordedLearner {
  constructor({ codes }, { moments }) {
    Object.assign(this, { codes, moments, now: 0, index: 0, codebook: Float64Array.from(codes[0]) });
  }

  step() {
    this.now += 1;
    while (this.index < this.codes.length - 2 && this.moments[this.index + 1] < this.now) this.index += 1;
    const [from, to] = [this.moments[this.index], this.moments[this.index + 1]];
    const [before, after] = [this.codes[this.index], this.codes[this.index + 1]];
    const share = Math.min((this.now - from) / (to - from), 1);
    this.codebook = Float64Array.from(before, (value, i) => value + share * (after[i] - value));
  }

  endEpoch() {}
}

const METHODS = {
  vanilla: "Vanilla VQ (EMA)",
  ns_vq: "NSVQ (driftvq)",
  ns_vq_toy: "NS-VQ (paper)",
  trans_vq: "TransVQ (driftvq)",
  trans_vq_toy: "TransVQ (paper)",
};

/** The paper's own rule of what only a recording can show. */
const LITERAL = { ns_vq: "ns_vq_toy", trans_vq: "trans_vq_toy" };

/** The recording of a method at these settings, if there is one. */
function findRecording(recordings, method, { demo, seed, speed, batchSize }, constants) {
  if (speed !== constants.speed || batchSize !== constants.batchSize) return undefined;
  return recordings.find((one) => one.method === method && one.demo === demo && one.seed === seed);
}

/** The methods that can be shown: the paper's rule in the place of what was not recorded. */
function shownMethods(settings, constants, recordings) {
  return settings.methods.map((method) => {
    const lacking = method in LITERAL && !findRecording(recordings, method, settings, constants);
    return lacking ? LITERAL[method] : method;
  });
}

/** A learner by name; `rates` are the constants of rules.py, `first` the MLP's first weights. */
function makeLearner(method, codebook, rates, first, recording) {
  if (method in LITERAL) return new RecordedLearner(recording, rates);
  if (method === "vanilla") return new EMALearner(codebook, rates);
  if (method === "ns_vq_toy") return new NSVQLearner(codebook, rates);
  if (method === "trans_vq_toy") return new TransVQLearner(codebook, rates, first);
  throw new Error(`unknown method ${method}; known: ${Object.keys(METHODS).join(", ")}`);
}

/** The hidden layer's first weights, uniform within ±1/√2 as torch draws them for two inputs. */
function drawWeights(seed, hidden) {
  const uniform = stream(seed, "weights");
  return { weight: uniforms(uniform, 2 * hidden, Math.SQRT1_2), bias: uniforms(uniform, hidden, Math.SQRT1_2) };
}

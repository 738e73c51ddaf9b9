"use strict";

/* Words for what is seen, from the numbers of the moment. */

const MOVING = {
  translation: "The cloud is sliding to the upper right.",
  expansion: "The cloud is growing.",
  shrinking: "The cloud is shrinking.",
  split: "The cloud is tearing into four.",
};
const ARRIVED = {
  translation: "The cloud has arrived.",
  expansion: "The cloud has grown to its full size.",
  shrinking: "The cloud has shrunk to a fifth.",
  split: "The cloud has become four islands.",
};

/** The share of the way that the cloud still has before it. */
function wayLeft(run, t) {
  const { demo, initial, targets } = run.cloud;
  const distance = (points) => Math.hypot(...Array.from({ length: 200 }, (_, i) => targets[i] - points[i]));
  return distance(movedPoints(demo, initial, run.states[t].drift)) / distance(initial);
}

/** One sentence on a method; `moving` says that the cloud still is. */
function describeMethod(method, count, total, moving, demo) {
  const dead = total - count;
  const name = METHODS[method];
  if (method === "vanilla") {
    if (dead === 0 && demo === "expansion") return `${name} loses none here: a growing cloud never leaves a code behind.`;
    if (dead === 0) return `${name} moves only codes that win a sample; so far every code does.`;
    const verb = moving ? "are being left behind" : "were left behind and are dead";
    return `${name} moves only codes that win a sample: ${dead} of ${total} ${verb}.`;
  }
  if (method === "ns_vq_toy") {
    if (dead === 0) return `${name} lets each winner pull its neighbours along, and all ${total} codes share the cloud.`;
    if (moving) return `${name} lets each winner pull its neighbours along: ${count} of ${total} win samples, the others follow.`;
    return `${name} lets each winner pull its neighbours along, yet ${dead} of ${total} are out of its reach: try another τ.`;
  }
  if (dead === 0) return `${name} moves the whole codebook with one network, and all ${total} codes share the cloud.`;
  if (moving) return `${name} moves the whole codebook with one network, which is catching up: ${count} of ${total} win samples.`;
  return `${name} moves the whole codebook with one network; ${count} of ${total} win samples, the others still move.`;
}

/** What is seen at state t. */
function explain(run, t, methods) {
  const { demo } = run.cloud;
  const total = run.cloud.codebook.length / 2;
  if (t === 0) return `${total} codes start inside the cloud. Press play: the cloud will move, and only some codes will keep up.`;
  const moving = wayLeft(run, t) > 0.05;
  const counts = run.states[t].methods.map(({ count }) => count);
  const parts = methods.map((method, side) => describeMethod(method, counts[side], total, moving, demo));
  if (methods[0] === methods[1]) parts.pop();
  return [(moving ? MOVING : ARRIVED)[demo], ...parts].join(" ").replaceAll("NS-VQ", "NS\u2011VQ");
}

/** What a panel shows, for those who do not see it. */
function describePanel(run, t, side, method) {
  const { count } = run.states[t].methods[side];
  const total = run.cloud.codebook.length / 2;
  return `${METHODS[method]}: ${count} of ${total} codes alive, distortion ${run.ratioAt(t, side).toFixed(1)} times the k-means optimum.`;
}

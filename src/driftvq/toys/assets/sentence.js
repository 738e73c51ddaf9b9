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
const HOW = {
  vanilla: "Only codes that win a sample move",
  ns_vq: "The samples' drift moves every code, and lost ones are relocated",
  ns_vq_toy: "Each winner pulls its neighbours along",
  trans_vq: "A network that is solved moves every code, and lost ones are relocated",
  trans_vq_toy: "One trained network moves the whole codebook",
};
const FAILED = 0.75;
const BADLY_PLACED = 1.25;

/** The share of the way that the cloud still has before it. */
function wayLeft(run, t) {
  const { demo, initial, targets } = run.cloud;
  const distance = (points) => Math.hypot(...Array.from({ length: 200 }, (_, i) => targets[i] - points[i]));
  return distance(movedPoints(demo, initial, run.states[t].drift)) / distance(initial);
}

const isMoving = (run, t) => wayLeft(run, t) > 0.05;

/** Whether a method has lost more than a quarter of its codes to a cloud that has arrived. */
const fails = (run, t, side) => !isMoving(run, t) && run.states[t].methods[side].count < (FAILED * run.cloud.codebook.length) / 2;

/** How a method works and fares at state t. */
function describeMethod(run, t, side, method) {
  const total = run.cloud.codebook.length / 2;
  const dead = total - run.states[t].methods[side].count;
  const ratio = run.ratioAt(t, side);
  if (t === 0) return `${HOW[method]}.`;
  if (fails(run, t, side)) return `Fails here: ${dead} of ${total} codes are dead. ${HOW[method]}.`;
  if (isMoving(run, t)) return `${HOW[method]}: ${dead === 0 ? `all ${total}` : `${total - dead} of ${total}`} win samples now.`;
  if (dead > 0) return `${HOW[method]}, yet ${dead} of ${total} ${dead === 1 ? "is" : "are"} dead.`;
  if (ratio > BADLY_PLACED) return `${HOW[method]}: all ${total} live, but badly placed, at ${ratio.toFixed(1)} times the distortion of k-means.`;
  return `${HOW[method]}: all ${total} live.`;
}

/** Names as in a sentence: A, B and C. */
const listed = (names) => [names.slice(0, -1).join(", "), names.at(-1)].filter(Boolean).join(" and ");

/** What is seen at state t, over all methods. */
function explain(run, t, methods) {
  const { demo } = run.cloud;
  const total = run.cloud.codebook.length / 2;
  if (t === 0) return `${total} codes start inside the cloud. Press play or drag the timeline: the cloud moves, and where a curve falls, codes die.`;
  if (isMoving(run, t)) return `${MOVING[demo]} A code that wins no sample of a batch is left behind, unless something else moves it.`;
  const named = (wanted) => [...new Set(methods.filter((_, side) => wanted(side)).map((method) => METHODS[method]))];
  const failing = named((side) => fails(run, t, side));
  const whole = named((side) => run.states[t].methods[side].count === total);
  const parts = [ARRIVED[demo]];
  if (failing.length) parts.push(`${listed(failing)} ${failing.length > 1 ? "fail" : "fails"} here.`);
  if (whole.length) parts.push(`${listed(whole)} ${whole.length > 1 ? "keep" : "keeps"} all ${total} codes alive.`);
  if (!failing.length && demo === "expansion") parts.push("A growing cloud never leaves a code behind.");
  return parts.join(" ");
}

/** What a panel shows, for those who do not see it. */
function describePanel(run, t, side, method) {
  const { count } = run.states[t].methods[side];
  const total = run.cloud.codebook.length / 2;
  return `${METHODS[method]}: ${count} of ${total} codes alive, distortion ${run.ratioAt(t, side).toFixed(1)} times the k-means optimum.`;
}

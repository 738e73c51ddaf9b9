"use strict";

/** mulberry32: a function that gives uniform numbers in [0, 1), the same for the same seed. */
function uniformGenerator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** A generator of its own for each purpose, so that drawing more of one thing leaves the others as they are. */
function stream(seed, purpose) {
  let hash = 2166136261 ^ seed;
  for (const letter of purpose) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619);
  return uniformGenerator(hash);
}

/** `count` standard normal numbers (Box-Muller). */
function normals(uniform, count) {
  const out = new Float64Array(count);
  for (let i = 0; i < count; i += 2) {
    const radius = Math.sqrt(-2 * Math.log(1 - uniform()));
    const angle = 2 * Math.PI * uniform();
    out[i] = radius * Math.cos(angle);
    if (i + 1 < count) out[i + 1] = radius * Math.sin(angle);
  }
  return out;
}

/** `count` numbers uniform in [-bound, bound). */
function uniforms(uniform, count, bound) {
  return Float64Array.from({ length: count }, () => (2 * uniform() - 1) * bound);
}

/** The numbers 0 … count - 1 in random order (Fisher-Yates). */
function permutation(uniform, count) {
  const out = Int32Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i -= 1) {
    const j = Math.floor(uniform() * (i + 1));
    [out[i], out[j]] = [out[j], out[i]];
  }
  return out;
}

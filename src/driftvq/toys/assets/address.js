"use strict";

/* The state of the page in its address, so that what is seen can be bookmarked and sent. */

const LIMITS = { seed: [0, 999999], speed: [0.01, 0.5], batch: [10, 500], tau: [0.01, 100], at: [0, 1e6] };

/** What differs from the defaults, as `demo=split&at=40`; `time` is in batches. */
function toAddress(settings, time, defaults) {
  const parts = new URLSearchParams();
  const put = (name, value, usual) => { if (String(value) !== String(usual)) parts.set(name, value); };
  put("demo", settings.demo, defaults.demo);
  put("methods", settings.methods.join("."), defaults.methods.join("."));
  put("seed", settings.seed, defaults.seed);
  put("speed", settings.speed, defaults.speed);
  put("batch", settings.batchSize, defaults.batchSize);
  put("tau", Number(settings.tau.toPrecision(4)), defaults.tau);
  put("at", Math.floor(time), 0);
  return parts.toString();
}

/** Settings and time of an address; what it does not say, or says wrongly, is as in the defaults. */
function fromAddress(text, defaults) {
  const parts = new URLSearchParams(text);
  const number = (name, usual) => {
    const value = Number(parts.get(name) ?? NaN);
    return Number.isFinite(value) ? Math.min(Math.max(value, LIMITS[name][0]), LIMITS[name][1]) : usual;
  };
  const methods = (parts.get("methods") ?? "").split(".");
  const known = methods.length === defaults.methods.length && methods.every((method) => Object.hasOwn(METHODS, method));
  const settings = {
    demo: DEMOS.includes(parts.get("demo")) ? parts.get("demo") : defaults.demo,
    methods: known ? methods : defaults.methods,
    seed: Math.round(number("seed", defaults.seed)),
    speed: number("speed", defaults.speed),
    batchSize: Math.round(number("batch", defaults.batchSize)),
    tau: number("tau", defaults.tau),
  };
  return { settings, time: Math.floor(number("at", 0)) };
}

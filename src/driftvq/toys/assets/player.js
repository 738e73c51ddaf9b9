"use strict";

/* The page: controls, time and frames. */

const SENTENCE_EVERY = 900;
const SLICE = 12;
const SIDES = ["Left", "Middle", "Right"];

class Player {
  constructor(constants, recordings) {
    Object.assign(this, { constants, recordings, frame: null, said: 0, filling: null });
    const { batchSize, speed, tau, seed } = constants;
    this.defaults = { demo: DEMOS[0], methods: ["vanilla", "ns_vq", "ns_vq_toy"], seed, batchSize, speed, tau };
    this.bySide = SIDES.map((name, side) => this.makePanel(name, side));
    this.calm = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.makeControls();
    this.listen();
    this.open();
  }

  makePanel(name, side) {
    const root = document.getElementById("panel").content.firstElementChild.cloneNode(true);
    root.id = `panel-${side}`;
    root.querySelector("label span").textContent = `${name} method`;
    root.querySelector("select").id = `method-${side}`;
    document.getElementById("panels").append(root);
    return {
      root,
      canvas: root.querySelector("canvas"),
      select: root.querySelector("select"),
      count: root.querySelector(".alive strong"),
      total: root.querySelector(".alive span"),
      says: root.querySelector(".says"),
      facts: root.querySelector(".facts"),
    };
  }

  makeControls() {
    const demos = document.getElementById("demos");
    for (const demo of DEMOS) {
      const label = document.createElement("label");
      const input = Object.assign(document.createElement("input"), { type: "radio", name: "demo", value: demo });
      const text = document.createElement("span");
      text.textContent = demo[0].toUpperCase() + demo.slice(1);
      label.append(input, text);
      demos.append(label);
    }
    for (const { select } of this.bySide) {
      for (const [value, name] of Object.entries(METHODS)) select.append(new Option(name, value));
    }
  }

  /** What the address says, paused. */
  open() {
    const { settings, time } = fromAddress(window.location.hash.slice(1), this.defaults);
    this.settings = settings;
    this.colours = themeColours();
    this.pause();
    this.restart(time);
  }

  /** Everything as in the defaults, apart from whether it plays. */
  reset() {
    this.settings = { ...this.defaults };
    document.getElementById("pace").selectedIndex = 0;
    this.restart(0);
  }

  /** Write the state into the address, without a new entry in the history. */
  remember() {
    const address = toAddress(this.settings, this.time, this.defaults);
    const base = window.location.href.split("#")[0];
    window.history.replaceState(null, "", address ? `${base}#${address}` : base);
  }

  showSettings() {
    const { demo, seed, batchSize, speed, tau } = this.settings;
    document.querySelector(`input[name="demo"][value="${demo}"]`).checked = true;
    this.bySide.forEach((panel, side) => {
      panel.select.value = this.shown[side];
      panel.root.style.setProperty("--method", `var(--${this.shown[side]})`);
    });
    this.showRecorded();
    document.getElementById("seed").value = seed;
    this.showSlider("speed", speed, speed.toFixed(2));
    this.showSlider("batch", batchSize, String(batchSize));
    this.showSlider("tau", Math.log10(tau), tau >= 10 ? tau.toFixed(0) : tau.toPrecision(2));
  }

  showSlider(id, value, text) {
    const slider = document.getElementById(id);
    slider.value = value;
    slider.setAttribute("aria-valuetext", text);
    document.querySelector(`output[for="${id}"]`).textContent = text;
  }

  /** Where the methods of the library can be seen, and which of them are offered now. */
  showRecorded() {
    const { recordings, constants, settings } = this;
    const seeds = [...new Set(recordings.map(({ seed }) => seed))];
    const conditions = `drift speed ${constants.speed}, batch size ${constants.batchSize}, seed ${listed(seeds.map(String)).replace("and", "or")}`;
    document.getElementById("recorded").textContent = recordings.length
      ? `NSVQ and TransVQ (driftvq) are the library itself, recorded at ${conditions}. At other conditions the paper's rules take their place.`
      : "The library itself was not recorded for this page; the paper's rules take its place.";
    for (const { select } of this.bySide) {
      for (const option of select.options) {
        option.disabled = option.value in LITERAL && !findRecording(recordings, option.value, settings, constants);
      }
    }
  }

  /** Simulate anew with the settings of now, up to a time; the rest of the timeline follows by and by. */
  restart(time) {
    this.shown = shownMethods(this.settings, this.constants, this.recordings);
    this.showSettings();
    this.run = startRun({ ...this.settings, methods: this.shown }, this.constants, this.recordings);
    this.bounds = boundsOf(this.run.cloud);
    this.charted = null;
    document.getElementById("time").max = this.run.moments.length - 1;
    this.seek(time);
    clearTimeout(this.filling);
    this.filling = setTimeout(() => this.fill(), 50);
  }

  /** Simulate on for a moment, until the whole timeline is known. */
  fill() {
    const until = performance.now() + SLICE;
    while (this.run.states.length <= this.run.steps && performance.now() < until) this.run.ensure(this.run.states.length);
    this.charted = null;
    this.requestFrame();
    if (this.run.states.length <= this.run.steps) this.filling = setTimeout(() => this.fill(), SLICE);
  }

  change(settings, time = this.time) {
    Object.assign(this.settings, settings);
    this.restart(time);
  }

  seek(time) {
    this.time = Math.min(Math.max(time, 0), this.run.steps);
    this.run.ensure(Math.ceil(this.time));
    this.said = 0;
    if (!this.playing) this.remember();
    this.requestFrame();
  }

  step(steps) {
    this.pause();
    this.seek(Math.round(this.time) + steps);
  }

  play() {
    if (this.time >= this.run.steps) this.seek(0);
    this.playing = true;
    this.lastFrame = null;
    this.showPlaying();
    this.requestFrame();
  }

  pause() {
    const played = this.playing;
    this.playing = false;
    this.showPlaying();
    if (played) this.seek(Math.floor(this.time));
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  showPlaying() {
    const button = document.getElementById("play");
    button.classList.toggle("playing", this.playing);
    button.setAttribute("aria-label", this.playing ? "Pause" : "Play");
  }

  requestFrame() {
    this.frame ??= requestAnimationFrame((now) => {
      this.frame = null;
      if (this.playing) this.advance(now);
      this.draw(now);
      if (this.playing) this.requestFrame();
    });
  }

  advance(now) {
    const elapsed = this.lastFrame === null ? 0 : Math.min(now - this.lastFrame, 100);
    this.lastFrame = now;
    const pace = Number(document.getElementById("pace").value);
    const place = this.run.placeOf(this.time) + (elapsed / 1000) * pace;
    this.time = Math.min(this.run.stateAt(Math.min(place, this.run.moments.length - 1)), this.run.steps);
    this.run.ensure(Math.ceil(this.time));
    if (this.time >= this.run.steps) this.pause();
  }

  draw(now) {
    const { run, colours } = this;
    const t = Math.floor(this.time);
    const time = this.calm.matches ? t : this.time;
    this.bySide.forEach((panel, side) => {
      drawPanel(panel.canvas, run, this.bounds, time, side, this.shown[side], colours);
      this.showNumbers(panel, side, t);
    });
    if (t !== this.charted) this.drawCharts(t);
    this.showTime(t);
    if (now - this.said > SENTENCE_EVERY || !this.playing) this.say(now, t);
  }

  showTime(t) {
    const { run, constants } = this;
    const epoch = Math.min(Math.floor(t / run.stepsPerEpoch) + 1, constants.epochs);
    const time = document.getElementById("time");
    time.value = Math.round(run.placeOf(t));
    time.setAttribute("aria-valuetext", `batch ${t} of ${run.steps}, epoch ${epoch}`);
    document.getElementById("batch-now").textContent = `batch ${t} / ${run.steps}`;
    document.getElementById("epoch-now").textContent = `epoch ${epoch}`;
  }

  showNumbers(panel, side, t) {
    const { alive, count, distortion } = this.run.states[t].methods[side];
    panel.count.textContent = count;
    panel.total.textContent = `/ ${alive.length} alive`;
    const ratio = this.run.ratioAt(t, side);
    panel.facts.textContent = `Distortion ${distortion.toPrecision(2)} · ${ratio.toFixed(ratio < 10 ? 1 : 0)} × k-means optimum`;
  }

  drawCharts(t) {
    this.charted = t;
    const { run, shown, colours } = this;
    const codes = run.cloud.codebook.length / 2;
    const usage = {
      low: 0,
      high: codes,
      ticks: [0, codes / 2, codes].map((value) => [value, String(value)]),
      value: (t, side) => run.states[t].methods[side].count,
    };
    const distortion = {
      low: 0.9,
      high: 100,
      log: true,
      ticks: [[1, "1 ×"], [3, "3 ×"], [10, "10 ×"], [30, "30 ×"], [100, "100 ×"]],
      value: (t, side) => run.ratioAt(t, side),
    };
    drawChart(document.getElementById("usage"), usage, run, t, shown, colours);
    drawChart(document.getElementById("distortion"), distortion, run, t, shown, colours);
  }

  say(now, t) {
    this.said = now;
    const { run, shown } = this;
    const text = explain(run, t, shown);
    const sentence = document.getElementById("sentence");
    if (sentence.textContent !== text) sentence.textContent = text;
    this.bySide.forEach(({ canvas, says, root }, side) => {
      canvas.setAttribute("aria-label", describePanel(run, t, side, shown[side]));
      const stands = shown[side] === this.settings.methods[side] ? "" : `${METHODS[this.settings.methods[side]]} was not recorded at these conditions; this is the paper's rule. `;
      says.textContent = stands + describeMethod(run, t, side, shown[side]);
      root.classList.toggle("fails", fails(run, t, side));
    });
  }

  listen() {
    const on = (id, event, action) => document.getElementById(id).addEventListener(event, action);
    on("play", "click", () => this.toggle());
    on("restart", "click", () => this.seek(0));
    on("back", "click", () => this.step(-1));
    on("forward", "click", () => this.step(1));
    on("time", "input", ({ target }) => { this.pause(); this.seek(this.run.stateAt(Number(target.value))); });
    on("demos", "change", ({ target }) => this.change({ demo: target.value }, 0));
    this.bySide.forEach(({ select }, side) => select.addEventListener("change", () => {
      this.change({ methods: this.settings.methods.with(side, select.value) });
    }));
    on("speed", "input", ({ target }) => this.change({ speed: Number(target.value) }));
    on("batch", "input", ({ target }) => this.change({ batchSize: Number(target.value) }));
    on("tau", "input", ({ target }) => this.change({ tau: 10 ** Number(target.value) }));
    on("seed", "change", ({ target }) => this.change({ seed: Math.min(Math.max(Math.round(target.valueAsNumber) || 0, 0), 999999) }));
    on("reseed", "click", () => this.change({ seed: (this.settings.seed + 1) % 1000000 }));
    on("reset", "click", () => this.reset());
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("hashchange", () => this.open());
    window.addEventListener("resize", () => this.redraw());
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  /** Draw everything again, for another size or other colours. */
  redraw() {
    this.colours = themeColours();
    this.charted = null;
    this.requestFrame();
  }

  /** Keys act on the page unless the focused control needs them itself. */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { target } = event;
    const typing = target.matches("select, input[type=number]");
    const pressing = target.matches("button, input[type=radio]:not(:checked)");
    const choosing = typing || target.matches("input[type=radio], input[type=range]");
    const actions = {
      " ": !typing && !pressing && (() => this.toggle()),
      ArrowLeft: !choosing && (() => this.step(-1)),
      ArrowRight: !choosing && (() => this.step(1)),
      Home: !choosing && (() => this.seek(0)),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }
}

const [constants, recordings] = ["constants", "recordings"].map((id) => JSON.parse(document.getElementById(id).textContent));
const player = new Player(constants, recordings);

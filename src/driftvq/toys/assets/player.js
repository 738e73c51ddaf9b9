"use strict";

/* The page: controls, time and frames. */

const SENTENCE_EVERY = 900;
const SHORTEST_AXIS = 60;

class Player {
  constructor(constants) {
    this.constants = constants;
    this.bySide = [0, 1].map((side) => this.findPanel(side));
    this.calm = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.frame = null;
    this.said = 0;
    this.makeControls();
    this.listen();
    this.reset();
    if (!this.calm.matches) this.play();
  }

  findPanel(side) {
    const root = document.getElementById(`panel-${side}`);
    const pips = root.querySelector(".pips");
    for (let k = 0; k < this.constants.codes; k += 1) pips.append(document.createElement("i"));
    return {
      root,
      pips: [...pips.children],
      canvas: root.querySelector("canvas"),
      select: root.querySelector("select"),
      count: root.querySelector(".alive strong"),
      total: root.querySelector(".alive span"),
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

  /** Everything as it was when the page was opened, apart from whether it plays. */
  reset() {
    const { batchSize, speed, tau } = this.constants;
    this.settings = { demo: DEMOS[0], methods: ["vanilla", "ns_vq_toy"], seed: 1, batchSize, speed, tau };
    this.colours = themeColours();
    document.getElementById("pace").value = "20";
    this.showSettings();
    this.restart(0);
  }

  showSettings() {
    const { demo, methods, seed, batchSize, speed, tau } = this.settings;
    document.querySelector(`input[name="demo"][value="${demo}"]`).checked = true;
    this.bySide.forEach((panel, side) => {
      panel.select.value = methods[side];
      panel.root.style.setProperty("--method", `var(--${methods[side]})`);
    });
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

  /** Simulate anew with the settings of now, up to a time. */
  restart(time) {
    this.run = startRun(this.settings, this.constants);
    this.bounds = boundsOf(this.run.cloud);
    this.charted = null;
    document.getElementById("time").max = this.run.steps;
    this.seek(time);
  }

  change(settings, time = this.time) {
    Object.assign(this.settings, settings);
    this.showSettings();
    this.restart(time);
  }

  seek(time) {
    this.time = Math.min(Math.max(time, 0), this.run.steps);
    this.run.ensure(Math.ceil(this.time));
    this.said = 0;
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
    this.playing = false;
    this.time = Math.floor(this.time);
    this.said = 0;
    this.showPlaying();
    this.requestFrame();
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
    this.time = Math.min(this.time + (elapsed / 1000) * pace, this.run.steps);
    this.run.ensure(Math.ceil(this.time));
    if (this.time >= this.run.steps) this.pause();
  }

  draw(now) {
    const { run, colours, settings } = this;
    const t = Math.floor(this.time);
    const shown = this.calm.matches ? t : this.time;
    this.bySide.forEach((panel, side) => {
      drawPanel(panel.canvas, run, this.bounds, shown, side, settings.methods[side], colours);
      this.showNumbers(panel, side, t);
    });
    if (!this.playing || t !== this.charted) this.drawCharts(t);
    this.showTime(t);
    if (now - this.said > SENTENCE_EVERY || !this.playing) this.say(now, t);
  }

  showTime(t) {
    const { run, constants } = this;
    const epoch = Math.min(Math.floor(t / run.stepsPerEpoch) + 1, constants.epochs);
    const time = document.getElementById("time");
    time.value = t;
    time.setAttribute("aria-valuetext", `batch ${t} of ${run.steps}, epoch ${epoch}`);
    document.getElementById("batch-now").textContent = `batch ${t} / ${run.steps}`;
    document.getElementById("epoch-now").textContent = `epoch ${epoch}`;
  }

  showNumbers(panel, side, t) {
    const { alive, count, distortion } = this.run.states[t].methods[side];
    panel.count.textContent = count;
    panel.total.textContent = `/ ${alive.length} codes alive`;
    const living = [...alive].sort((a, b) => b - a);
    panel.pips.forEach((pip, k) => pip.classList.toggle("on", living[k] === 1));
    const ratio = this.run.ratioAt(t, side);
    panel.facts.textContent = `Distortion ${distortion.toPrecision(2)} · ${ratio.toFixed(ratio < 10 ? 1 : 0)} × k-means optimum`;
  }

  drawCharts(t) {
    this.charted = t;
    const { run, settings, colours } = this;
    const codes = run.cloud.codebook.length / 2;
    const known = run.states.length - 1;
    const last = Math.max(Math.min(SHORTEST_AXIS, run.steps), known);
    const usage = {
      low: 0,
      high: codes,
      ticks: [0, codes / 4, codes / 2, (3 * codes) / 4, codes].map((value) => [value, String(value)]),
      value: (t, side) => run.states[t].methods[side].count,
    };
    const distortion = {
      low: 0.9,
      high: 100,
      log: true,
      ticks: [[1, "1 ×"], [3, "3 ×"], [10, "10 ×"], [30, "30 ×"], [100, "100 ×"]],
      value: (t, side) => run.ratioAt(t, side),
    };
    drawChart(document.getElementById("usage"), usage, t, known, last, settings.methods, colours);
    drawChart(document.getElementById("distortion"), distortion, t, known, last, settings.methods, colours);
  }

  say(now, t) {
    this.said = now;
    const text = explain(this.run, t, this.settings.methods);
    const sentence = document.getElementById("sentence");
    if (sentence.textContent !== text) sentence.textContent = text;
    this.bySide.forEach(({ canvas }, side) => {
      canvas.setAttribute("aria-label", describePanel(this.run, t, side, this.settings.methods[side]));
    });
  }

  listen() {
    const on = (id, event, action) => document.getElementById(id).addEventListener(event, action);
    on("play", "click", () => this.toggle());
    on("restart", "click", () => this.seek(0));
    on("back", "click", () => this.step(-1));
    on("forward", "click", () => this.step(1));
    on("time", "input", ({ target }) => { this.pause(); this.seek(Number(target.value)); });
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

const player = new Player(JSON.parse(document.getElementById("constants").textContent));

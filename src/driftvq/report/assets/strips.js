"use strict";

/* The same images through every method, and a closer look. */

function shownStrips(comparison) {
  return comparison.strips.rows.filter(({ point }) => isShown(comparison, point));
}

function stripsPart(comparison) {
  const { strips } = comparison;
  if (!strips) return null;
  const box = el("div", { class: "scroll strips", tabindex: 0, role: "region", "aria-label": `Reconstructions, ${comparison.name}` });
  let shown;
  const draw = () => {
    if (shown === state.point && box.childElementCount) return;
    shown = state.point;
    const originals = stripRow("Original", "", strips.originals, null, comparison, -1, box);
    box.replaceChildren(originals, ...shownStrips(comparison).map((strip, i) => rowOf(comparison, strip, i, box)));
  };
  later(draw);
  onChange(draw);
  return el("div", {}, box, strips.note ? el("p", { class: "soft" }, strips.note) : null);
}

function rowOf(comparison, strip, index, box) {
  const values = strip.psnr.filter((value) => value !== null);
  const mean = values.length ? `PSNR ${(values.reduce((a, b) => a + b) / values.length).toFixed(1)} dB on these` : "";
  return stripRow(methodOf(comparison, strip).label, mean, strip.images, strip, comparison, index, box);
}

function stripRow(label, note, images, strip, comparison, index, box) {
  const pictures = images.map((uri, i) => {
    if (!uri) return el("span", { class: "absent" }, "missing");
    const image = el("img", { src: uri, alt: "", decoding: "async" });
    const name = `${label}, image ${i + 1} of ${images.length}: look closer`;
    const data = { "data-row": index, "data-column": i };
    return el("button", { type: "button", "aria-label": name, ...data, click: () => zoom(comparison, box, index, i) }, image);
  });
  const seed = strip && comparison.seeds.length > 1 ? `seed ${strip.seed}` : "";
  const notes = [note, seed].filter(Boolean).join(", ");
  const heading = el("div", { class: "strip-label" }, el("strong", {}, label), el("span", {}, notes));
  return el("div", { class: strip ? "strip" : "strip original" }, heading, el("div", { class: "strip-images" }, pictures));
}

/** A dialog with the original, the reconstruction and their difference; arrows move on, Escape closes. */
function zoom(comparison, box, row, column) {
  let moved = false;
  const strips = shownStrips(comparison);
  const place = { row: Math.max(0, row), column };
  const title = el("h2", { id: "zoom-title" });
  const views = el("div", { class: "views" });
  const hint = el("p", { class: "soft" }, "← → images, ↑ ↓ methods, Esc closes");
  const close = el("button", { type: "button", class: "close", click: () => dialog.close() }, "Close");
  const move = (down, right) => () => {
    const count = comparison.strips.originals.length;
    place.column = (place.column + right + count) % count;
    place.row = (place.row + down + strips.length) % Math.max(1, strips.length);
    moved = true;
    show();
  };
  const button = (text, label, down, right) => el("button", { type: "button", "aria-label": label, click: move(down, right) }, text);
  const buttons = el(
    "div",
    { class: "zoom-buttons" },
    button("←", "Previous image", 0, -1),
    button("→", "Next image", 0, 1),
    button("↑", "Previous method", -1, 0),
    button("↓", "Next method", 1, 0),
    close,
  );
  const dialog = el("dialog", { class: "zoom", "aria-labelledby": "zoom-title" }, el("div", { class: "zoom-head" }, title, buttons), views, hint);

  function show() {
    const strip = strips[place.row];
    const original = comparison.strips.originals[place.column];
    const image = strip?.images[place.column];
    const label = strip ? methodOf(comparison, strip).label : "Original";
    const psnr = strip?.psnr[place.column];
    title.textContent = `${label}, image ${place.column + 1} of ${comparison.strips.originals.length}`;
    views.replaceChildren(view("Original", original, "Original"));
    if (!strip) return;
    views.append(view(psnr ? `${label}: ${psnr.toFixed(1)} dB` : label, image, `Reconstruction by ${label}`));
    if (image) views.append(difference(original, image));
  }

  dialog.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    move(...moves[event.key])();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    dialog.remove();
    box.querySelector(`[data-column="${place.column}"][data-row="${moved || row >= 0 ? place.row : -1}"]`)?.focus();
  });
  show();
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
}

function view(caption, uri, alt) {
  const picture = uri ? el("img", { src: uri, alt }) : el("p", { class: "empty" }, "This image is missing.");
  return el("figure", {}, picture, el("figcaption", {}, caption));
}

function difference(original, image) {
  const layers = el("div", { class: "difference", role: "img", "aria-label": "Difference, four times as strong" });
  layers.append(el("img", { src: original, alt: "" }), el("img", { src: image, alt: "" }));
  return el("figure", {}, layers, el("figcaption", {}, "Difference × 4"));
}

"use strict";

/* Elements. Text is only ever set as text: nothing that a user wrote is read as markup. */

const SVG = "http://www.w3.org/2000/svg";

/** An element; attributes that are functions are listeners, true is an empty attribute, null and false are none. */
function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const waiting = [];
const SLICE_MS = 12;

/** Draw soon: in slices, so that what is at the top is seen at once. */
function later(draw) {
  if (!waiting.length) setTimeout(drawSome);
  waiting.push(draw);
}

function drawSome() {
  const end = performance.now() + SLICE_MS;
  while (waiting.length && performance.now() < end) waiting.shift()();
  if (waiting.length) setTimeout(drawSome);
  else drawnAll();
}

/** Nothing is missing any more; a place that the address names may have moved meanwhile. */
function drawnAll() {
  if (document.documentElement.dataset.drawn) return;
  document.documentElement.dataset.drawn = "all";
  if (location.hash.length > 1) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

addEventListener("beforeprint", () => {
  while (waiting.length) waiting.shift()();
});

/** Set properties of the style; a policy that forbids style attributes allows this. */
function styled(element, properties) {
  for (const [name, value] of Object.entries(properties)) element.style.setProperty(name, value);
  return element;
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

function grouped(value) {
  return Math.round(value).toLocaleString("en-US");
}

/** A number for an axis or a read-out. */
function short(value, percent = false) {
  if (percent) return `${Number((100 * value).toFixed(Math.abs(value) < 0.1 ? 1 : 0))}%`;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size >= 100) return grouped(value);
  return String(Number(value.toPrecision(3)));
}

/** A number for a read-out: three significant digits, so that the digits of a list stand below each other. */
function read(value, percent = false) {
  if (percent) return `${(100 * value).toFixed(1)}%`;
  return Math.abs(value) >= 100 || value === 0 ? grouped(value) : value.toPrecision(3);
}

/** A table with a heading row and row headings. `rows` are lists of texts or elements. */
function simpleTable(caption, headings, rows) {
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", { class: "hidden" }, caption),
      el("thead", {}, el("tr", {}, headings.map((text) => el("th", { scope: "col" }, text)))),
      el(
        "tbody",
        {},
        rows.map(([first, ...others]) =>
          el("tr", {}, el("th", { scope: "row" }, first), others.map((text) => el("td", {}, text))),
        ),
      ),
    ),
  );
}

/** A figure's numbers as a table, made when they are asked for. */
function dataTable(title, make) {
  const details = el("details", { class: "data" }, el("summary", {}, "Numbers", el("span", { class: "hidden" }, ` of ${title}`)));
  const show = () => {
    if (!details.open) return;
    const { headings, rows } = make();
    details.replaceChildren(details.firstChild, simpleTable(title, headings, rows));
  };
  details.addEventListener("toggle", show);
  details.refresh = show;
  return details;
}

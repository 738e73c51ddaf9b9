"use strict";

/* The table of results: sorted by any column, best values marked by a sign and by weight. */

/** Columns as {heading, title, key(row), better}: key gives what is sorted by, null for nothing. */
function tableColumns(comparison) {
  const columns = [{ heading: "Method", key: (row) => methodOf(comparison, row).label.toLowerCase(), cell: methodCell }];
  if (isSwept(comparison)) columns.push({ heading: comparison.sweep.label, key: (row) => row.point, cell: (_, row) => row.point ?? "any", place: true });
  const values = (column) => ({
    heading: column.heading,
    size: column.size,
    title: column.meaning,
    better: column.better,
    key: (row) => row.values[column.name]?.mean ?? null,
    cell: (_, row) => valueCell(row.values[column.name]),
  });
  columns.push(...comparison.columns.filter(({ extra }) => !extra).map(values));
  const lead = comparison.columns.find(({ name }) => name === comparison.lead);
  const several = comparison.seeds.length > 1;
  if (lead && several) {
    columns.push({
      heading: `Against the best ${lead.label}`,
      title: "difference of the means against the spreads of both; p-value of the paired t-test over seeds",
      key: (row) => row.rank,
      cell: (_, row) => row.verdict.split(", ").map((part) => el("span", {}, part)),
      text: true,
      ranks: true,
    });
  }
  if (several) columns.push({ heading: "Seeds", key: (row) => row.done, cell: (_, row) => (row.done === row.seeds ? row.done : `${row.done} of ${row.seeds}`) });
  columns.push(...comparison.columns.filter(({ extra }) => extra).map(values));
  return columns;
}

/** Whether there are several places; one alone stands above the table. */
function isSwept({ sweep }) {
  return sweep !== null && sweep.values.length > 1;
}

function methodCell(comparison, row) {
  const { label, group, groupLabel } = methodOf(comparison, row);
  const tags = [el("span", { class: `tag ${group}` }, groupLabel)];
  if (row.state === "collapsed") tags.push(el("span", { class: "tag bad" }, "collapsed"));
  if (row.unfinished) tags.push(el("span", { class: "tag" }, row.unfinished));
  return el("div", { class: "method" }, el("span", { class: "label" }, label), tags);
}

function valueCell(value) {
  if (!value) return el("span", { class: "none" }, "–");
  const marks = {
    best: [el("span", { class: "sign", "aria-hidden": "true" }, "★"), el("span", { class: "hidden" }, "best: ")],
    within: [el("span", { class: "sign", "aria-hidden": "true" }, "≈"), el("span", { class: "hidden" }, "within the spread of the best: ")],
  };
  const text = el(value.mark === "best" ? "strong" : "span", {}, value.text);
  const spread = value.spreadText === null ? null : el("span", { class: "spread" }, `± ${value.spreadText}`);
  return el("span", { class: `value ${value.mark ?? ""}` }, marks[value.mark] ?? null, text, spread);
}

function failures(row, span) {
  return row.failed.map(({ seed, error, log }) =>
    el(
      "tr",
      { class: "failure" },
      el(
        "td",
        { colspan: span },
        el("div", {}, el("strong", {}, `Seed ${seed} failed: `), error ?? "no reason given", " Log: ", el("code", {}, log)),
      ),
    ),
  );
}

function resultsTable(comparison) {
  const columns = tableColumns(comparison);
  const bodies = comparison.rows.map((row) => {
    const cells = columns.map(({ cell, text, place }, i) =>
      el(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, class: text ? "words" : place ? "place" : null }, cell(comparison, row)),
    );
    return { row, body: el("tbody", {}, el("tr", {}, cells), failures(row, columns.length)) };
  });
  const table = el("table", { class: "results" });
  const status = el("p", { class: "hidden", role: "status" });
  const heads = columns.map((column, i) => {
    const sign = el("span", { class: "order", "aria-hidden": "true" });
    const button = el("button", { type: "button", title: column.title, click: () => sort(i) }, el("span", {}, column.heading, column.size ? el("small", {}, column.size) : null), sign);
    return el("th", { scope: "col", class: column.text ? "words" : null }, button);
  });
  let sorted = { column: -1, descending: false };
  let order = [...bodies].sort((a, b) => compareKeys(a.row.rank, b.row.rank, false));

  /**
   * First click: best first; second: the other way. Rows without a value stay last, and rows with the same value as they
   * were, so that two clicks sort by two columns.
   */
  function sort(column, quiet = false) {
    const bestFirst = columns[column].better === "higher";
    const descending = sorted.column === column ? !sorted.descending : bestFirst;
    sorted = { column, descending };
    const { key } = columns[column];
    order = [...order].sort((a, b) => compareKeys(key(a.row), key(b.row), descending));
    table.append(...order.map(({ body }) => body));
    const grouping = isSwept(comparison) && column === 1;
    order.forEach(({ row, body }, i) => body.classList.toggle("apart", grouping && i > 0 && row.point !== order[i - 1].row.point));
    heads.forEach((head, i) => {
      if (i === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
      head.querySelector(".order").textContent = i !== column ? "" : descending ? "▼" : "▲";
    });
    if (!quiet) status.textContent = `Sorted by ${columns[column].heading}, ${descending ? "descending" : "ascending"}.`;
  }

  const caption = el("caption", { class: "hidden" }, `Results of ${comparison.name}; the headings sort.`);
  table.append(caption, el("thead", {}, el("tr", {}, heads)));
  const rank = columns.findIndex(({ ranks }) => ranks);
  if (rank > 0) sort(rank, true);
  if (isSwept(comparison)) sort(1, true);
  if (sorted.column < 0) table.append(...order.map(({ body }) => body));
  const region = { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table of results, ${comparison.name}` };
  return el("div", {}, el("div", region, table), status, tableKey(comparison));
}

function compareKeys(a, b, descending) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b), "en", { numeric: true }) : a - b;
  return descending ? -order : order;
}

function tableKey(comparison) {
  const several = comparison.seeds.length > 1;
  const starred = comparison.rows.some(({ values }) => Object.values(values).some(({ mark }) => mark === "best"));
  const items = [
    ...(starred ? [["★", "best of its column", isSwept(comparison) ? " at the same place of the sweep" : ""]] : []),
    ...(several
      ? [
          ["≈", "within the spread of the best: the means differ by no more than both spreads together"],
          ["±", `sample standard deviation over ${comparison.seeds.length} seeds`],
        ]
      : [["", "one seed: no spread"]]),
    ["↓ ↑", "lower, higher is better"],
    ["", `collapsed: less than ${short(report.collapsed, true)} of the codes are in use`],
  ];
  const list = el("ul", { class: "key" }, items.map(([sign, ...words]) => el("li", {}, el("b", {}, sign), " ", words.join(""))));
  const missing = comparison.missing.map((text) => el("li", {}, el("b", {}, "–"), " not measured: ", text));
  list.append(...missing);
  const tested = "The paired t-test compares seed by seed with the best method; it is not corrected for the number of methods.";
  if (several) list.append(el("li", {}, tested));
  return list;
}

/** Several comparisons in one table: the metrics they share, and what changed from the first to the others. */
function jointTable() {
  const shared = comparisons[0].columns.filter(({ name }) => comparisons.every(({ columns }) => columns.some((c) => c.name === name)));
  const chosen = shared.filter(({ name }, i) => i === 0 || ["psnr", "usage"].includes(name));
  const keys = new Map();
  for (const comparison of comparisons) {
    for (const row of comparison.rows) {
      const method = methodOf(comparison, row);
      const place = placeOf(comparison, row.point);
      keys.set(JSON.stringify([method.name, row.point]), place ? `${method.label}, ${place}` : method.label);
    }
  }
  const find = (comparison, key) =>
    comparison.rows.find((row) => JSON.stringify([methodOf(comparison, row).name, row.point]) === key);
  const groups = chosen.map(({ heading }) => el("th", { colspan: comparisons.length, scope: "colgroup" }, heading));
  const names = chosen.flatMap(() => comparisons.map(({ name }) => el("th", { scope: "col", class: "sub" }, name)));
  const rows = [...keys].map(([key, label]) => {
    const cells = chosen.flatMap((column) => comparisons.map((each, i) => jointCell(find(each, key), find(comparisons[0], key), column, i)));
    return el("tr", {}, el("th", { scope: "row" }, label), cells);
  });
  const head = el("thead", {}, el("tr", {}, el("th", { rowspan: 2, scope: "col" }, "Method"), groups), el("tr", {}, names));
  const caption = el("caption", { class: "hidden" }, "The comparisons side by side");
  const region = { class: "scroll", tabindex: 0, role: "region", "aria-label": "The comparisons side by side" };
  return el("div", region, el("table", { class: "results joint" }, caption, head, el("tbody", {}, rows)));
}

function jointCell(row, first, column, i) {
  const value = row?.values[column.name];
  const base = first?.values[column.name];
  const cell = el("td", {}, valueCell(value));
  if (i > 0 && value && base && base.mean) {
    const change = value.mean / base.mean - 1;
    const amount = Math.abs(100 * change).toFixed(1);
    const words = amount === "0.0" ? "no change" : `${change > 0 ? "+" : "−"}${amount}%`;
    cell.append(el("span", { class: "change" }, words));
  }
  return cell;
}

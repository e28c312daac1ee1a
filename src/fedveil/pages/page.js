"use strict";
(() => {
  // The width of a printed plot in pixels: two fit side by side, whatever the window's size.
  const PRINTED = 300;
  const FACTORS = {KB: 1e3, MB: 1e6, GB: 1e9, ms: 1e-3, min: 60, h: 3600};
  const figures = JSON.parse(document.getElementById("plots").textContent);
  const plots = [...document.querySelectorAll(".plot")];
  const settings = {responsive: true, displayModeBar: false, showTips: false};

  for (const plot of plots) {
    const {data, layout} = figures[plot.dataset.plot];
    plot.replaceChildren();
    layout.font = {family: getComputedStyle(document.body).fontFamily, size: 12};
    // Dragging a finger over a plot scrolls the page. Dragging a mouse zooms.
    layout.dragmode = matchMedia("(pointer: fine)").matches ? "zoom" : false;
    Plotly.newPlot(plot, data, layout, settings);
  }
  addEventListener("beforeprint", () => {
    for (const plot of plots) Plotly.relayout(plot, {width: PRINTED});
  });
  addEventListener("afterprint", () => {
    for (const plot of plots) Plotly.relayout(plot, {width: null, autosize: true});
  });
  for (const fold of document.querySelectorAll("details"))
    fold.addEventListener("toggle", () => {
      for (const plot of fold.querySelectorAll(".plot")) Plotly.Plots.resize(plot);
    });

  // The sort key of a cell: its number in a common unit if it starts with one, otherwise its text.
  const key = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const found = text.replaceAll(",", "").match(/^([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([a-z]+)?/i);
    if (found) return Number(found[1]) * (FACTORS[found[2]] ?? 1);
    return /^inf/.test(text) ? Infinity : text;
  };
  const order = (a, b) => {
    if (typeof a === typeof b) return typeof a === "string" ? a.localeCompare(b) : a === b ? 0 : a - b;
    return typeof a === "number" ? -1 : 1;
  };
  const sort = (table, head, column) => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((a, b) => order(key(a, column), key(b, column)));
    body.append(...(down ? rows.reverse() : rows));
  };
  for (const table of document.querySelectorAll("table.sorts"))
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(table, head, column));
      head.append(button);
    });
})();

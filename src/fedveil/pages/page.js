"use strict";
(() => {
  const FACTORS = {KB: 1e3, MB: 1e6, GB: 1e9, ms: 1e-3, min: 60, h: 3600};
  const figures = JSON.parse(document.getElementById("plots").textContent);

  const short = (value, digits) => String(Number(value.toPrecision(digits)));
  const formatted = (value, unit) => {
    if (unit === "percent") return `${(100 * value).toFixed(2)}%`;
    if (unit === "seconds") return `${short(value, 3)} s`;
    if (unit !== "bytes") return short(value, 5);
    const name = ["GB", "MB", "KB"].find(name => value >= FACTORS[name]);
    return name ? `${short(value / FACTORS[name], 4)} ${name}` : `${short(value, 4)} B`;
  };
  // Under the pointer, a plot shows the nearest x that any curve has, and each curve's value there.
  for (const plot of document.querySelectorAll(".plot")) {
    const {box: [left, top, right, bottom], width, x, unit, curves} = figures[plot.dataset.plot];
    const scaled = value => (x.log ? Math.log10(value) : value);
    const place = value =>
      left + (right - left) * (scaled(value) - scaled(x.low)) / (scaled(x.high) - scaled(x.low));
    const known = [...new Set(curves.flatMap(
      curve => curve.x.filter((value, n) => value !== null && curve.y[n] !== null)))];
    const drawing = plot.querySelector("svg");
    const line = document.createElementNS(drawing.namespaceURI, "path");
    line.setAttribute("class", "at");
    const tip = document.createElement("div");
    tip.className = "tip";
    const show = event => {
      const edges = drawing.getBoundingClientRect();
      const at = (event.clientX - edges.left) / edges.width * width;
      const nearest = known.reduce((a, b) => Math.abs(place(b) - at) < Math.abs(place(a) - at) ? b : a);
      const head = document.createElement("b");
      head.textContent = `${x.title} ${formatted(nearest, x.unit)}`;
      tip.replaceChildren(head);
      for (const curve of curves) {
        const value = curve.y[curve.x.indexOf(nearest)] ?? null;
        if (value === null) continue;
        const row = document.createElement("div");
        row.style.setProperty("--c", curve.colour);
        row.textContent = (curves.length > 1 ? `${curve.name}: ` : "") + formatted(value, unit);
        tip.append(row);
      }
      const middle = place(nearest) / width;
      tip.style.left = middle < .5 ? `${100 * middle + 3}%` : "auto";
      tip.style.right = middle < .5 ? "auto" : `${100 * (1 - middle) + 3}%`;
      line.setAttribute("d", `M${place(nearest)} ${top}V${bottom}`);
      drawing.append(line);
      plot.append(tip);
    };
    const hide = () => { line.remove(); tip.remove(); };
    drawing.addEventListener("pointermove", show);
    drawing.addEventListener("pointerdown", show);
    drawing.addEventListener("pointerleave", hide);
  }

  // Paper has nothing to open: a printout has what is folded, except files and logs.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")].filter(fold => !fold.querySelector("pre"));
    for (const fold of opened) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of opened) fold.open = false; });

  // The sort key of a cell: its number in a common unit if it starts with one, otherwise its text.
  // A date sorts as text, and the parts of a duration add up.
  const key = (row, column) => {
    const text = row.cells[column].textContent.trim();
    if (/^\d{4}-\d\d-\d\d/.test(text)) return text;
    if (/^\d+ (h|min) \d/.test(text))
      return [...text.matchAll(/(\d+) (h|min|s)/g)].reduce(
        (sum, [, number, unit]) => sum + number * (FACTORS[unit] ?? 1), 0);
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

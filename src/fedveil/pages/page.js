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
  const named = (value, axis) => axis.names?.[value] ?? formatted(value, axis.unit);
  // A curve's values at an x, with their bounds, as one text. It is empty if there are none.
  const values = (curve, x, unit) => curve.x.flatMap((at, n) => {
    if (at !== x || curve.y[n] === null) return [];
    const [low, high] = [curve.low?.[n] ?? null, curve.high?.[n] ?? null];
    const bounds = low === null || high === null ? "" : ` (${formatted(low, unit)} to ${formatted(high, unit)})`;
    return formatted(curve.y[n], unit) + bounds;
  }).join("; ");

  const element = (name, ...parts) => {
    const made = document.createElement(name);
    made.append(...parts);
    return made;
  };
  // The table of a plot's values, for readers without a pointer: a row for each x.
  const table = ({x, unit, curves}, known, title) => {
    const head = (text, scope) => Object.assign(element("th", text), {scope});
    const names = curves.map(curve => head(curves.length > 1 ? curve.name : title, "col"));
    const rows = [...known].sort((a, b) => a - b).map(at => element("tr", head(named(at, x), "row"),
      ...curves.map(curve => element("td", values(curve, at, unit) || "-"))));
    const columns = element("tr", head(x.title, "col"), ...names);
    return element("table", element("thead", columns), element("tbody", ...rows));
  };

  // Under the pointer, a plot shows the nearest x that any curve has, and each curve's value there.
  for (const plot of document.querySelectorAll(".plot")) {
    const figure = figures[plot.dataset.plot];
    const {box: [left, top, right, bottom], width, x, unit, curves} = figure;
    const scaled = value => (x.log ? Math.log10(value) : value);
    const place = value =>
      left + (right - left) * (scaled(value) - scaled(x.low)) / (scaled(x.high) - scaled(x.low));
    const known = [...new Set(curves.flatMap(
      curve => curve.x.filter((value, n) => value !== null && curve.y[n] !== null)))];
    const fold = element("details", element("summary", "Values"));
    fold.className = "values";
    const title = plot.parentElement.querySelector("h3").textContent;
    fold.addEventListener("toggle", () => {
      const wide = element("div", table(figure, known, title));
      Object.assign(wide, {className: "wide", tabIndex: 0});  // the arrow keys scroll it
      wide.setAttribute("role", "group");
      wide.setAttribute("aria-label", `Values: ${title}`);
      fold.append(wide);
    }, {once: true});
    plot.parentElement.append(fold);
    const drawing = plot.querySelector("svg");
    const line = document.createElementNS(drawing.namespaceURI, "path");
    line.setAttribute("class", "at");
    const tip = document.createElement("div");
    tip.className = "tip";
    const show = event => {
      const edges = drawing.getBoundingClientRect();
      const at = (event.clientX - edges.left) / edges.width * width;
      const nearest = known.reduce((a, b) => Math.abs(place(b) - at) < Math.abs(place(a) - at) ? b : a);
      tip.replaceChildren(element("b", `${x.title} ${named(nearest, x)}`));
      for (const curve of curves) {
        const text = values(curve, nearest, unit);
        if (!text) continue;
        const row = element("div", (curves.length > 1 ? `${curve.name}: ` : "") + text);
        row.style.setProperty("--c", curve.colour);
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

  // Paper has nothing to open: a printout has what is folded, except files, logs and plots' values.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open], .values)")].filter(fold => !fold.querySelector("pre"));
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

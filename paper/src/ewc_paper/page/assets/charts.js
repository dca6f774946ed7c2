// Draws one panel as SVG with Plot (Observable, on D3), and its marks in miniature for a legend.
globalThis.ewc = {};

(() => {
  "use strict";

  const SYMBOLS = {
    o: "circle", s: "square", "^": "triangle", D: "diamond", d: "diamond2", P: "plus", X: "times",
    x: "times", "*": "star",
    v: { draw: (context, size) => d3.symbolTriangle.draw(flipped(context), size) },
  };
  const STROKED = new Set(["x", "X", "P"]); // drawn as strokes, without a filling

  function flipped(context) {
    return {
      moveTo: (x, y) => context.moveTo(x, -y),
      lineTo: (x, y) => context.lineTo(x, -y),
      closePath: () => context.closePath(),
    };
  }

  function make(name, attributes = {}, ...children) {
    const svg = ["svg", "line", "path", "rect", "text"].includes(name);
    const element = svg
      ? document.createElementNS("http://www.w3.org/2000/svg", name)
      : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  // A color is a variable on the figure, so that light and dark need no new drawing.
  function color(figure, mark) {
    const name = `--c-${mark.color.slice(1)}`;
    figure.style.setProperty(name, `light-dark(${mark.color}, ${mark.dark})`);
    return `var(${name})`;
  }

  const short = (value) =>
    Math.abs(value) >= 1e4 ? d3.format(".4~s")(value) : d3.format(".4~g")(value);
  const dashes = (mark) => mark.dash.map((one) => 1.4 * one).join(" ");
  const said = (value) => (finite(value) ? short(value) : "–");
  const finite = (value) => value !== null && value !== undefined;

  // ---- marks -------------------------------------------------------------------------------

  function symbolOf(mark) {
    return SYMBOLS[mark.symbol] ?? "circle";
  }

  function dotStyle(paint, mark, r) {
    return STROKED.has(mark.symbol)
      ? { symbol: symbolOf(mark), stroke: paint, fill: "none", strokeWidth: 1.8, r }
      : { symbol: symbolOf(mark), fill: paint, stroke: "none", r };
  }

  function points(mark, values) {
    return mark.x.map((x, place) => ({ x, y: values[place], place }));
  }

  // Points that the pointer can find are collected in `hover`: one tip for all, at the nearest.
  function remember(hover, found, name, value) {
    for (const p of found) hover.push({ ...p, name, value: value(p) });
  }

  function lineMarks(figure, mark, seedsShown, inside, hover) {
    const paint = color(figure, mark);
    const curve = mark.steps ? "step-after" : "linear";
    const style = { x: "x", y: "y", curve, stroke: paint, strokeDasharray: dashes(mark), clip: true };
    const marks = [];
    const names = Object.keys(mark.seeds);
    const several = names.length > 1;
    for (const [seed, values] of Object.entries(mark.seeds)) {
      if (!several || !seedsShown.has(seed)) continue;
      const own = points(mark, values);
      marks.push(Plot.line(own, { ...style, strokeWidth: 1, strokeOpacity: 0.75 }));
      remember(hover, own.filter(inside), `${mark.label}, ${seed}`, (p) => short(p.y));
    }
    if (!seedsShown.has("mean")) return marks;
    const mean = points(mark, mark.mean);
    const spread = (p) => mark.deviation?.[p.place];
    if (mark.deviation) {
      marks.unshift(Plot.areaY(mean.filter((p) => finite(p.y) && finite(spread(p))), {
        x: "x",
        y1: (p) => p.y - spread(p),
        y2: (p) => p.y + spread(p),
        fill: paint,
        fillOpacity: 0.16,
        clip: true,
      }));
    }
    marks.push(Plot.line(mean, { ...style, strokeWidth: mark.width * 1.3 }));
    const shown = { all: mean, end: mean.slice(-1), none: [] }[mark.markers].filter(inside);
    marks.push(Plot.dot(shown, { x: "x", y: "y", ...dotStyle(paint, mark, 3.4) }));
    const pair = names.length === 2 ? (p) => ` (${names.map((one) => said(mark.seeds[one][p.place])).join(", ")})` : () => "";
    const value = (p) => short(p.y) + (finite(spread(p)) ? ` ± ${d3.format(".2~g")(spread(p))}` : pair(p));
    remember(hover, mean.filter(inside), mark.label, value);
    return marks;
  }

  function tip(panel, hover) {
    const unit = panel.x.label.split(/[;(,]/)[0].trim();
    return Plot.tip(hover, Plot.pointer({
      x: "x",
      y: "y",
      title: (p) => `${p.name}\n${p.value}\n${unit}: ${short(p.x)}`,
      fontSize: 12,
      lineHeight: 1.3,
      maxRadius: 60,
    }));
  }

  function boxMarks(figure, boxes) {
    return boxes.map((box) => Plot.rect([box], {
      x1: (b) => b.x[0],
      x2: (b) => b.x[1],
      ...(box.y ? { y1: (b) => b.y[0], y2: (b) => b.y[1] } : {}),
      fill: color(figure, box),
      fillOpacity: box.opacity,
      clip: true,
      title: (b) => b.label || null,
    }));
  }

  function regionMark(figure, region) {
    const data = region.rings.flatMap((ring, z) => ring.map(([x, y]) => ({ x, y, z })));
    const area = { fill: color(figure, region), fillOpacity: 0.8, curve: "linear-closed" };
    return Plot.line(data, { x: "x", y: "y", z: "z", ...area, stroke: "currentColor", strokeWidth: 0.6, clip: true });
  }

  function noteMark(figure, note) {
    const fill = color(figure, note);
    return Plot.text([note], { x: "x", y: "y", text: "text", fill, lineAnchor: "top", fontSize: 13 });
  }

  function levelMark(figure, level) {
    const paint = color(figure, level);
    const style = { stroke: paint, strokeDasharray: dashes(level), strokeWidth: level.width * 1.3 };
    const title = () => `${level.label}: ${short(level.value)}`;
    return level.upright
      ? Plot.ruleX([level.value], { ...style, title })
      : Plot.ruleY([level.value], { ...style, title });
  }

  function dotMarks(figure, panel, mark, hover) {
    const paint = color(figure, mark);
    const data = mark.x.map((x, place) => ({ x, y: mark.y[place] }));
    const row = (p) => panel.y.names[Math.round(p.y)] ?? short(p.y);
    if (!mark.small) remember(hover, data, mark.label, row);
    const style = dotStyle(paint, mark, mark.small ? 2.2 : 5);
    return Plot.dot(data, { x: "x", y: "y", ...style, opacity: mark.small ? 0.6 : 1 });
  }

  // ---- panels ------------------------------------------------------------------------------

  function chart(figure, panel, width, state) {
    const shown = (mark) => !mark.label || !state.hidden.has(mark.label);
    const [low, high] = panel.y.limits;
    const rows = panel.y.names.length;
    const y = rows ? [rows - 0.5, -0.5] : domainOf(panel, low, high);
    const inside = (p) => finite(p.y) && p.y >= Math.min(...y) && p.y <= Math.max(...y);
    const left = marginOf(panel, width);
    const hover = [];
    const marks = [
      ...axes(panel, width, left),
      ...boxMarks(figure, panel.boxes.filter(shown)),
      ...panel.regions.filter(shown).map((region) => regionMark(figure, region)),
      Plot.ruleX(panel.borders, { strokeOpacity: 0.35, strokeDasharray: "1 3" }),
      ...panel.levels.filter(shown).map((level) => levelMark(figure, level)),
      ...panel.series.filter(shown).flatMap((mark) => lineMarks(figure, mark, state.seeds, inside, hover)),
      ...panel.dots.filter(shown).map((mark) => dotMarks(figure, panel, mark, hover)),
      ...panel.notes.map((note) => noteMark(figure, note)),
    ];
    const domain = panel.x.limits ? { domain: panel.x.limits } : {};
    return asPicture(Plot.plot({
      className: "plot",
      width,
      height: heightOf(panel, width),
      marginLeft: left,
      marginTop: panel.y.label ? 32 : 12,
      marginBottom: 46,
      marginRight: 16,
      ariaLabel: panel.summary,
      x: { type: panel.x.log ? "log" : "linear", ...domain },
      y: { domain: y, nice: !rows && !finite(low) && !finite(high) },
      marks: [...marks, tip(panel, hover)],
    }));
  }

  function axes(panel, width, left) {
    const names = panel.y.names;
    const common = { labelArrow: "none", tickFormat: short };
    const ticks = Math.max(3, Math.round(width / 90));
    const across = Plot.axisX({ ...common, label: axisLabel(panel), labelAnchor: "center", ticks });
    const up = { ...common, label: panel.y.label || null };
    if (!names.length) return [across, Plot.axisY(up), Plot.gridY({ strokeOpacity: 0.1 })];
    const rows = { ticks: d3.range(names.length), tickFormat: (row) => names[row] };
    return [across, Plot.axisY({ ...up, ...rows, lineWidth: (left - 14) / 12 })];
  }

  // To a screen reader the whole is one picture, with the sentence about the panel as its label.
  function asPicture(svg) {
    svg.querySelector("style")?.remove(); // page.css has these rules; the policy forbids others
    svg.setAttribute("role", "img");
    for (const part of svg.querySelectorAll("[aria-label], [aria-description]")) {
      part.removeAttribute("aria-label");
      part.removeAttribute("aria-description");
    }
    return svg;
  }

  function marginOf(panel, width) {
    const longest = Math.max(0, ...panel.y.names.map((name) => name.length));
    return Math.max(54, Math.min(width * 0.36, 18 + 6.8 * longest));
  }

  const axisLabel = (panel) => panel.x.label.split("; ")[0];
  const remarks = (panel) => [panel.note, ...panel.x.label.split("; ").slice(1)].filter(Boolean);

  function heightOf(panel, width) {
    const rows = panel.y.names.length;
    if (panel.regions.length) return Math.min(560, width * 0.88);
    if (rows) return 70 + Math.max(rows, 2) * (panel.dots.length > rows * 2 ? 54 : 30);
    return Math.max(240, Math.min(360, width * 0.55));
  }

  // The limits that are given, and those of the marks for the others.
  function domainOf(panel, low, high) {
    const values = [
      ...panel.series.flatMap((mark) => [
        ...Object.values(mark.seeds).flat(),
        ...mark.mean.flatMap((value, place) => {
          const spread = mark.deviation?.[place] ?? 0;
          return finite(value) ? [value - spread, value + spread] : [];
        }),
      ]),
      ...panel.levels.filter((level) => !level.upright).map((level) => level.value),
      ...panel.dots.flatMap((mark) => mark.y),
    ].filter(finite);
    const [least, most] = values.length ? d3.extent(values) : [0, 1];
    const pad = least === most ? Math.abs(least) / 10 || 1 : (most - least) * 0.04;
    return [low ?? least - pad, high ?? most + pad];
  }

  // ---- legends -----------------------------------------------------------------------------

  function swatch(figure, mark) {
    const paint = mark.color ? color(figure, mark) : "currentColor";
    const line = mark.dash && !mark.dotsOnly;
    const middle = line ? 18 : 8;
    const svg = make("svg", { class: "swatch", viewBox: `0 0 ${2 * middle} 16`, width: 2 * middle, height: 16, "aria-hidden": "true" });
    if (line) {
      const stroke = make("line", { x1: 0, x2: 36, y1: 8, y2: 8, "stroke-width": 2.4, "stroke-dasharray": dashes(mark) });
      stroke.style.stroke = paint;
      svg.append(stroke);
    }
    if (!mark.dash || (mark.symbol && mark.markers !== "none")) {
      const type = mark.dash ? symbolOf(mark) : "square";
      const kind = typeof type === "string" ? d3[`symbol${type[0].toUpperCase()}${type.slice(1)}`] : type;
      const path = make("path", { d: d3.symbol(kind, mark.dash ? 48 : 150)(), transform: `translate(${middle},8)` });
      path.style[STROKED.has(mark.symbol) ? "stroke" : "fill"] = paint;
      if (STROKED.has(mark.symbol)) path.style.strokeWidth = "2px";
      svg.append(path);
    }
    return svg;
  }

  // ---- downloads ---------------------------------------------------------------------------

  // A table of all marks. A text that a spreadsheet would compute is marked as text.
  function csv(data) {
    const rows = [["kind", "panel", "label", "seed", "x", "y", "x to"]];
    for (const panel of data.panels) {
      for (const mark of panel.series) {
        for (const [seed, values] of Object.entries(mark.seeds)) {
          mark.x.forEach((x, place) => rows.push(["line", panel.title, mark.label, seed, x, values[place], null]));
        }
      }
      for (const mark of panel.dots) {
        mark.x.forEach((x, place) => rows.push(["dot", panel.title, mark.label, "", x, panel.y.names[Math.round(mark.y[place])] ?? mark.y[place], null]));
      }
      for (const level of panel.levels) {
        rows.push(["level", panel.title, level.label, "", level.upright ? level.value : null, level.upright ? null : level.value, null]);
      }
      for (const box of panel.boxes) {
        const middle = box.y ? (box.y[0] + box.y[1]) / 2 : null;
        rows.push(["box", panel.title, box.label, "", box.x[0], panel.y.names[Math.round(middle)] ?? middle, box.x[1]]);
      }
    }
    return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
  }

  function cell(value) {
    if (!finite(value)) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  // The panels as they are arranged on the page, with a title above and a legend below, in light colors.
  function picture(figure, title, entries) {
    const holder = figure.querySelector(".panels");
    const frame = holder.getBoundingClientRect();
    const [width, step] = [Math.ceil(frame.width), 22];
    const svg = make("svg", {
      xmlns: "http://www.w3.org/2000/svg", "font-family": "system-ui, sans-serif", "font-size": 12,
      color: "#1c1f24", fill: "currentColor",
    });
    const text = (words, x, y, size, weight) => {
      const element = make("text", { x, y, "font-size": size, "font-weight": weight });
      element.textContent = words;
      svg.append(element);
    };
    svg.append(make("rect", { width: "100%", height: "100%", fill: "#ffffff" }));
    text(title, 0, 18, 15, 600);
    for (const panel of holder.querySelectorAll(".panel")) {
      const drawn = panel.querySelector("svg");
      const place = drawn.getBoundingClientRect();
      const heading = panel.querySelector("h4");
      if (heading) text(heading.textContent, place.left - frame.left, 30 + heading.getBoundingClientRect().bottom - frame.top - 4, 13, 600);
      const copy = drawn.cloneNode(true);
      copy.setAttribute("x", place.left - frame.left);
      copy.setAttribute("y", 30 + place.top - frame.top);
      svg.append(copy);
    }
    let [x, y] = [0, 30 + frame.height + step];
    for (const [label, sample] of entries) {
      const needed = 50 + 7 * label.length;
      if (x && x + needed > width) [x, y] = [0, y + step];
      const copy = sample.cloneNode(true);
      copy.setAttribute("x", x);
      copy.setAttribute("y", y - 12);
      svg.append(copy);
      text(label, x + 42, y, 12, 400);
      x += needed;
    }
    svg.setAttribute("viewBox", `0 0 ${width} ${Math.ceil(y + 10)}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", Math.ceil(y + 10));
    return new XMLSerializer().serializeToString(svg)
      .replace(/var\(--c-([0-9a-f]{6})\)/g, "#$1").replace(/var\(--plot-background\)/g, "#ffffff");
  }

  Object.assign(globalThis.ewc, { make, chart, csv, picture, remarks, swatch });
})();

// The page: its figures with their switches, and newer versions of a run that goes on.
// Texts are only ever set as text; what figures show is in the page and not computed here.
(() => {
  "use strict";

  const { make, chart, remarks, swatch, player } = globalThis.ewc;
  const off = new Set(); // keys of switches that are off, and of seeds that are on

  // ---- figures -----------------------------------------------------------------------------

  function drawPanel(panel, state) {
    const holder = make("div", { class: "panel" });
    if (panel.title) holder.append(make("h4", {}, panel.title));
    for (const text of remarks(panel)) holder.append(make("p", { class: "note" }, text));
    if (panel.films.length) holder.append(player(panel, state));
    else holder.append(make("div", { class: "drawing" }));
    return holder;
  }

  function redraw(figure, data, state) {
    const holder = figure.querySelector(".panels");
    const panels = data.panels.filter((panel) => !state.hidden.has(`panel ${panel.title}`));
    const films = panels.some((panel) => panel.films.length);
    const long = panels.some((panel) => panel.series.some((mark) => mark.steps));
    holder.classList.toggle("one", panels.length === 1 || long);
    holder.classList.toggle("even", panels.length === 2 || panels.length === 4);
    const drawn = panels.map((panel) => drawPanel(panel, state));
    holder.replaceChildren(...drawn);
    if (films) return;
    drawn.forEach((one, place) => {
      const width = Math.max(240, Math.floor(one.clientWidth || 600));
      one.querySelector(".drawing").append(chart(figure, panels[place], width, state));
    });
  }

  // ---- switches ----------------------------------------------------------------------------

  // One switch per label, in the order of the marks; lines look like lines, boxes like boxes.
  function labelled(data) {
    const found = new Map();
    for (const panel of data.panels) {
      const dots = panel.dots.map((mark) => ({ ...mark, dotsOnly: true, markers: "all" }));
      const levels = panel.levels.map((mark) => ({ ...mark, markers: "none" }));
      for (const mark of [...panel.series, ...dots, ...levels, ...panel.regions, ...panel.boxes]) {
        if (mark.label && !found.has(mark.label)) found.set(mark.label, mark);
      }
      for (const film of panel.films) if (!found.has(film.label)) found.set(film.label, null);
    }
    return found;
  }

  function switches(figure, data, state, change) {
    const groups = [];
    const group = (title, entries, kind = "") => {
      const legend = make("legend", {}, title);
      if (entries.length > 1) groups.push(make("fieldset", { class: kind }, legend, ...entries));
    };
    const toggle = (key, name, on, act, picture = null) => {
      const box = make("input", { type: "checkbox", "data-key": `${figure.id} ${key}` });
      box.checked = on;
      box.addEventListener("change", () => { act(box.checked); change(); });
      return make("label", {}, box, picture, name);
    };
    const hide = (key) => (on) => {
      state.hidden[on ? "delete" : "add"](key);
      off[on ? "delete" : "add"](`${figure.id} hide ${key}`);
    };
    const marks = [...labelled(data)];
    group("Show", marks.map(([label, mark]) =>
      toggle(label, label, !state.hidden.has(label), hide(label), mark && swatch(figure, mark))), "key");
    const titles = [...new Set(data.panels.map((panel) => panel.title).filter(Boolean))];
    group("Panels", titles.map((title) =>
      toggle(`panel ${title}`, title, !state.hidden.has(`panel ${title}`), hide(`panel ${title}`))));
    const seeds = [...new Set(data.panels.flatMap((panel) => panel.series.flatMap((mark) =>
      Object.keys(mark.seeds).length > 1 ? Object.keys(mark.seeds) : [])))];
    if (seeds.length) {
      const act = (seed) => (on) => {
        state.seeds[on ? "add" : "delete"](seed);
        off[on === (seed === "mean") ? "delete" : "add"](`${figure.id} seed ${seed}`);
      };
      group("Seeds", ["mean", ...seeds].map((seed) =>
        toggle(`seed ${seed}`, seed === "mean" ? "mean ± deviation" : seed, state.seeds.has(seed), act(seed))));
    }
    figure.querySelector(".switches").replaceChildren(...groups);
  }

  // What the switches say; kept in `off`, so that a newer version of the page looks the same.
  function stateOf(figure) {
    const kept = (kind) => [...off].filter((key) => key.startsWith(`${figure.id} ${kind} `))
      .map((key) => key.slice(`${figure.id} ${kind} `.length));
    const seeds = new Set(kept("seed"));
    if (seeds.has("mean")) seeds.delete("mean");
    else seeds.add("mean");
    return { hidden: new Set(kept("hide")), seeds };
  }

  // ---- the page ----------------------------------------------------------------------------

  const resizing = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.clientWidth !== target.drawnAt) {
        target.drawnAt = target.clientWidth;
        target.draw();
      }
    }
  });

  function start(root) {
    for (const figure of root.querySelectorAll("figure.chart")) {
      const data = JSON.parse(figure.querySelector("script").textContent);
      const state = stateOf(figure);
      figure.draw = () => redraw(figure, data, state);
      switches(figure, data, state, figure.draw);
      figure.drawnAt = figure.clientWidth;
      figure.draw();
      resizing.observe(figure);
    }
  }

  // ---- a run that goes on ------------------------------------------------------------------

  let version = null;

  async function look() {
    const status = document.querySelector(".live");
    try {
      const answer = await fetch(location.pathname, { cache: "no-cache" });
      const latest = answer.headers.get("ETag");
      if (answer.ok && version !== null && latest !== version) replace(await answer.text());
      if (answer.ok) version = latest;
      status.textContent = "This page follows the run.";
    } catch {
      status.textContent = "The server has ended: this is the last state that was seen.";
    }
    setTimeout(look, 2000);
  }

  // Take over the content of the newer page, and keep what the reader has opened and chosen.
  function replace(text) {
    const newer = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    const main = document.querySelector("main");
    if (!newer) return;
    const open = [...main.querySelectorAll("details")].map((one) => one.open);
    const focused = document.activeElement?.dataset?.key;
    main.replaceChildren(...newer.childNodes);
    main.querySelectorAll("details").forEach((one, place) => { one.open = open[place] ?? false; });
    start(main);
    if (focused) main.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  start(document);
  if (document.documentElement.hasAttribute("data-live")) {
    document.body.append(make("p", { class: "live", role: "status" }));
    look();
  }
})();

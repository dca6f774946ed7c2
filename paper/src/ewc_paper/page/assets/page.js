// The page: its figures with their switches, and newer versions of a run that goes on.
// Texts are only ever set as text; what figures show is in the page and not computed here.
(() => {
  "use strict";

  const { make, chart, csv, picture, remarks, swatch, player } = globalThis.ewc;
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
    holder.classList.toggle("wide", films);
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
  function labelled(panels) {
    const found = new Map();
    for (const panel of panels) {
      const dots = panel.dots.map((mark) => ({ ...mark, dotsOnly: true, markers: "all" }));
      const levels = panel.levels.map((mark) => ({ ...mark, markers: "none" }));
      for (const mark of [...panel.series, ...dots, ...levels, ...panel.regions, ...panel.boxes]) {
        if (mark.label && !found.get(mark.label)) found.set(mark.label, mark);
      }
      for (const film of panel.films) if (!found.has(film.label)) found.set(film.label, null);
    }
    return found;
  }

  function seedsOf(panels) {
    return [...new Set(panels.flatMap((panel) => panel.series.flatMap((mark) =>
      Object.keys(mark.seeds).length > 1 ? Object.keys(mark.seeds) : [])))];
  }

  // Switches of a figure or, for what several figures have, of all of them.
  // `owner` is the element that they belong to; `labels` and `seeds` are what can be switched.
  // `rest` says that the other labels of the figure are in the common legend.
  function switches(owner, holder, { marks, titles, seeds, banded, rest = false }, state, change) {
    const groups = [];
    const group = (title, entries, kind = "") => {
      const legend = make("legend", {}, title);
      if (entries.length > 1 || (kind && entries.length && rest)) groups.push(make("fieldset", { class: kind }, legend, ...entries));
    };
    const toggle = (key, name, on, act, picture = null) => {
      const box = make("input", { type: "checkbox", "data-key": `${owner.id} ${key}` });
      box.checked = on;
      box.addEventListener("change", () => { act(box.checked); change(); });
      return make("label", {}, box, picture, name);
    };
    const hide = (key) => (on) => {
      state.hidden[on ? "delete" : "add"](key);
      off[on ? "delete" : "add"](`${owner.id} hide ${key}`);
    };
    group("Show", marks.map(([label, mark]) =>
      toggle(label, label, !state.hidden.has(label), hide(label), mark && swatch(owner, mark))), "key");
    group("Panels", titles.map((title) =>
      toggle(`panel ${title}`, title, !state.hidden.has(`panel ${title}`), hide(`panel ${title}`))));
    if (seeds.length) {
      const usual = shownAtFirst(seeds);
      const act = (seed) => (on) => {
        state.seeds[on ? "add" : "delete"](seed);
        off[on === usual.has(seed) ? "delete" : "add"](`${owner.id} seed ${seed}`);
      };
      const mean = banded ? "mean ± deviation" : "mean";
      group("Seeds", ["mean", ...seeds].map((seed) =>
        toggle(`seed ${seed}`, seed === "mean" ? mean : seed, state.seeds.has(seed), act(seed))));
    }
    holder.replaceChildren(...groups);
  }

  // Of two seeds both are drawn, as a band over two says less; of more, the mean and a band.
  const shownAtFirst = (seeds) => new Set(["mean", ...(seeds.length === 2 ? seeds : [])]);

  // What the switches say; kept in `off`, so that a newer version of the page looks the same.
  function stateOf(owner, seeds) {
    const kept = (kind) => [...off].filter((key) => key.startsWith(`${owner.id} ${kind} `))
      .map((key) => key.slice(`${owner.id} ${kind} `.length));
    const shown = shownAtFirst(seeds);
    for (const seed of kept("seed")) shown[shown.has(seed) ? "delete" : "add"](seed);
    return { hidden: new Set(kept("hide")), seeds: shown };
  }

  // ---- downloads ---------------------------------------------------------------------------

  function tools(figure, data, entries) {
    const save = (kind, type, content) => {
      const button = make("button", { type: "button" }, `Save as ${kind.toUpperCase()}`);
      button.addEventListener("click", () => {
        const address = URL.createObjectURL(new Blob([content()], { type }));
        make("a", { href: address, download: `${data.name}.${kind}` }).click();
        setTimeout(() => URL.revokeObjectURL(address), 10_000);
      });
      return button;
    };
    if (data.panels.some((panel) => panel.films.length)) return;
    const title = figure.querySelector("h3").firstChild.textContent.trim();
    const legend = () => entries.filter(([label]) => !figure.hides(label))
      .map(([label, mark]) => [label, swatch(figure, mark)]);
    figure.querySelector(".tools").replaceChildren(
      save("svg", "image/svg+xml", () => picture(figure, title, legend())),
      save("csv", "text/csv", () => csv(data)));
  }

  function copying(command) {
    const button = make("button", { type: "button" }, "Copy");
    const text = command.querySelector("code");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch { // not allowed here: select it, to be copied by hand
        getSelection().selectAllChildren(text);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    command.append(button);
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
    for (const section of root.querySelectorAll(".run")) startSection(section);
    for (const command of root.querySelectorAll(".command")) copying(command);
  }

  // What several figures of a section have is switched once, for all of them.
  function startSection(section) {
    const figures = [...section.querySelectorAll("figure.chart")].map((figure) => {
      const data = JSON.parse(figure.querySelector("script").textContent);
      return { figure, data, marks: labelled(data.panels), seeds: seedsOf(data.panels) };
    });
    const all = figures.flatMap(({ data }) => data.panels);
    const often = (has) => figures.filter(has).length > 1;
    const marks = [...labelled(all)].filter(([label]) => often((one) => one.marks.has(label)));
    const seeds = often((one) => one.seeds.length) ? seedsOf(all) : [];
    const common = stateOf(section, seeds);
    for (const { figure, data, marks: found, seeds: measured } of figures) {
      const own = stateOf(figure, measured);
      const hidden = { has: (key) => own.hidden.has(key) || common.hidden.has(key) };
      figure.hides = hidden.has;
      const state = { hidden, seeds: seeds.length ? common.seeds : own.seeds };
      figure.draw = () => redraw(figure, data, state);
      switches(figure, figure.querySelector(".switches"), {
        marks: [...found].filter(([label]) => !marks.some(([other]) => other === label)),
        titles: [...new Set(data.panels.map((panel) => panel.title).filter(Boolean))],
        seeds: seeds.length ? [] : measured,
        banded: banded(data.panels),
        rest: marks.some(([label]) => found.has(label)),
      }, own, figure.draw);
      tools(figure, data, [...found].filter(([, mark]) => mark));
      figure.drawnAt = figure.clientWidth;
      figure.draw();
      resizing.observe(figure);
    }
    const redrawAll = () => figures.forEach(({ figure }) => figure.draw());
    switches(section, section.querySelector(".shared"),
      { marks, titles: [], seeds, banded: banded(all) }, common, redrawAll);
  }

  const banded = (panels) => panels.some((panel) => panel.series.some((mark) => mark.deviation));

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

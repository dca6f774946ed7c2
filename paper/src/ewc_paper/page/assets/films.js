// Shows films of agents at play: all arms of a game side by side, with a button and a slider.
(() => {
  "use strict";

  const { make } = globalThis.ewc;

  function player(panel, state) {
    const films = panel.films.filter((film) => !state.hidden.has(film.label));
    const last = Math.max(0, ...films.map((film) => film.frames - 1));
    const screens = films.map((film) => screen(film, panel.title));
    const show = (frame) => screens.forEach((one) => one.show(frame));
    const name = `of ${panel.title}`;
    const slider = make("input", { type: "range", min: 0, max: last, value: 0, "aria-label": `picture ${name}` });
    const button = make("button", { type: "button", "aria-label": `play ${name}` }, "Play");
    let timer = null;
    const stop = () => {
      clearInterval(timer);
      timer = null;
      button.textContent = "Play";
      button.setAttribute("aria-label", `play ${name}`);
    };
    const start = () => {
      timer = setInterval(() => {
        if (!button.isConnected) return stop();
        slider.value = Number(slider.value) >= last ? 0 : Number(slider.value) + 1;
        show(Number(slider.value));
      }, films[0]?.milliseconds ?? 70);
      button.textContent = "Pause";
      button.setAttribute("aria-label", `pause ${name}`);
    };
    button.addEventListener("click", () => (timer === null ? start() : stop()));
    slider.addEventListener("input", () => show(Number(slider.value)));
    const moments = [...new Set(films.map((film) => film.moment))];
    const rows = moments.map((moment) => make("div", {},
      moment && make("p", { class: "moment" }, moment),
      make("div", { class: "films" },
        ...screens.filter((_, place) => films[place].moment === moment).map((one) => one.element))));
    return make("div", {}, make("div", { class: "player" }, button, slider), ...rows);
  }

  function screen(film, title) {
    const label = `${film.label} playing ${title}${film.moment && `, ${film.moment}`}`;
    const canvas = make("canvas", { width: film.width, height: film.height, role: "img", "aria-label": label });
    const picture = new Image();
    const show = (frame) => {
      const place = Math.min(frame, film.frames - 1); // a shorter film stays at its end
      const [column, row] = [place % film.columns, Math.floor(place / film.columns)];
      const [w, h] = [film.width, film.height];
      canvas.getContext("2d").drawImage(picture, column * w, row * h, w, h, 0, 0, w, h);
    };
    picture.addEventListener("load", () => show(0));
    picture.src = film.source;
    return { show, element: make("div", {}, canvas, film.label) };
  }

  globalThis.ewc.player = player;
})();

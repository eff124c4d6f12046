// The explorer: what is chosen, and its views; the same on a page and, by anywidget, in a notebook.

// From what a reader asks first to what few ask.
const ORDER = ["tokens", "depth", "ranked", "grid", "glance", "attention", "promotes", "sources", "effects", "answers", "scatter"];

async function render({ model, el }) {
  const state = { texts: [], chosen: model.get("chosen"), asked: new Set(), waits: {} };
  const root = put("div", { className: "ld-explorer" });
  el.append(root);

  // The target at a position, and what it is held against there.
  const answersAt = (text, position) => {
    const { target, minus, measure } = state.chosen;
    const answer = text.answer(target, position);
    const other = minus === null || measure !== "logit" ? null : text.answer(minus, position);
    return [answer, other && other.id === minus && other.id !== answer.id ? other : null];
  };

  // All that views need, worked out from what is chosen.
  const look = () => {
    const { chosen } = state;
    const text = state.texts[chosen.text];
    const position = Math.min(chosen.position, text.length - 1);
    const component = text.index.get(chosen.component) ?? 0;
    const row = text.components[component].row;
    const rowNumber = Math.max(0, text.rows.indexOf(row));
    const attention = text.sublayers.find(
      (i) => text.components[i].row === row && text.components[i].module === "attention",
    );
    const [answer, minus] = answersAt(text, position);
    const measuredAt = (some, p) => new Measured(some, p, chosen.part, ...answersAt(some, p));
    const measured = measuredAt(text, position);
    return {
      ...{ text, chosen, position, component, row, rowNumber, attention, answer, minus, measured, measuredAt },
      towards: minus ? `${quoted(answer.word)} − ${quoted(minus.word)}` : quoted(answer.word),
      name: text.labels[component],
      layers: new Set(text.components.map((c) => c.row)).size, // with "", where the embedding stands
      live: model.get("live"),
      colorValue(p) {
        if (chosen.color === "loss") return text.values.loss[p];
        const there = measuredAt(text, p);
        return there.beyond(chosen.measure, component);
      },
      choose,
      move(key) {
        const to = { ArrowLeft: position - 1, ArrowRight: position + 1, Home: 0, End: text.length - 1 }[key];
        return to === undefined ? null : { position: Math.min(Math.max(to, 0), text.length - 1) };
      },
      moveHead(key) {
        if (!text.heads.length) return null;
        const [dr, dk] = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key] ?? [];
        if (dr === undefined) return null;
        const r = Math.min(Math.max(rowNumber + dr, 0), text.rows.length - 1);
        const current = text.inRow[rowNumber].indexOf(component);
        const k = Math.min(Math.max(current < 0 ? 0 : current + dk, 0), text.inRow[r].length - 1);
        return { component: text.labels[text.inRow[r][k]] };
      },
      // Whether a kernel was asked: what components promote here, what ablating one does, or which tokens it wrote from.
      ask(wanted = { ask: "promoted" }) {
        if (!model.get("live")) return false;
        const key = `${chosen.text}:${position}:${JSON.stringify(wanted)}`;
        if (state.asked.has(key)) return true;
        // Not for every token that an arrow key runs over.
        clearTimeout(state.waits[wanted.ask]);
        state.waits[wanted.ask] = setTimeout(() => {
          state.asked.add(key);
          model.send({ ...wanted, text: chosen.text, position });
        }, 200);
        return true;
      },
    };
  };

  const choose = (change) => {
    state.chosen = { ...state.chosen, ...change };
    model.set("chosen", state.chosen);
    model.save_changes();
    if (!model.get("live")) writeAddress(state.chosen, state);
    draw();
  };
  state.choose = choose;

  // The frame, built once: only what is inside a view is drawn again, so that the focus stays where it is.
  const heading = put("h1", {}, "Explorer ", put("small", {}, model.get("model")));
  const tabs = put("div", { className: "choice", role: "group", "aria-label": "text" });
  const status = put("p", { className: "now", role: "status" });
  const aims = put("div", { className: "aims" });
  const search = put("input", { type: "search", placeholder: "find L3.H5, or a token", "aria-label": "find a component or a token", size: 18 });
  search.addEventListener("keydown", (event) => {
    event.stopPropagation(); // a notebook has keys of its own
    if (event.key !== "Enter") return;
    event.preventDefault();
    const found = find(look(), search.value);
    search.setCustomValidity(found || !search.value ? "" : "nothing found");
    search.reportValidity();
    if (found) choose(found);
  });
  search.addEventListener("input", () => search.setCustomValidity(""));
  const live = model.get("live");
  const share = live
    ? put("button", { type: "button", "data-do": "save", onclick: () => model.send({ ask: "page" }) }, "save as one file")
    : put("button", { type: "button", "data-do": "link", onclick: () => link() }, "copy link");
  const link = () => {
    clearTimeout(state.writes);
    writeAddress(state.chosen, state, 0);
    setTimeout(() => copyLink(share), 20);
  };
  const bar = put(
    "div",
    { className: "tools" },
    tabs,
    ...["measure", "part", "color"].map((field) => choice(field, state)),
    search,
    share,
  );
  const grid = put("div", { className: "views" });
  root.append(put("header", {}, heading, live ? form(model) : ""), bar, status, aims, grid);
  const hosts = {};
  for (const name of ORDER) {
    const view = VIEWS[name];
    const reached = Boolean(view.keys);
    const host = put("div", { className: "host", ...(reached ? { tabIndex: 0, role: "application" } : {}) });
    const title = put("h2", {});
    const caption = put("p", { className: "caption" });
    const section = put("section", { className: `view ${name}` }, title, host, caption);
    hosts[name] = { host, title, section, caption };
    host.addEventListener("click", (event) => {
      const x = look();
      const marked = event.target.closest("[data-component]");
      const change = view.pick ? view.pick(event.target, x, event) : marked && { component: marked.dataset.component };
      if (change) choose(change);
    });
    host.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const change = view.keys?.(event.key, look());
      if (change) {
        event.preventDefault();
        event.stopPropagation();
        choose(change);
      }
    });
    grid.append(section);
  }

  function draw() {
    if (!state.texts[state.chosen.text]) return;
    const began = performance.now();
    const x = look();
    const { text, position, chosen } = x;
    tabs.replaceChildren(
      ...(state.texts.length < 2
        ? []
        : [
            put("span", {}, "text"),
            ...state.texts.map((_, n) =>
              put(
                "button",
                {
                  type: "button",
                  "data-text": n,
                  "aria-pressed": n === chosen.text,
                  onclick: () => choose({ text: n, position: Math.min(chosen.position, state.texts[n].length - 1) }),
                },
                String(n + 1),
              ),
            ),
          ]),
    );
    tabs.hidden = state.texts.length < 2;
    for (const button of bar.querySelectorAll("[data-field]")) {
      button.setAttribute("aria-pressed", chosen[button.dataset.field] === button.dataset.option);
      if (button.dataset.field === "part") button.parentElement.hidden = !MEASURES[chosen.measure].squared;
    }
    const loss = text.values.loss[position];
    const next = text.next(position);
    const right = text.answers(position)[0];
    status.replaceChildren(
      put(
        "span",
        {},
        `position ${position}: after `,
        put("b", {}, quoted(text.tokens[position])),
        ...(next === null
          ? [" the text ends; the model's likeliest tokens are below"]
          : [" comes ", put("b", {}, quoted(next)), `, p = ${percent(right.probability)}`, Number.isFinite(loss) ? `, loss ${number(loss)} nats` : ""]),
      ),
      put("span", {}, "chosen: ", put("b", {}, x.name), ` ${signed(x.measured.value("logit", x.component))} logits to ${x.towards}${sides(x, x.component)}`),
    );
    const had = root.contains(document.activeElement) && document.activeElement.closest(".aims [data-target]")?.dataset;
    aims.replaceChildren(...targets(x));
    if (had) aims.querySelector(`[data-target="${had.target}"][data-id="${had.id}"]`)?.focus();
    root.classList.toggle("headless", !text.heads.length);
    for (const [name, view] of Object.entries(VIEWS))
      hosts[name].section.hidden = Boolean(view.heads && !text.heads.length);
    // All that is read from the page before anything is drawn: each reading after a change would lay it out again.
    x.ramp = ramp(root, "seq");
    const seen = new Set();
    for (const [name, { host, section }] of Object.entries(hosts)) {
      if (section.hidden) continue;
      host.wide = host.clientWidth;
      const { top, bottom } = section.getBoundingClientRect();
      if (top < window.innerHeight + 100 && bottom > -100) seen.add(name);
    }
    const drawOne = (name) => {
      const view = VIEWS[name];
      const { host, title, section, caption } = hosts[name];
      if (section.hidden) return;
      title.textContent = view.title(x);
      caption.textContent = typeof view.caption === "string" ? view.caption : view.caption(x);
      host.setAttribute("aria-label", title.textContent);
      // What is drawn anew must not take the focus away.
      const held = document.activeElement !== host && host.contains(document.activeElement) && document.activeElement.dataset.component;
      view.draw(host, x);
      if (held) (host.querySelector(`[data-component="${CSS.escape(held)}"]`) ?? host).focus();
    };
    seen.forEach(drawOne);
    // What nobody sees waits until the frame is out.
    const rest = ORDER.filter((name) => !seen.has(name));
    delete root.dataset.whole;
    clearTimeout(state.later);
    const drawRest = () => {
      if (rest.length) drawOne(rest.shift());
      if (rest.length) state.later = setTimeout(drawRest);
      else root.dataset.whole = "";
    };
    state.later = setTimeout(drawRest, 30);
    lookUp(x);
    root.dataset.drawn = (performance.now() - began).toFixed(1);
  }

  // What lies on the page and is wanted only now: what components promote at a position, what ablating them does, and
  // which tokens heads wrote from.
  async function lookUp({ text, position }) {
    for (const [kind, take] of [["effects", "learn"], ["sources", "trace"]]) {
      const blob = text.blobs[kind];
      if (!blob) continue;
      text.blobs = { ...text.blobs, [kind]: null };
      text[take](await unpack(blob));
      draw();
    }
    const blob = text.blobs.promoted[Math.floor(position / (text.blobs.together ?? 1))];
    if (!blob || text.looked.has(position) || text.reading === blob) return;
    text.reading = blob;
    text.look(await unpack(blob));
    draw();
  }

  const opened = async (blobs) => Object.assign(new Text(await unpack(blobs.core)), { blobs });

  async function read() {
    const blobs = model.get("texts");
    const kept = state.texts;
    state.texts = await Promise.all(
      blobs.map(async (some, n) => {
        if (some === kept[n]?.blobs) return kept[n];
        for (const key of state.asked) if (key.startsWith(`${n}:`)) state.asked.delete(key);
        return opened(some);
      }),
    );
    if (!model.get("live")) state.chosen = readAddress(state.chosen, state.texts);
    draw();
    performance.mark("ld-drawn");
    for (const text of state.texts) {
      if (text.attention || !text.blobs.attention) continue;
      text.attention = (await unpack(text.blobs.attention)).arrays.attention;
      draw();
    }
  }

  const changed = () => {
    // A notebook also reports what was chosen here.
    if (JSON.stringify(model.get("chosen")) === JSON.stringify(state.chosen)) return;
    state.chosen = model.get("chosen");
    draw();
  };
  const heard = async (message, buffers) => {
    if (message.kind === "page") {
      const url = URL.createObjectURL(new Blob([buffers[0]], { type: "text/html" }));
      put("a", { href: url, download: "explorer.html" }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    }
    const take = { promoted: "look", effects: "learn", sources: "trace" }[message.kind];
    if (!take || !state.texts[message.text]) return;
    state.texts[message.text][take](await unpack(buffers[0]));
    draw();
  };
  model.on("change:texts", read);
  model.on("change:chosen", changed);
  model.on("msg:custom", heard);
  let width = 0;
  const watcher = new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - width) < 1) return;
    width = entry.contentRect.width;
    draw();
  });
  const moved = () => {
    state.chosen = readAddress(state.chosen, state.texts);
    draw();
  };
  if (!model.get("live")) window.addEventListener("hashchange", moved);
  await read();
  watcher.observe(root);
  return () => {
    window.removeEventListener("hashchange", moved);
    watcher.disconnect();
    model.off("change:texts", read);
    model.off("change:chosen", changed);
    model.off("msg:custom", heard);
  };
}

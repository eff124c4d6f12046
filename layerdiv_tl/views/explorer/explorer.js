// The explorer: what is chosen, and its views; the same on a page and, by anywidget, in a notebook.

const CHOICES = {
  part: { name: "contributions", options: ["centered", "raw"] },
  term: { name: "components by", options: ["net", "bias", "diversity"] },
  color: { name: "text by", options: ["loss", "net", "bias", "diversity"] },
};

// Buttons of which one is pressed.
function choice(field, state) {
  const { name, options } = CHOICES[field];
  const buttons = options.map((option) =>
    put(
      "button",
      {
        type: "button",
        title: MEANING[option] ?? "",
        "data-field": field,
        "data-option": option,
        onclick: () => state.choose({ [field]: option }),
      },
      option,
    ),
  );
  return put("div", { className: "choice", role: "group", "aria-label": name }, put("span", {}, name), ...buttons);
}

async function render({ model, el }) {
  const state = { texts: [], chosen: model.get("chosen"), asked: new Set() };
  const root = put("div", { className: "ld-explorer" });
  el.append(root);

  // All that views need, worked out from what is chosen.
  const look = () => {
    const { chosen, texts } = state;
    const text = texts[chosen.text];
    const position = Math.min(chosen.position, text.length - 1);
    const component = text.index.get(chosen.component) ?? 0;
    const row = text.components[component].row;
    const rowNumber = Math.max(0, text.rows.indexOf(row));
    const attention = text.sublayers.find(
      (i) => text.components[i].row === row && text.components[i].module === "attention",
    );
    return {
      ...{ text, texts, chosen, position, component, row, rowNumber, attention },
      part: chosen.part,
      name: text.labels[component],
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
      // Whether a kernel was asked what components promote here.
      ask() {
        if (!model.get("live")) return false;
        const key = `${chosen.text}:${position}`;
        if (state.asked.has(key)) return true;
        // Not for every token that an arrow key runs over.
        clearTimeout(state.waits);
        state.waits = setTimeout(() => {
          state.asked.add(key);
          model.send({ ask: "promoted", text: chosen.text, position });
        }, 200);
        return true;
      },
    };
  };

  const choose = (change) => {
    state.chosen = { ...state.chosen, ...change };
    model.set("chosen", state.chosen);
    model.save_changes();
    draw();
  };
  state.choose = choose;

  const pin = (n) => {
    const pins = [...state.chosen.pins];
    pins[n] = [state.chosen.text, state.chosen.position];
    choose({ pins });
  };

  // The frame, built once: only what is inside a view is drawn again, so that the focus stays where it is.
  const heading = put("h1", {}, "Explorer ", put("small", {}, model.get("model")));
  const tabs = put("div", { className: "choice", role: "group", "aria-label": "text" });
  const pins = put(
    "div",
    { className: "choice", role: "group", "aria-label": "pins" },
    put("span", {}, "pin as"),
    ...["A", "B"].map((name, n) =>
      put(
        "button",
        { type: "button", "data-pin": name, title: `key ${name.toLowerCase()}`, onclick: () => pin(n) },
        name,
      ),
    ),
    put("button", { type: "button", "data-pin": "none", onclick: () => choose({ pins: [null, null] }) }, "clear"),
  );
  const status = put("p", { className: "now", role: "status" });
  const bar = put(
    "div",
    { className: "tools" },
    tabs,
    choice("part", state),
    choice("term", state),
    choice("color", state),
    pins,
  );
  const grid = put("div", { className: "views" });
  root.append(put("header", {}, heading, model.get("live") ? form(model) : ""), bar, status, grid);
  const hosts = {};
  for (const [name, view] of Object.entries(VIEWS)) {
    const reached = Boolean(view.keys);
    const host = put("div", { className: "host", ...(reached ? { tabIndex: 0, role: "application" } : {}) });
    const title = put("h2", {});
    const section = put(
      "section",
      { className: `view ${name}` },
      title,
      host,
      put("p", { className: "caption" }, view.caption),
    );
    hosts[name] = { host, title, section };
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
  root.addEventListener("keydown", (event) => {
    if (/^(INPUT|TEXTAREA)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
    const n = { a: 0, b: 1 }[event.key];
    if (n === undefined) return;
    event.stopPropagation();
    pin(n);
  });

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
    }
    const loss = text.values.loss[position];
    const comes = Number.isFinite(loss)
      ? [
          " comes ",
          put("b", {}, quoted(text.next(position))),
          `, to which the model gave a probability of ${percent(Math.exp(-loss))} (loss ${number(loss)} nats)`,
        ]
      : [" the text ends: give a target to hold the prediction against"];
    const [net, bias, diversity] = ["net", "bias", "diversity"].map((term) =>
      number(text.colorValue(term, x.part, position)),
    );
    status.replaceChildren(
      put("span", {}, "after ", put("b", {}, quoted(text.tokens[position])), ...comes),
      put(
        "span",
        {},
        `${x.part}: ${net === "–" ? "" : `net ${net} = bias ${bias} − `}diversity ${diversity}, mean${net === "–" ? "" : "s"} over ${text.counts[0]} components`,
      ),
      put("span", {}, "chosen: ", put("b", {}, x.name), ` at position ${position}`),
    );
    root.classList.toggle("headless", !text.heads.length);
    for (const [name, view] of Object.entries(VIEWS)) {
      hosts[name].section.hidden = Boolean(view.heads) && !text.heads.length;
      if (hosts[name].section.hidden) continue;
      hosts[name].title.textContent = view.title(x);
      hosts[name].host.setAttribute("aria-label", view.title(x));
      view.draw(hosts[name].host, x);
    }
    root.dataset.drawn = (performance.now() - began).toFixed(1);
  }

  async function read() {
    const blobs = model.get("texts");
    const kept = state.blobs ?? [];
    state.texts = await Promise.all(
      blobs.map(async (blob, n) => {
        if (blob === kept[n]) return state.texts[n];
        for (const key of state.asked) if (key.startsWith(`${n}:`)) state.asked.delete(key);
        const [numbers, ...looked] = await Promise.all([blob].flat().map((bytes) => unpack(bytes)));
        const text = new Text(numbers);
        looked.forEach((promoted) => text.look(promoted));
        return text;
      }),
    );
    state.blobs = blobs;
    draw();
  }

  const changed = () => {
    // A notebook also reports what was chosen here.
    if (JSON.stringify(model.get("chosen")) === JSON.stringify(state.chosen)) return;
    state.chosen = model.get("chosen");
    draw();
  };
  const heard = async (message, buffers) => {
    if (message.kind !== "promoted" || !state.texts[message.text]) return;
    state.texts[message.text].look(await unpack(buffers[0]));
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
  await read();
  watcher.observe(root);
  return () => {
    watcher.disconnect();
    model.off("change:texts", read);
    model.off("change:chosen", changed);
    model.off("msg:custom", heard);
  };
}

// Where a reader types another text; the kernel measures it and reports how far it is.
function form(model) {
  const text = put("textarea", { rows: 2, placeholder: "another text", "aria-label": "another text" });
  const target = put("input", {
    placeholder: "target, as in ␣Paris",
    title: "a token to hold the end of the text against, with its leading space; may stay empty",
    "aria-label": "target",
    size: 16,
  });
  const go = put("button", { type: "submit" }, "Decompose");
  const bar = put("progress", { max: 1, value: 0, hidden: true });
  const status = put("span", { className: "progress-text", role: "status" });
  const made = put("form", { className: "ask" }, text, target, go, bar, status);
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    model.send({ ask: "text", text: text.value, target: target.value });
  });
  made.addEventListener("keydown", (event) => {
    event.stopPropagation(); // a notebook has keys of its own
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) made.requestSubmit();
  });
  const report = () => {
    const { done, of, message } = model.get("progress");
    bar.hidden = !of;
    bar.value = of ? done / of : 0;
    status.textContent = message;
  };
  model.on("change:progress", report);
  report();
  return made;
}

// On a page: the numbers lie in it, and nobody listens to what is chosen.
function openPage() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const held = { ...data, live: false, texts: data.texts.map((blobs) => blobs.map(bytes)) };
  const model = {
    get: (name) => held[name],
    set: (name, value) => (held[name] = value),
    save_changes() {},
    send() {},
    on() {},
    off() {},
  };
  return render({ model, el: document.getElementById("explorer") });
}

export default { render };

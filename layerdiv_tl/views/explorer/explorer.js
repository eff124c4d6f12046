// The explorer: its selection, its text, and messages from a kernel; the same on a page and, by anywidget, in a notebook.

async function render({ model, el }) {
  const state = { text: null, chosen: model.get("chosen"), waits: {} };
  state.choose = (change) => {
    state.chosen = { ...state.chosen, ...change };
    model.set("chosen", state.chosen);
    model.save_changes();
    draw();
  };
  const isShown = (version) => state.text && state.text.blobs.version === version;
  const given = () => existing(model.get("chosen"), model.get("address") ?? {}, state);
  const now = () => look(state, model, state.choose);
  const root = put("div", { className: "ld-explorer" });
  el.append(root);
  const drawToolbar = makeToolbar(root, model, state, now);
  const drawViews = frame(root, state, now);

  function draw() {
    if (!state.text) return;
    const x = now();
    drawToolbar(x);
    drawViews(x);
    lookUp(x);
  }

  // Read what lies packed on the page and is wanted only after the first frame; attention, which is large, last.
  async function lookUp({ text }) {
    for (const kind of ["promoted", "sources", "effects", "attention"]) {
      const blob = text.blobs[kind];
      if (!blob || text.reading.has(kind)) continue;
      text.reading.add(kind);
      text.take(kind, await unpack(blob));
      draw();
    }
  }

  async function read() {
    const blobs = model.get("text");
    const text = new TextNumbers(await unpack(blobs.core));
    if (model.get("text").version !== blobs.version) return; // replaced meanwhile
    state.text = Object.assign(text, { blobs, reading: new Set(), asked: new Set() });
    state.chosen = given();
    draw();
  }

  const heard = {
    "change:text": read,
    "change:chosen"() {
      if (!isShown(model.get("text").version)) return; // its text comes
      const chosen = given();
      // A notebook also reports what was chosen here.
      if (JSON.stringify(chosen) === JSON.stringify(state.chosen)) return;
      state.chosen = chosen;
      draw();
    },
    async "msg:custom"({ kind, version }, [buffer]) {
      if (kind === "page") {
        const url = URL.createObjectURL(new Blob([buffer], { type: "text/html" }));
        put("a", { href: url, download: "explorer.html" }).click();
        setTimeout(() => URL.revokeObjectURL(url), 60_000);
      } else if (isShown(version)) {
        state.text.take(kind, await unpack(buffer));
        draw();
      }
    },
  };
  let width = 0;
  const watcher = new ResizeObserver(([{ contentRect }]) => {
    if (Math.abs(contentRect.width - width) < 1) return;
    width = contentRect.width;
    draw();
  });
  // Keys that no view took move through the text. A page listens everywhere, a notebook only here: it has its own.
  const keyed = model.get("live") ? root : document;
  const onKeyAnywhere = (event) => {
    if (!event.target.closest?.("input, textarea, select") && state.text) onKey(event, VIEWS.tokens, state, now);
  };
  keyed.addEventListener("keydown", onKeyAnywhere);
  Object.entries(heard).forEach(([name, hear]) => model.on(name, hear));
  await read();
  performance.mark("ld-drawn");
  watcher.observe(root);
  return () => {
    keyed.removeEventListener("keydown", onKeyAnywhere);
    watcher.disconnect();
    Object.entries(heard).forEach(([name, hear]) => model.off(name, hear));
  };
}

// What is chosen, by Python or by an address, as far as the text has it. An address without a target means the right one.
function existing(chosen, address, { chosen: now, text }) {
  const asked = Object.keys(address).length ? { ...chosen, target: null, minus: null, ...address } : chosen;
  const whole = (value, most) => (/^\d+$/.test(value ?? "") && +value <= most ? +value : null);
  const found = { ...now, position: whole(asked.position, text.length - 1) ?? Math.min(now.position, text.length - 1) };
  if (text.index.has(asked.component)) found.component = asked.component;
  for (const [field, { options }] of Object.entries(CHOICES)) if (Object.hasOwn(options, asked[field])) found[field] = asked[field];
  for (const field of ["target", "minus"]) {
    const id = whole(asked[field], Infinity);
    found[field] = text.measures(id) ? id : null;
  }
  return found;
}

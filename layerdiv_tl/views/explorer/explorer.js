// The explorer: its selection, its texts, and messages from a kernel; the same on a page and, by anywidget, in a notebook.

// From what a reader asks first to what few ask.
const ORDER = ["tokens", "depth", "ranked", "grid", "glance", "attention", "promotes", "sources", "effects", "answers", "scatter"];

async function render({ model, el }) {
  const live = model.get("live");
  const state = { texts: [], chosen: model.get("chosen"), asked: new Set(), waits: {} };
  state.choose = (change) => {
    state.chosen = { ...state.chosen, ...change };
    model.set("chosen", state.chosen);
    model.save_changes();
    if (!live) writeAddress(state.chosen, state);
    draw();
  };
  const now = () => look(state, model, state.choose);
  const root = put("div", { className: "ld-explorer" });
  el.append(root);
  const drawToolbar = makeToolbar(root, model, state, now);
  const drawViews = frame(root, state, now);

  function draw() {
    if (!state.texts[state.chosen.text]) return;
    const x = now();
    drawToolbar(x);
    drawViews(x);
    lookUp(x);
  }

  // Read what lies packed on the page and is wanted only now: promoted tokens, effects, source tokens.
  async function lookUp({ text, position }) {
    const { blobs } = text;
    const promoted = blobs.promoted[Math.floor(position / (blobs.together ?? 1))];
    const wanted = { effects: blobs.effects, sources: blobs.sources, promoted: text.looked.has(position) ? null : promoted };
    for (const [kind, blob] of Object.entries(wanted)) {
      if (!blob || text.reading.has(blob)) continue;
      text.reading.add(blob);
      text.take(kind, await unpack(blob));
      draw();
    }
  }

  async function read() {
    const kept = state.texts;
    const opened = async (blobs, n) => {
      if (blobs === kept[n]?.blobs) return kept[n];
      for (const key of state.asked) if (key.startsWith(`${n}:`)) state.asked.delete(key);
      return Object.assign(new TextNumbers(await unpack(blobs.core)), { blobs, reading: new Set() });
    };
    state.texts = await Promise.all(model.get("texts").map(opened));
    if (!live) state.chosen = readAddress(state.chosen, state.texts);
    draw();
    performance.mark("ld-drawn");
    for (const text of state.texts) {
      if (text.attention || !text.blobs.attention) continue;
      text.attention = (await unpack(text.blobs.attention)).arrays.attention;
      draw();
    }
  }

  const onChosen = () => {
    // A notebook also reports what was chosen here.
    if (JSON.stringify(model.get("chosen")) === JSON.stringify(state.chosen)) return;
    state.chosen = model.get("chosen");
    draw();
  };
  const onMessage = async (message, buffers) => {
    if (message.kind === "page") {
      const url = URL.createObjectURL(new Blob([buffers[0]], { type: "text/html" }));
      put("a", { href: url, download: "explorer.html" }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    }
    if (!state.texts[message.text]) return;
    state.texts[message.text].take(message.kind, await unpack(buffers[0]));
    draw();
  };
  let width = 0;
  const watcher = new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - width) < 1) return;
    width = entry.contentRect.width;
    draw();
  });
  const onAddress = () => {
    state.chosen = readAddress(state.chosen, state.texts);
    draw();
  };
  const onKeyAnywhere = (event) => {
    if (!event.target.closest?.("input, textarea, select") && state.texts[state.chosen.text]) onKey(event, VIEWS.tokens, state, now);
  };
  const gone = new AbortController();
  const { signal } = gone;
  // Keys that no view took move through the text. A page listens everywhere, a notebook only here: it has its own.
  (live ? root : document).addEventListener("keydown", onKeyAnywhere, { signal });
  if (!live) window.addEventListener("hashchange", onAddress, { signal });
  const heard = { "change:texts": read, "change:chosen": onChosen, "msg:custom": onMessage };
  Object.entries(heard).forEach(([name, hear]) => model.on(name, hear));
  await read();
  watcher.observe(root);
  return () => {
    gone.abort();
    watcher.disconnect();
    Object.entries(heard).forEach(([name, hear]) => model.off(name, hear));
  };
}

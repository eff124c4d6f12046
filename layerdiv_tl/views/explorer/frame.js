// The views in their boxes. A box is made once: only its content is drawn again.

const ORDER = ["tokens", "depth", "ranked", "grid", "attention", "sources", "promotes", "effects", "answers"];

// Draw anew what is in a box; the focus stays on the button that has the same data, or else on the box.
function redraw(box, draw) {
  const active = /** @type {HTMLElement} */ (document.activeElement);
  const data = active !== box && box.contains(active) ? Object.entries(active.dataset).filter(([name]) => name !== "value") : [];
  draw();
  const same = data.map(([name, value]) => `[data-${name}="${CSS.escape(value)}"]`).join("");
  if (same && !box.contains(document.activeElement)) (box.querySelector(same) ?? box).focus();
}

function frame(root, state, now) {
  const boxes = ORDER.map((name) => {
    const view = VIEWS[name];
    const host = put("div", { className: "host", ...(view.keys ? { tabIndex: 0, role: "application" } : {}) });
    host.addEventListener("click", (event) => {
      const marked = event.target.closest("[data-component]");
      const change = view.pick ? view.pick(event.target, now(), event) : marked && { component: marked.dataset.component };
      if (change) state.choose(change);
    });
    host.addEventListener("keydown", (event) => onKey(event, view, state, now));
    const title = put("h2");
    const help = put("p", { className: "help", hidden: true }, view.help);
    const ask = button({ className: "why", "aria-label": `help: ${name}`, "aria-expanded": false }, "?");
    ask.onclick = () => ask.setAttribute("aria-expanded", String(!(help.hidden = !help.hidden)));
    return { view, host, title, section: put("section", { className: `view ${name}` }, title, ask, help, host) };
  });
  root.append(put("div", { className: "views" }, ...boxes.map(({ section }) => section)));

  return (x) => {
    const hasHeads = x.text.heads.length > 0;
    root.classList.toggle("headless", !hasHeads);
    boxes.forEach(({ view, section }) => (section.hidden = Boolean(view.heads && !hasHeads)));
    const open = boxes.filter(({ section }) => !section.hidden);
    // All that is read from the page before anything is drawn: each reading after a change would lay it out again.
    open.forEach(({ host }) => (host.wide = host.clientWidth));
    x.attentionColor = getComputedStyle(root).getPropertyValue("--attention").trim();
    open.forEach(({ view, host, title }) => {
      title.textContent = view.title(x);
      host.setAttribute("aria-label", title.textContent);
      redraw(host, () => view.draw(host, x));
    });
  };
}

// Change the selection by a key, if the view knows it.
function onKey(event, view, state, now) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const change = view.keys?.(event.key, now());
  if (!change) return;
  event.preventDefault();
  event.stopPropagation();
  state.choose(change);
}

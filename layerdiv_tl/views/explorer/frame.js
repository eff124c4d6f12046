// The views in their boxes. A box is made once: only its content is drawn again.

// From what a reader asks first to what few ask.
const ORDER = ["tokens", "depth", "ranked", "grid", "glance", "attention", "promotes", "sources", "effects", "answers"];

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
    const [title, caption] = [put("h2"), put("p", { className: "caption" })];
    return { view, host, title, caption, section: put("section", { className: `view ${name}` }, title, host, caption) };
  });
  root.append(put("div", { className: "views" }, ...boxes.map(({ section }) => section)));

  const drawOne = ({ view, host, title, caption }, x) => {
    title.textContent = view.title(x);
    caption.textContent = typeof view.caption === "string" ? view.caption : view.caption(x);
    host.setAttribute("aria-label", title.textContent);
    redraw(host, () => view.draw(host, x));
  };

  return (x) => {
    const hasHeads = x.text.heads.length > 0;
    root.classList.toggle("headless", !hasHeads);
    boxes.forEach(({ view, section }) => (section.hidden = Boolean(view.heads && !hasHeads)));
    // All that is read from the page before anything is drawn: each reading after a change would lay it out again.
    x.ramp = ramp(root, "seq");
    const open = boxes.filter(({ section }) => !section.hidden);
    open.forEach(({ host }) => (host.wide = host.clientWidth));
    const inSight = ({ section }) => {
      const { top, bottom } = section.getBoundingClientRect();
      return top < window.innerHeight + 100 && bottom > -100;
    };
    const seen = open.filter(inSight);
    // What nobody sees waits until the frame is out.
    const rest = open.filter((box) => !seen.includes(box));
    seen.forEach((box) => drawOne(box, x));
    delete root.dataset.whole;
    clearTimeout(state.later);
    const drawRest = () => {
      if (rest.length) drawOne(rest.shift(), x);
      if (rest.length) state.later = setTimeout(drawRest);
      else root.dataset.whole = "";
    };
    state.later = setTimeout(drawRest, 30);
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

// The views in their boxes. A box is made once: only its content is drawn again, so that the focus stays.

function frame(root, state, now) {
  const grid = put("div", { className: "views" });
  root.append(grid);
  const boxes = {};
  for (const name of ORDER) {
    const view = VIEWS[name];
    const host = put("div", { className: "host", ...(view.keys ? { tabIndex: 0, role: "application" } : {}) });
    const title = put("h2", {});
    const caption = put("p", { className: "caption" });
    boxes[name] = { host, title, caption, section: put("section", { className: `view ${name}` }, title, host, caption) };
    grid.append(boxes[name].section);
    host.addEventListener("click", (event) => {
      const marked = event.target.closest("[data-component]");
      const change = view.pick ? view.pick(event.target, now(), event) : marked && { component: marked.dataset.component };
      if (change) state.choose(change);
    });
    host.addEventListener("keydown", (event) => onKey(event, view, state, now));
  }

  const drawOne = (name, x) => {
    const view = VIEWS[name];
    const { host, title, section, caption } = boxes[name];
    if (section.hidden) return;
    title.textContent = view.title(x);
    caption.textContent = typeof view.caption === "string" ? view.caption : view.caption(x);
    host.setAttribute("aria-label", title.textContent);
    // What is drawn anew must not take the focus away.
    const active = /** @type {HTMLElement} */ (document.activeElement);
    const held = active !== host && host.contains(active) && active.dataset.component;
    view.draw(host, x);
    if (held) (host.querySelector(`[data-component="${CSS.escape(held)}"]`) ?? host).focus();
  };

  return (x) => {
    const hasHeads = x.text.heads.length > 0;
    root.classList.toggle("headless", !hasHeads);
    for (const [name, view] of Object.entries(VIEWS)) boxes[name].section.hidden = Boolean(view.heads && !hasHeads);
    // All that is read from the page before anything is drawn: each reading after a change would lay it out again.
    x.ramp = ramp(root, "seq");
    const seen = new Set();
    for (const [name, { host, section }] of Object.entries(boxes)) {
      if (section.hidden) continue;
      host.wide = host.clientWidth;
      const { top, bottom } = section.getBoundingClientRect();
      if (top < window.innerHeight + 100 && bottom > -100) seen.add(name);
    }
    seen.forEach((name) => drawOne(name, x));
    // What nobody sees waits until the frame is out.
    const rest = ORDER.filter((name) => !seen.has(name));
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

// Change the selection by a key; whether the view knows it.
function onKey(event, view, state, now) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const change = view.keys?.(event.key, now());
  if (!change) return;
  event.preventDefault();
  event.stopPropagation();
  state.choose(change);
}

// The boxes and buttons above the views, and the line that says what is selected.

function makeToolbar(root, model, state, now) {
  const live = model.get("live");
  const tabs = put("div", { className: "choice", role: "group", "aria-label": "text" });
  const status = put("p", { className: "now", role: "status" });
  const aims = put("div", { className: "aims" });
  const search = put("input", { type: "search", placeholder: "find L3.H5, or a token", "aria-label": "find a component or a token", size: 18 });
  search.addEventListener("keydown", (event) => {
    event.stopPropagation(); // a notebook has keys of its own
    if (event.key !== "Enter") return;
    event.preventDefault();
    const found = find(now(), search.value);
    search.setCustomValidity(found || !search.value ? "" : "nothing found");
    search.reportValidity();
    if (found) state.choose(found);
  });
  search.addEventListener("input", () => search.setCustomValidity(""));
  const share = live
    ? put("button", { type: "button", "data-do": "save", onclick: () => model.send({ ask: "page" }) }, "save as one file")
    : put("button", { type: "button", "data-do": "link", onclick: () => link() }, "copy link");
  const link = () => {
    clearTimeout(state.writes);
    writeAddress(state.chosen, state, 0);
    setTimeout(() => copyLink(share), 20);
  };
  const fields = ["measure", "part", "color"].map((field) => choice(field, state));
  const bar = put("div", { className: "tools" }, tabs, ...fields, search, share);
  const heading = put("h1", {}, "Explorer ", put("small", {}, model.get("model")));
  root.append(put("header", {}, heading, live ? form(model) : ""), bar, status, aims);

  const tab = (n, chosen) => {
    const onclick = () => state.choose({ text: n, position: Math.min(chosen.position, state.texts[n].length - 1) });
    return put("button", { type: "button", "data-text": n, "aria-pressed": n === chosen.text, onclick }, String(n + 1));
  };

  return (x) => {
    const { text, position, chosen } = x;
    tabs.hidden = state.texts.length < 2;
    tabs.replaceChildren(put("span", {}, "text"), ...state.texts.map((_, n) => tab(n, chosen)));
    for (const button of bar.querySelectorAll("[data-field]")) {
      button.setAttribute("aria-pressed", chosen[button.dataset.field] === button.dataset.option);
      if (button.dataset.field === "part") button.parentElement.inert = !MEASURES[chosen.measure].squared;
    }
    const loss = text.values.loss[position];
    const next = text.next(position);
    const after = [`position ${position}: after `, put("b", {}, quoted(text.tokens[position]))];
    if (next === null) after.push(" the text ends; the model's likeliest next tokens are below");
    else {
      after.push(" comes ", put("b", {}, quoted(next)), `, p = ${percent(text.answers(position)[0].probability)}`);
      if (Number.isFinite(loss)) after.push(`, loss ${number(loss)} nats`);
    }
    const side = (answer) => x.measured.logit(x.component, answer.slot);
    const to = x.contrast ? `${quoted(x.answer.word)} − ${quoted(x.contrast.word)}` : quoted(x.answer.word);
    const adds = ` ${signed(side(x.answer) - (x.contrast ? side(x.contrast) : 0))} logits to ${to}${sides(x, x.component, x.contrast)}`;
    status.replaceChildren(put("span", {}, ...after), put("span", {}, "selected: ", put("b", {}, x.name), adds));
    const had = root.contains(document.activeElement) && document.activeElement.closest(/** @type {"button"} */ (".aims [data-target]"))?.dataset;
    aims.replaceChildren(...targets(x));
    if (had) aims.querySelector(`[data-target="${had.target}"][data-id="${had.id}"]`)?.focus();
  };
}

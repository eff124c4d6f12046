// What is above the views: boxes and buttons of the selection, the search, another text's form; the address of a page.

const CHOICES = {
  measure: { name: "components by", options: Object.keys(MEASURES) },
  part: { name: "gauge", options: ["centered", "raw"] },
  color: { name: "color the text by", options: ["loss", "component"] },
};
const HINTS = {
  logit: "contribution to the logit of the target, relative to the component's mean over the vocabulary",
  cross_entropy: "contribution to the loss, in nats",
  bias: "squared distance of the component alone from the target",
  diversity: "squared distance of the component from the mean of all",
  net: "bias − diversity: a component's part in the squared error",
  centered: "without the shift that is common to all tokens, which softmax cannot see",
  raw: "with the shift that is common to all tokens",
  loss: "the model's own cross-entropy of the token that follows, in nats",
  component: "the measure of the selected component at every token",
};

const group = (name, ...children) =>
  put("div", { className: "choice", role: "group", "aria-label": name }, put("span", {}, name), ...children);
const button = (attributes, ...children) => put("button", { type: "button", ...attributes }, ...children);

// Buttons of which one is pressed.
function choice(field, state) {
  const { name, options } = CHOICES[field];
  const one = (option) => {
    const known = { title: HINTS[option], "data-field": field, "data-option": option };
    return button({ ...known, onclick: () => state.choose({ [field]: option }) }, MEASURES[option]?.name ?? option);
  };
  return group(name, ...options.map(one));
}

// The tokens that may be the target, and those that it may be contrasted with.
function targets(x) {
  const answers = x.text.answers(x.position);
  const one = (field, id, pressed, ...children) => {
    const known = { "data-target": field, "data-id": id ?? "", "aria-pressed": pressed };
    return button({ ...known, onclick: () => x.choose({ [field]: id }) }, ...children);
  };
  const towards = answers.map(({ id, word, probability, right }) => {
    const note = right ? put("small", {}, x.position + 1 < x.text.length ? " right" : " given") : null;
    return one("target", right ? null : id, id === x.answer.id, put("b", {}, quoted(word)), ` ${percent(probability)}`, note);
  });
  const others = answers.filter(({ id }) => id !== x.answer.id);
  const against = others.map(({ id, word }) => one("minus", id, id === x.minus?.id, put("b", {}, quoted(word))));
  const contrast = group("contrast with", one("minus", null, !x.minus, "none"), ...against);
  contrast.inert = x.chosen.measure !== "logit";
  return [group("target", ...towards), contrast];
}

// The next component or token that holds what is looked for, after the one chosen; null for none.
function find(x, wanted) {
  const asked = wanted.trim().toLowerCase();
  if (!asked) return null;
  const { text, component, position } = x;
  const cyclic = (count, from) => Array.from({ length: count }, (_, k) => (from + 1 + k) % count);
  const labels = text.labels.map((name) => name.toLowerCase());
  const exact = labels.indexOf(asked);
  if (exact >= 0) return { component: text.labels[exact] };
  const token = cyclic(text.length, position).find((p) => text.tokens[p].toLowerCase().includes(asked));
  if (token !== undefined) return { position: token };
  const named = cyclic(labels.length, component).find((i) => labels[i].startsWith(asked) || labels[i].endsWith(`.${asked}`));
  return named === undefined ? null : { component: text.labels[named] };
}

// Draws what is above the views, and returns a function that draws what changes of it.
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
  const link = () => {
    writeAddress(state.chosen, state, 0);
    setTimeout(() => copyLink(share), 20);
  };
  const share = live
    ? button({ "data-do": "save", onclick: () => model.send({ ask: "page" }) }, "save as one file")
    : button({ "data-do": "link", onclick: link }, "copy link");
  const bar = put("div", { className: "tools" }, tabs, ...Object.keys(CHOICES).map((field) => choice(field, state)), search, share);
  const heading = put("h1", {}, "Explorer ", put("small", {}, model.get("model")));
  root.append(put("header", {}, heading, live ? form(model) : ""), bar, status, aims);

  const tab = (n, chosen) => {
    const onclick = () => state.choose({ text: n, position: Math.min(chosen.position, state.texts[n].length - 1) });
    return button({ "data-text": n, "aria-pressed": n === chosen.text, onclick }, String(n + 1));
  };

  return (x) => {
    const { text, position, chosen } = x;
    tabs.hidden = state.texts.length < 2;
    tabs.replaceChildren(put("span", {}, "text"), ...state.texts.map((_, n) => tab(n, chosen)));
    for (const one of bar.querySelectorAll("[data-field]")) {
      one.setAttribute("aria-pressed", chosen[one.dataset.field] === one.dataset.option);
      if (one.dataset.field === "part") one.parentElement.inert = !MEASURES[chosen.measure].squared;
    }
    const loss = text.values.loss[position];
    const next = text.next(position);
    const after = [`position ${position}: after `, put("b", {}, said(text.tokens[position]))];
    if (next === null) after.push(" the text ends; the model's likeliest next tokens are below");
    else {
      after.push(" comes ", put("b", {}, said(next)), `, p = ${percent(text.answers(position)[0].probability)}`);
      if (Number.isFinite(loss)) after.push(`, loss ${number(loss)} nats`);
    }
    const side = (answer) => x.measured.logit(x.component, answer.slot);
    const to = x.contrast ? `${said(x.answer.word)} − ${said(x.contrast.word)}` : said(x.answer.word);
    const adds = ` ${signed(side(x.answer) - (x.contrast ? side(x.contrast) : 0))} logits to ${to}${sides(x, x.component, x.contrast)}`;
    status.replaceChildren(put("span", {}, ...after), put("span", {}, "selected: ", put("b", {}, x.name), adds));
    const active = document.activeElement?.closest(/** @type {"button"} */ (".aims [data-target]"));
    const had = root.contains(active) && active.dataset;
    aims.replaceChildren(...targets(x));
    if (had) aims.querySelector(`[data-target="${had.target}"][data-id="${had.id}"]`)?.focus();
  };
}

// Where a reader types another text; the kernel measures it and reports how far it is.
function form(model) {
  const text = put("textarea", { rows: 2, placeholder: "another text", "aria-label": "another text" });
  const token = (name, hint) => put("input", { placeholder: name, title: hint, "aria-label": name, size: 12 });
  const target = token("target", "a token whose logit is decomposed at every position, with its leading space, as in “␣Paris”; may stay empty");
  const minus = token("contrast with", "a token to contrast the target with; may stay empty");
  const generate = put("input", { type: "number", min: 0, max: 200, value: 0, "aria-label": "tokens to generate", title: "how many tokens the model generates first" });
  const go = put("button", { type: "submit" }, "Decompose");
  const bar = put("progress", { max: 1, value: 0, hidden: true, "aria-label": "progress" });
  const status = put("span", { className: "progress-text", role: "status" });
  const made = put("form", { className: "ask" }, text, target, minus, generate, go, bar, status);
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    model.send({ ask: "text", text: text.value, target: target.value, minus: minus.value, generate: +generate.value });
  });
  made.addEventListener("keydown", (event) => {
    event.stopPropagation(); // a notebook has keys of its own
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target === go) return;
    event.preventDefault();
    made.requestSubmit();
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

// Not for every token that an arrow key runs over: browsers complain of many changes.
function writeAddress(chosen, state, wait = 250) {
  clearTimeout(state.writes);
  state.writes = setTimeout(() => {
    const address = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value !== null));
    try {
      history.replaceState(null, "", `#${address}`);
    } catch {
      // A page inside another one may have no address of its own.
    }
  }, wait);
}

// What an address says is chosen, as far as these texts have it.
function readAddress(chosen, texts) {
  const address = new URLSearchParams(location.hash.slice(1));
  const found = { ...chosen };
  const whole = (value, most) => (/^\d+$/.test(value ?? "") && +value <= most ? +value : null);
  found.text = whole(address.get("text"), texts.length - 1) ?? chosen.text;
  const text = texts[found.text];
  found.position = whole(address.get("position"), text.length - 1) ?? Math.min(chosen.position, text.length - 1);
  if (text.index.has(address.get("component"))) found.component = address.get("component");
  for (const [field, { options }] of Object.entries(CHOICES))
    if (options.includes(address.get(field))) found[field] = address.get(field);
  // An address without a target means the right one.
  if ([...address].length) for (const field of ["target", "minus"]) {
    const id = whole(address.get(field), Infinity);
    found[field] = text.measures(id) ? id : null;
  }
  return found;
}

// Copy the address; where a browser does not let pages write to the clipboard, show it.
async function copyLink(share) {
  try {
    await navigator.clipboard.writeText(location.href);
    share.textContent = "copied";
    setTimeout(() => (share.textContent = "copy link"), 1500);
  } catch {
    window.prompt("copy link", location.href);
  }
}

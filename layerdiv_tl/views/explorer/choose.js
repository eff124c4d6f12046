// What is above the views: boxes and buttons of the selection, the search, the form that replaces the text.

const CHOICES = {
  measure: { name: "components by", options: Object.fromEntries(Object.entries(MEASURES).map(([key, { hint }]) => [key, hint])) },
  part: {
    name: "gauge: shift of all tokens",
    options: {
      centered: "without the shift that is common to all tokens, which softmax cannot see",
      raw: "with the shift that is common to all tokens",
    },
  },
  color: {
    name: "color the text by",
    options: {
      loss: "the model's own cross-entropy of the token that follows, in nats",
      component: "the measure of the selected component at every token",
    },
  },
};

const group = (name, attributes, ...children) =>
  put("div", { className: "choice", role: "group", "aria-label": name, ...attributes }, put("span", {}, name), ...children);
const button = (attributes, ...children) => put("button", { type: "button", ...attributes }, ...children);

// The measures and whatever else one of several is chosen of, as groups of buttons.
function choices(x) {
  return Object.entries(CHOICES).map(([field, { name, options }]) => {
    const one = ([option, title]) => {
      const known = { title, "data-field": field, "data-option": option, "aria-pressed": option === x.chosen[field] };
      return button({ ...known, onclick: () => x.choose({ [field]: option }) }, MEASURES[option]?.name ?? option);
    };
    return group(name, { inert: field === "part" && !MEASURES[x.chosen.measure].squared }, ...Object.entries(options).map(one));
  });
}

// The tokens that may be the target, and those that it may be contrasted with.
function aims(x) {
  const answers = x.text.answers(x.position);
  const to = (field, id, pressed, ...children) =>
    button({ "data-target": field, "data-id": id ?? "", "aria-pressed": pressed, onclick: () => x.choose({ [field]: id }) }, ...children);
  const targets = answers.map(({ id, word, probability, right }) => {
    const note = right && put("small", {}, x.position + 1 < x.text.length ? " right" : " given");
    return to("target", right ? null : id, id === x.answer.id, put("b", {}, quoted(word)), ` ${percent(probability)}`, note);
  });
  const others = answers.filter(({ id }) => id !== x.answer.id);
  const against = others.map(({ id, word }) => to("minus", id, id === x.minus?.id, put("b", {}, quoted(word))));
  const inert = x.chosen.measure !== "logit";
  return [group("target", {}, ...targets), group("contrast with", { inert }, to("minus", null, !x.minus, "none"), ...against)];
}

// The selected token and component in words.
function words(x) {
  const { text, position } = x;
  const [loss, next] = [text.values.loss[position], text.next(position)];
  const comes = next === null ? [" the text ends; the model's likeliest next tokens are below"] : [" comes ", put("b", {}, said(next))];
  if (next !== null) comes.push(`, p = ${percent(text.answers(position)[0].probability)}`);
  if (next !== null && Number.isFinite(loss)) comes.push(`, loss ${number(loss)} nats`);
  const value = x.measured.logit(x.component) - (x.contrast ? x.measured.logit(x.component, x.contrast.slot) : 0);
  const to = x.contrast ? `${said(x.answer.word)} − ${said(x.contrast.word)}` : said(x.answer.word);
  const adds = ` ${signed(value)} logits to ${to}${sides(x, x.component, x.contrast)}`;
  const after = put("span", {}, `position ${position}: after `, put("b", {}, said(text.tokens[position])), ...comes);
  return [after, put("span", {}, "selected: ", put("b", {}, x.name), adds)];
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
  const search = put("input", { type: "search", placeholder: "find L3.H5, or a token", "aria-label": "find a component or a token", size: 18 });
  onEnter(search, () => {
    const found = find(now(), search.value);
    search.setCustomValidity(found || !search.value ? "" : "nothing found");
    search.reportValidity();
    if (found) state.choose(found);
  });
  search.addEventListener("input", () => search.setCustomValidity(""));
  const share = button({ "data-do": live ? "save" : "link", onclick: () => model.send({ ask: "page" }) }, live ? "save as one file" : "copy link");
  const heading = put("h1", {}, "Explorer ", put("small", {}, model.get("model")));
  const [chosen, status, aimed] = [put("div", { className: "choices" }), put("p", { className: "now", role: "status" }), put("div", { className: "aims" })];
  root.append(put("header", {}, heading, live ? form(model) : ""), put("div", { className: "tools" }, chosen, search, share), status, aimed);
  return (x) => {
    status.replaceChildren(...words(x));
    redraw(chosen, () => chosen.replaceChildren(...choices(x)));
    redraw(aimed, () => aimed.replaceChildren(...aims(x)));
  };
}

// Take the Enter key of a field; a notebook has keys of its own.
function onEnter(field, take) {
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target.type === "submit") return;
    event.preventDefault();
    take();
  });
}

// Where a reader types another text; the kernel measures it and reports how far it is.
function form(model) {
  const field = (label, title, more = {}) => put("input", { title, "aria-label": label, placeholder: label, size: 12, ...more });
  const text = put("textarea", { rows: 2, placeholder: "another text", "aria-label": "another text" });
  const target = field("target", "a token whose logit is decomposed at every position, with its leading space, as in “␣Paris”; may stay empty");
  const minus = field("contrast with", "a token to contrast the target with; may stay empty");
  const generate = field("tokens to generate", "how many tokens the model generates first", { type: "number", min: 0, max: 200, value: 0 });
  const bar = put("progress", { max: 1, value: 0, hidden: true, "aria-label": "progress" });
  const status = put("span", { className: "progress-text", role: "status" });
  const made = put("form", { className: "ask" }, text, target, minus, generate, put("button", { type: "submit" }, "Decompose"), bar, status);
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    model.send({ ask: "text", text: text.value, target: target.value, minus: minus.value, generate: +generate.value });
  });
  onEnter(made, () => made.requestSubmit());
  const report = () => {
    const { done, of, message } = model.get("progress");
    Object.assign(bar, { hidden: !of, value: of ? done / of : 0 });
    status.textContent = message;
  };
  model.on("change:progress", report);
  report();
  return made;
}

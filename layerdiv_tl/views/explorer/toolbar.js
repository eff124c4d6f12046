// What is above the views: buttons of the selection, the search, the form that replaces the text.

const CHOICES = {
  measure: { name: "show", options: Object.fromEntries(Object.entries(MEASURES).map(([key, { hint }]) => [key, hint])) },
  color: {
    name: "color text by",
    options: {
      loss: "the model's own cross-entropy of the token that follows, in nats",
      component: "the measure of the selected component at every token",
    },
  },
};

const group = (name, ...children) => put("div", { className: "choice", role: "group", "aria-label": name }, put("span", {}, name), ...children);
const button = (attributes, ...children) => put("button", { type: "button", ...attributes }, ...children);

// The measures and colors, as groups of buttons.
function choices(x) {
  return Object.entries(CHOICES).map(([field, { name, options }]) => {
    const one = ([option, title]) => {
      const known = { title, "data-field": field, "data-option": option, "aria-pressed": option === x.chosen[field] };
      return button({ ...known, onclick: () => x.choose({ [field]: option }) }, MEASURES[option]?.name ?? option);
    };
    return group(name, ...Object.entries(options).map(one));
  });
}

// The likeliest tokens, those asked for and the selected ones, as buttons for the target and for what it is contrasted with.
function aims(x) {
  const shown = (selected) => x.text.answers(x.position).filter(({ slot, id }) => slot < x.text.offered || id === selected?.id);
  const to = (field, id, pressed, ...children) =>
    button({ "data-target": field, "data-id": id ?? "", "aria-pressed": pressed, onclick: () => x.choose({ [field]: id }) }, ...children);
  const targets = shown(x.answer).map(({ id, word, probability, right }) => {
    const note = right && put("small", {}, x.position + 1 < x.text.length ? " right" : " given");
    return to("target", right ? null : id, id === x.answer.id, put("b", {}, quoted(word)), ` ${percent(probability)}`, note);
  });
  const others = shown(x.contrast).filter(({ id }) => id !== x.answer.id);
  const against = others.map(({ id, word }) => to("minus", id, id === x.contrast?.id, put("b", {}, quoted(word))));
  return { target: targets, minus: [to("minus", null, !x.contrast, "none"), ...against] };
}

// The selected token and component in words.
function words(x) {
  const { text, position } = x;
  const comes = [];
  if (text.isKnown(position)) {
    const { word, probability } = text.answers(position)[0];
    comes.push(" comes ", put("b", {}, said(word)), `, p = ${percent(probability)}, loss ${number(text.values.loss[position])} nats`);
  }
  const after = put("span", {}, `position ${position}: after `, put("b", {}, said(text.tokens[position])), ...comes);
  const adds = ` adds ${signed(x.value(x.component))} ${x.unit} to the ${x.says(x)}${x.sides(x.component)}`;
  return [after, put("span", {}, "selected: ", put("b", {}, x.name), adds)];
}

// The next component or token that holds what is looked for, after the one chosen; null for none.
function find(x, wanted) {
  const asked = wanted.trim().toLowerCase();
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

// A field that takes Enter: `take` returns what is wrong with it, if anything; a notebook has keys of its own.
function field(name, more, take) {
  const made = put("input", { "aria-label": name, placeholder: name, size: 12, ...more });
  made.addEventListener("input", () => made.setCustomValidity(""));
  onEnter(made, () => {
    made.setCustomValidity(made.value ? take(made.value) ?? "" : "");
    if (made.reportValidity() && more.list) made.value = "";
  });
  return made;
}

function onEnter(made, take) {
  made.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target.type === "submit") return;
    event.preventDefault();
    take();
  });
}

// Draws what is above the views, and returns a function that draws what changes of it.
function makeToolbar(root, model, state, now) {
  const live = model.get("live");
  const search = field("find L3.H5, or a token", { type: "search", size: 18 }, (wanted) => {
    const found = find(now(), wanted);
    if (found) state.choose(found);
    return found ? "" : "nothing found";
  });
  const list = put("datalist", { id: `ld-words-${Math.random().toString(36).slice(2)}` });
  // Any token that was measured here, or with a kernel any other.
  const typed = (name, label) =>
    field(label, { list: list.id, title: "a token as it is written, its leading space too" }, (value) => {
      const token = value.replaceAll("␣", " ");
      const answers = now().text.answers(now().position);
      const found = answers.find(({ word }) => word === token) ?? answers.find(({ word }) => word === ` ${token}`);
      if (found) state.choose({ [name]: found.id });
      else if (live) model.send({ ask: "token", field: name, token });
      else return "not on this page: explore it in a notebook";
    });
  const share = button({ "data-do": live ? "save" : "link", onclick: () => model.send({ ask: "page" }) }, live ? "save as one file" : "copy link");
  const heading = put("h1", {}, "Explorer ", put("small", {}, model.get("model")));
  const [chosen, status] = [put("div", { className: "choices" }), put("p", { className: "now", role: "status" })];
  const aimed = { target: put("div", { className: "buttons" }), minus: put("div", { className: "buttons" }) };
  const rows = [group("target", aimed.target, typed("target", "other target")), group("contrast with", aimed.minus, typed("minus", "other token"))];
  root.append(put("header", {}, heading, live ? form(model) : ""), put("div", { className: "tools" }, chosen, search, share));
  root.append(put("div", { className: "aims" }, ...rows, list), status);
  return (x) => {
    status.replaceChildren(...words(x));
    redraw(chosen, () => chosen.replaceChildren(...choices(x)));
    Object.entries(aims(x)).forEach(([name, buttons]) => redraw(aimed[name], () => aimed[name].replaceChildren(...buttons)));
    rows[1].toggleAttribute("inert", x.chosen.measure !== "logit");
    list.replaceChildren(...x.text.answers(x.position).map(({ word }) => put("option", { value: word.replaceAll(" ", "␣") })));
  };
}

// Where a reader types another text; the kernel measures it and reports what it does.
function form(model) {
  const input = (label, title, more = {}) => put("input", { title, "aria-label": label, placeholder: label, size: 12, ...more });
  const text = put("textarea", { rows: 1, placeholder: "another text", "aria-label": "another text" });
  const target = input("target", "a token whose logit is decomposed at every position, with its leading space; may stay empty");
  const minus = input("contrast with", "a token to contrast the target with; may stay empty");
  const status = put("span", { className: "progress-text", role: "status" });
  const made = put("form", { className: "ask" }, text, target, minus, put("button", { type: "submit" }, "Decompose"), status);
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    model.send({ ask: "text", text: text.value, target: target.value, minus: minus.value });
  });
  onEnter(made, () => made.requestSubmit());
  const report = () => (status.textContent = model.get("progress"));
  model.on("change:progress", report);
  report();
  return made;
}

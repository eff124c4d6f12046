// The selection: its buttons, the search, and its form in the address of a page.

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

function group(name, ...children) {
  return put("div", { className: "choice", role: "group", "aria-label": name }, put("span", {}, name), ...children);
}

// Buttons of which one is pressed.
function choice(field, state) {
  const { name, options } = CHOICES[field];
  const buttons = options.map((option) =>
    put(
      "button",
      {
        type: "button",
        title: HINTS[option],
        "data-field": field,
        "data-option": option,
        onclick: () => state.choose({ [field]: option }),
      },
      MEASURES[option]?.name ?? option,
    ),
  );
  return group(name, ...buttons);
}

// The tokens that may be the target, and those that it may be contrasted with.
function targets(x) {
  const answers = x.text.answers(x.position);
  const button = (field, id, pressed, ...said) =>
    put(
      "button",
      { type: "button", "data-target": field, "data-id": id ?? "", "aria-pressed": pressed, onclick: () => x.choose({ [field]: id }) },
      ...said,
    );
  const said = (answer) => [
    put("b", {}, quoted(answer.word)),
    ` ${percent(answer.probability)}`,
    answer.right ? put("small", {}, x.position + 1 < x.text.length ? " right" : " given") : null,
  ];
  const towards = answers.map((answer) =>
    button("target", answer.right ? null : answer.id, answer.id === x.answer.id, ...said(answer).filter(Boolean)),
  );
  const against = answers
    .filter((answer) => answer.id !== x.answer.id)
    .map((answer) => button("minus", answer.id, answer.id === x.minus?.id, put("b", {}, quoted(answer.word))));
  const none = button("minus", null, !x.minus, "none");
  const contrast = group("contrast with", none, ...against);
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
  const token = cyclic(text.length, position).find((p) => quoted(text.tokens[p]).replaceAll("␣", " ").toLowerCase().includes(asked));
  if (token !== undefined) return { position: token };
  const named = cyclic(labels.length, component).find((i) => labels[i].startsWith(asked) || labels[i].endsWith(`.${asked}`));
  return named === undefined ? null : { component: text.labels[named] };
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
  const said = new URLSearchParams(location.hash.slice(1));
  const found = { ...chosen };
  const whole = (value, most) => (/^\d+$/.test(value ?? "") && +value <= most ? +value : null);
  found.text = whole(said.get("text"), texts.length - 1) ?? chosen.text;
  const text = texts[found.text];
  found.position = whole(said.get("position"), text.length - 1) ?? Math.min(chosen.position, text.length - 1);
  if (text.index.has(said.get("component"))) found.component = said.get("component");
  for (const field of Object.keys(CHOICES)) {
    if (CHOICES[field].options.includes(said.get(field))) found[field] = said.get(field);
  }
  // An address without a target means the right one.
  if ([...said].length) for (const field of ["target", "minus"]) {
    const id = whole(said.get(field), Infinity);
    found[field] = text.measures(id) ? id : null;
  }
  return found;
}

// The address, for the clipboard; older ways where a browser does not let pages write there.
async function copyLink(said) {
  try {
    await navigator.clipboard.writeText(location.href);
  } catch {
    const field = put("textarea", { value: location.href });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  said.textContent = "copied";
  setTimeout(() => (said.textContent = "copy link"), 1500);
}

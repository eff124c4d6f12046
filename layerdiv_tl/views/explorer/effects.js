// Direct and total effect of the selected component, by ablation, and compensation by later components.

VIEWS.effects = {
  title: (x) => `Direct and total effect of ${x.name}; compensation`,
  caption:
    "Direct effect: the component's contribution to the difference of the two logits. Total effect: that difference, minus " +
    "the one with the component zero-ablated at every token. Between them are the changes of later components' contributions; " +
    "those of the opposite sign compensate for it. This is one case; ld.effects has means and intervals over many.",
  draw(host, x) {
    const { text, position } = x;
    const kind = x.name.split(".").at(-1);
    if (!/^(H\d+|attn|mlp)$/.test(kind)) return nothing(host, `${x.name} is not ablated: select a head, an attention or an MLP.`);
    const [a, b] = compared(x);
    if (!b) return nothing(host, "There is no second token to compare with here.");
    const found = text.effect(position, a.id, b.id, x.name);
    if (found?.why) return nothing(host, found.why);
    if (!found && x.live) {
      x.ask({ ask: "effects", component: x.name, answers: [a.id, b.id] });
      return nothing(host, `Running the model without ${x.name} …`);
    }
    if (!found) return elsewhere(host, x);
    const difference = `${quoted(a.word)} − ${quoted(b.word)}`;
    const others = found.others.map(([name, value]) => [name, value, text.index.get(name)]);
    if (found.more) others.push([`${found.more} others`, found.rest]);
    others.push(["final norm", found.norm]);
    const lines = [["direct effect", found.direct], ...others, ["total effect", found.total]];
    const most = Math.max(...lines.map(([, value]) => Math.abs(value)), 1e-9);
    const later = found.total - found.direct - found.norm;
    // In logits: one prediction has no interval that could make a share of it.
    const compensated = later * found.direct < 0 ? `: later components compensate for ${number(Math.abs(later))}` : ": later components depend on it";
    const repaired = Math.abs(later) < 0.02 * most ? "" : compensated;
    host.replaceChildren(
      put(
        "p",
        { className: "chips" },
        put("span", { className: "chip" }, "direct effect ", put("b", {}, signed(found.direct)), ` logits to ${difference}`),
        put("span", { className: "chip" }, "total effect ", put("b", {}, number(found.total)), ` logits${repaired}`),
      ),
      put(
        "div",
        { className: "columns" },
        ...[lines.slice(0, Math.ceil(lines.length / 2)), lines.slice(Math.ceil(lines.length / 2))].map((some) =>
          put("div", {}, ...some.map((line) => effectLine(x, line, most))),
        ),
      ),
    );
  },
};

// The two tokens that are compared: the target and its contrast, or else the likeliest other token.
function compared(x) {
  const others = x.text.answers(x.position).filter((answer) => answer.id !== x.answer.id);
  const likeliest = others.reduce((best, one) => (best && best.probability >= one.probability ? best : one), null);
  return [x.answer, others.find((answer) => answer.id === x.chosen.minus) ?? likeliest];
}

// A line with a bar; a component's is a button.
function effectLine(x, [name, value, component], most) {
  if (component !== undefined) return entry(x, component, value, value / most);
  const strong = name.endsWith(" effect");
  const wide = `--wide: ${(100 * Math.abs(value)) / most}%; background: var(--div-${value < 0 ? 1 : 3})`;
  return put(
    "div",
    { className: "entry", "data-effect": name, "data-value": value },
    put("span", { className: strong ? "word right" : "word" }, name),
    put("span", { className: "bar both" }, put("i", { style: wide, className: value < 0 ? "less" : "more" })),
    put("span", { className: "number" }, signed(value)),
  );
}

// Say for which components a page has effects, and offer to go there.
function elsewhere(host, x) {
  const here = x.text.effectsAt;
  if (!here) return nothing(host, "Not on this page: open the explorer in a notebook, where the model is run without it.");
  const [target, minus] = here.answers;
  const word = (id) => quoted(x.text.answers(here.position).find((answer) => answer.id === id)?.word);
  const there = here.position === x.position && x.answer.id === target && compared(x)[1]?.id === minus;
  const where = `after ${quoted(x.text.tokens[here.position])}, for ${word(target)} − ${word(minus)}`;
  const has = `This page has it for ${here.rows.length} components ${where}`;
  if (there) return nothing(host, `${has}; ${x.name} is not among them.`);
  const go = put("button", { type: "button", "data-do": "effects", onclick: () => x.choose({ position: here.position, target, minus }) }, "go there");
  host.replaceChildren(put("p", { className: "none" }, `${has}. `, go));
}

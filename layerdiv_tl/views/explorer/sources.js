// The selected head's contribution by source token: exact parts, attention × value.

VIEWS.sources = {
  heads: true,
  title: (x) => `${x.text.components[x.component].head ? x.name : "A head"} by source token (attention × value)`,
  caption:
    "A head's output is the sum of attention × value over the tokens up to this one; these terms of its contribution sum " +
    "to it. They tell which token's value was moved, not why the head attends there, nor what the value was made of. " +
    "The last column is the attention weight. Click a token to go there.",
  draw(host, x) {
    const { text, position } = x;
    if (!text.components[x.component].head) return nothing(host, `${x.name} is not a head: select one in the views above.`);
    const found = text.sourcesOf(x.component, position, x.answer.slot, x.minus?.slot);
    if (found?.why) return nothing(host, found.why);
    if (!found && x.ask({ ask: "sources", component: x.name })) return nothing(host, `Splitting ${x.name} by token …`);
    if (!found) {
      const has = "which has it for the heads with the largest contributions after each token";
      return nothing(host, text.traced.size ? `Not on this page, ${has}: ${x.name} is not among them.` : "Not on this page: open the explorer in a notebook.");
    }
    const { sources, rest, bias, gap } = found;
    const lines = [...sources];
    const others = position + 1 - sources.length;
    if (others > 0) lines.push([`${others} other${others > 1 ? "s" : ""}`, rest]);
    if (bias) lines.push(["value bias", bias]);
    const most = Math.max(...lines.map(([, value]) => Math.abs(value)), 1e-30);
    const sum = lines.reduce((all, [, value]) => all + value, 0);
    const head = text.heads.indexOf(x.component);
    const line = ([key, value]) => sourceLine(x, key, value, value / most, head);
    const half = Math.ceil(lines.length / 2);
    host.replaceChildren(
      put(
        "p",
        { className: "chips" },
        put("span", { className: "chip" }, "together ", put("b", { "data-sum": sum }, signed(sum)), ` logits to ${x.towards}`),
        put("span", { className: "chip" }, `gap to the head's own: ${number(gap)} of Σ|parts|`),
      ),
      put("div", { className: "columns" }, ...[lines.slice(0, half), lines.slice(half)].map((some) => put("div", {}, ...some.map(line)))),
    );
  },
  pick(target) {
    const line = target.closest("[data-source]");
    return line && { position: +line.dataset.source };
  },
};

// A source token is a button; other terms are plain lines.
function sourceLine(x, key, value, share, head) {
  const { text, position } = x;
  const token = typeof key === "number";
  const wide = `--wide: ${100 * Math.abs(share)}%; background: var(--div-${value < 0 ? 1 : 3})`;
  const cells = [
    token ? put("span", { className: "word" }, quoted(text.tokens[key]), put("small", {}, ` ${key}`)) : put("span", { className: "word" }, key),
    put("span", { className: "bar both" }, put("i", { style: wide, className: value < 0 ? "less" : "more" })),
    put("span", { className: "number" }, signed(value)),
    put("span", { className: "number from" }, token && text.attention ? percent(text.weight(head, position, key)) : ""),
  ];
  const known = { className: "entry of-token", "data-value": value };
  if (!token) return put("div", { ...known, "data-part": key }, ...cells);
  const title = `${quoted(text.tokens[key])} at ${key}`;
  return put("button", { type: "button", ...known, title, "data-source": key }, ...cells);
}

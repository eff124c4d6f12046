// Which earlier tokens' values the chosen head wrote from: exact parts of what it adds to the target.

VIEWS.sources = {
  heads: true,
  title: (x) => (x.text.components[x.component].head ? `Whose values ${x.name} wrote from` : "Whose values a head wrote from"),
  caption:
    "A head writes the sum of attention × value over tokens up to this one, and each term goes the head's way to the logits: they " +
    "sum to what it adds to the target. It says whose value was written, not why the head looks there, nor what the value " +
    "itself was made of. At the end of a line the attention. Click a token to go there.",
  draw(host, x) {
    const { text, position } = x;
    if (!text.components[x.component].head) return nothing(host, `${x.name} is not a head: choose one in the views above.`);
    const found = text.sourcesOf(x.component, position, x.answer.slot, x.minus?.slot);
    if (found?.why) return nothing(host, found.why);
    if (!found && x.ask({ ask: "sources", component: x.name })) return nothing(host, `Splitting ${x.name} by token …`);
    if (!found) {
      const has = "which has it for the heads that add most after each token";
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

// A source token is a button; what is none of one token is a line.
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

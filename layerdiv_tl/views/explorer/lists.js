// Lists of components, tokens and effects after the selected token, and the predictions of the logit lens.

const RANKED = 6;

VIEWS.ranked = {
  title: (x) => `Largest after ${said(x.text.tokens[x.position])}: ${x.says(x)}`,
  help: "Sublayers, and heads, which are parts of them; each list has its own scale. Click one to select it.",
  draw(host, x) {
    const lines = (peers) => {
      const order = peers.map((i) => [i, x.value(i)]).sort((a, b) => b[1] - a[1]);
      const [above, below] = [order.filter(([, v]) => v > 0), order.filter(([, v]) => v < 0)];
      // As many lines whatever the signs are, so that nothing moves.
      const less = below.slice(-Math.max(RANKED, 2 * RANKED - above.length));
      const more = above.slice(0, 2 * RANKED - less.length);
      const most = largest(order);
      const shown = [...more, ...less].map(([i, v]) => componentEntry(x, i, v, v / most));
      const rest = order.length - shown.length;
      if (rest > 0) shown.splice(more.length, 0, put("p", { className: "rest" }, `… ${rest} in between`));
      return shown;
    };
    const heads = x.text.heads.length ? [["heads", lines(x.text.heads)]] : [];
    host.replaceChildren(columns(["sublayers", lines(x.text.sublayers)], ...heads));
  },
};

const absent = (host, x, what) =>
  nothing(host, `Not on this page: it has ${what} that add most at each token, and all where it opened. In a notebook all are computed.`);

// The tokens that the selected component promotes and suppresses.
VIEWS.promotes = {
  title: (x) => `Tokens that ${x.name} promotes`,
  help: "The tokens whose logits it raises and lowers most here, minus its mean over the vocabulary; a space is ␣.",
  draw(host, x) {
    const found = x.find("promoted", "Looking it up …");
    if (found.absent) return absent(host, x, "the components");
    if (!found.promotes) return nothing(host, found.why);
    const most = largest([...found.promotes, ...found.suppresses]);
    const line = ([word, logit]) =>
      entry(quoted(word), logit, logit / most, { "data-word": word, strong: word === x.answer.word, title: said(word) });
    host.replaceChildren(columns(...["promotes", "suppresses"].map((name) => [name, found[name].map(line)])));
  },
};

// The selected head's contribution by source token: exact parts, attention × value.
VIEWS.sources = {
  heads: true,
  title: (x) => `${x.isHead ? x.name : "A head"} by source token (attention × value)`,
  help:
    "These terms sum to the head's contribution to the logit. They show which token's value was moved, not why the head attends there. " +
    "The last column is the attention weight. Click a token to go there.",
  draw(host, x) {
    const { text, position } = x;
    if (!x.isHead) return nothing(host, "Select a head to see its contribution by source token.");
    const found = x.find("sources", `Splitting ${x.name} by token …`);
    if (found.absent) return absent(host, x, "the heads");
    if (!found.source) return nothing(host, found.why);
    const values = found.logit.map((to) => to[x.answer.slot] - (x.minus ? to[x.minus.slot] : 0));
    const terms = Array.from(found.source, (key, part) => [key, values[part]]).filter(([key]) => key >= 0);
    terms.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
    const others = position + 1 - terms.length;
    const most = largest([...terms, ["", values.at(-1)]]);
    const head = text.heads.indexOf(x.component);
    const lines = terms.map(([key, value]) => {
      const weight = text.attention ? percent(text.weight(head, position, key)) : "";
      const word = [quoted(text.tokens[key]), put("small", {}, ` ${key}`)];
      const known = { chosen: null, title: `${said(text.tokens[key])} at ${key}`, "data-source": key };
      return entry(word, value, value / most, known, put("span", { className: "number from" }, weight));
    });
    if (others > 0) lines.push(entry(`${others} more`, values.at(-1), values.at(-1) / most, { "data-part": "more" }, put("span")));
    const sum = values.reduce((all, value) => all + value, 0);
    const together = chip("together ", put("b", { "data-sum": sum }, signed(sum)), ` logits to ${x.towards}`);
    host.replaceChildren(put("p", { className: "chips" }, together), ...lines);
  },
  pick(target) {
    const line = target.closest("[data-source]");
    return line && { position: +line.dataset.source };
  },
};

const LATER = 8;

// Direct and total effect of the selected component, by ablation, and compensation by later components.
VIEWS.effects = {
  title: (x) => `Direct and total effect of ${x.name}`,
  help:
    "Direct: the component's contribution to the difference of the two logits. Total: that difference minus the one with the component " +
    "zero-ablated at every token. Between them are changes of later components' contributions; those of the opposite sign compensate.",
  draw(host, x) {
    const { text, position } = x;
    if (!/(^|\.)(H\d+|attn|mlp)$/.test(x.name)) return nothing(host, `${x.name} is not ablated: select a head, an attention or an MLP.`);
    // The target and its contrast, or else the likeliest other token.
    const [a, others] = [x.answer, text.answers(position).filter((answer) => answer.id !== x.answer.id)];
    const b = x.contrast ?? others.sort((one, other) => other.probability - one.probability)[0];
    if (!b) return nothing(host, "There is no second token to compare with here.");
    const found = x.find("effects", `Running the model without ${x.name} …`, a.id, b.id);
    if (found.absent) return this.elsewhere(host, x);
    if (!found.later) return nothing(host, found.why);
    const order = [...found.later].sort((one, other) => Math.abs(other[1]) - Math.abs(one[1]));
    const listed = found.later.filter((term) => order.indexOf(term) < LATER);
    const sum = (terms) => terms.reduce((all, [, value]) => all + value, 0);
    const terms = [["direct effect", found.direct], ...listed];
    if (order.length > LATER) terms.push([`${order.length - LATER} others`, sum(order.slice(LATER))]);
    terms.push(["final norm", found.norm], ["total effect", found.total]);
    const most = largest(terms);
    const line = ([name, value]) =>
      text.index.has(name)
        ? componentEntry(x, text.index.get(name), value, value / most)
        : entry(name, value, value / most, { "data-effect": name, strong: name.endsWith(" effect") });
    const between = chip("later components ", put("b", {}, signed(sum(found.later))), `, the final norm `, put("b", {}, signed(found.norm)));
    const what = chip("direct ", put("b", {}, signed(found.direct)), ", total ", put("b", {}, signed(found.total)), ` logits to ${said(a.word)} − ${said(b.word)}`);
    const lines = terms.map(line);
    const half = Math.ceil(lines.length / 2);
    host.replaceChildren(put("p", { className: "chips" }, what, between), columns([null, lines.slice(0, half)], [null, lines.slice(half)]));
  },
  // Say for which components a page has effects, and offer to go there.
  elsewhere(host, x) {
    const { position, answers: [target, minus], rows } = x.text.has.effects ?? { answers: [] };
    if (!rows) return nothing(host, "Not on this page.");
    const go = button({ "data-do": "effects", onclick: () => x.choose({ position, target, minus, component: rows[0].label }) }, "go there");
    const has = `This page has it for ${rows.map(({ label }) => label).join(", ")} after ${said(x.text.tokens[position])}. `;
    host.replaceChildren(put("p", { className: "none" }, has, go));
  },
};

// The prediction after every layer: the logit lens.
VIEWS.answers = {
  title: () => "Prediction after every layer (logit lens)",
  help:
    "The likeliest next token when the final norm and the unembedding read the stream after a layer, the last layer on top; a stronger " +
    "color is more probable, bold is the model's own prediction. A long text has every few layers. Click a token, or press ← →.",
  draw(host, x) {
    const { text, position } = x;
    const count = Math.min(text.length, Math.max(2, Math.floor((widthOf(host) - 46) / 84)));
    const first = clamp(position - Math.floor(count / 2), 0, text.length - count);
    const shown = text.tokens.map((token, p) => ({ token, p, on: p === position ? "on" : "" })).slice(first, first + count);
    const rows = text.lens.map((name, row) => {
      const cells = shown.map(({ token, p, on }) => {
        const [word, probability] = [text.values.lens_word[row][p], text.values.lens_probability[row][p]];
        const final = word === text.values.lens_word.at(-1)[p] ? "final" : "";
        const known = { "data-position": p, "data-row": name, "data-value": probability, className: `${final} ${on}` };
        const title = `after ${said(token)}, ${name}: ${said(text.words[word])} ${percent(probability)}`;
        return put("td", { ...known, title, style: `background: ${shade("seq", UNDER * probability)}` }, quoted(text.words[word]));
      });
      return put("tr", {}, put("th", { scope: "row" }, name.split(".")[0]), ...cells);
    });
    const head = shown.map(({ token, p, on }) => put("th", { scope: "col", "data-position": p, className: on }, quoted(token)));
    const top = put("thead", {}, put("tr", {}, put("td", {}, "after"), ...head));
    host.replaceChildren(put("table", { className: "lens" }, top, put("tbody", {}, ...rows.reverse())));
  },
  keys: (key, x) => x.move(key),
  pick: (target) => VIEWS.tokens.pick(target),
};

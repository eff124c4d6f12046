// Lists of components, tokens and effects after the selected token, and the predictions of the logit lens.

const RANKED = 6;

VIEWS.ranked = {
  title: (x) => `Largest after ${said(x.text.tokens[x.position])}: ${MEASURES[x.chosen.measure].says(x)}`,
  caption:
    "First whole sublayers, then heads, which are parts of them. Each list has its own " +
    "scale. Gold is above the zero baseline (the number of a component that writes nothing), purple below it. Click one to " +
    "select it.",
  draw(host, x) {
    const { text, measured, chosen } = x;
    const lines = (peers) => {
      const order = peers.map((i) => [i, measured.beyond(chosen.measure, i)]).sort((a, b) => b[1] - a[1]);
      const [above, below] = [order.filter(([, v]) => v > 0), order.filter(([, v]) => v < 0)];
      // As many lines whatever the signs are, so that nothing moves when the measure changes.
      const less = below.slice(-Math.max(RANKED, 2 * RANKED - above.length));
      const more = above.slice(0, 2 * RANKED - less.length);
      const most = largest(order);
      const shown = [...more, ...less].map(([i, v]) => componentEntry(x, i, measured.value(chosen.measure, i), v / most));
      const rest = order.length - shown.length;
      if (rest > 0) shown.splice(more.length, 0, put("p", { className: "rest" }, `… ${rest} in between`));
      return shown;
    };
    const heads = text.heads.length ? [["heads", lines(text.heads)]] : [];
    host.replaceChildren(columns(["sublayers", lines(text.sublayers)], ...heads));
  },
};

const ELSEWHERE = "Not on this page: open the explorer in a notebook";
const elsewhereFor = (what) => `Not on this page, which has it for the ${what} with the largest contributions after each token`;

// The tokens that the selected component promotes and suppresses.
VIEWS.promotes = {
  title: (x) => `Tokens that ${x.name} promotes`,
  caption:
    "The tokens whose logit it raises and lowers most at this position, relative to its mean over the vocabulary; a " +
    "space is ␣. The target is in bold.",
  draw(host, x) {
    const { text, position } = x;
    const found = text.promoted.get(`${[position, x.component]}`);
    if (!found && x.ask({ ask: "promoted" })) return nothing(host, "Looking it up …");
    if (!found && text.looked.has(position)) return nothing(host, `${elsewhereFor("components")}: ${x.name} is not among them.`);
    if (!found) return nothing(host, `${ELSEWHERE}, where it is looked up.`);
    const most = largest([...found.promotes, ...found.suppresses]);
    const line = ([word, logit]) =>
      entry(quoted(word), logit, logit / most, { "data-word": word, strong: word === x.answer.word, title: said(word) });
    host.replaceChildren(columns(...Object.entries(found).map(([name, pairs]) => [name, pairs.map(line)])));
  },
};

// The selected head's contribution by source token: exact parts, attention × value.
VIEWS.sources = {
  heads: true,
  title: (x) => `${x.isHead ? x.name : "A head"} by source token (attention × value)`,
  caption:
    "A head's output is the sum of attention × value over the tokens up to this one; these terms of its contribution sum " +
    "to it. They tell which token's value was moved, not why the head attends there, nor what the value was made of. " +
    "The last column is the attention weight. Click a token to go there.",
  draw(host, x) {
    const { text, position } = x;
    if (!x.isHead) return nothing(host, "Select a head in the views above to see its contribution by source token.", "none small");
    const found = text.sourcesOf(x.component, position, x.answer.slot, x.minus?.slot);
    if (found?.why) return nothing(host, found.why);
    if (!found && x.ask({ ask: "sources", component: x.name })) return nothing(host, `Splitting ${x.name} by token …`);
    if (!found) return nothing(host, text.traced.size ? `${elsewhereFor("heads")}: ${x.name} is not among them.` : `${ELSEWHERE}.`);
    const terms = [...found.sources];
    const others = position + 1 - terms.length;
    if (others > 0) terms.push([`${others} other${others > 1 ? "s" : ""}`, found.rest]);
    const [most, head] = [largest(terms), text.heads.indexOf(x.component)];
    const lines = terms.map(([key, value]) => {
      if (typeof key === "string") return entry(key, value, value / most, { "data-part": key }, put("span", { className: "number from" }));
      const weight = text.attention ? percent(text.weight(head, position, key)) : "";
      const word = [quoted(text.tokens[key]), put("small", {}, ` ${key}`)];
      const known = { chosen: null, title: `${said(text.tokens[key])} at ${key}`, "data-source": key };
      return entry(word, value, value / most, known, put("span", { className: "number from" }, weight));
    });
    const sum = terms.reduce((all, [, value]) => all + value, 0);
    const together = chip("together ", put("b", { "data-sum": sum }, signed(sum)), ` logits to ${x.towards}`);
    const gap = chip(`gap to the head's own: ${number(found.gap)} of Σ|parts|`);
    host.replaceChildren(put("p", { className: "chips" }, together, gap), halves(lines));
  },
  pick(target) {
    const line = target.closest("[data-source]");
    return line && { position: +line.dataset.source };
  },
};

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
    // The target and its contrast, or else the likeliest other token.
    const [a, others] = [x.answer, text.answers(position).filter((answer) => answer.id !== x.answer.id)];
    const b = x.contrast ?? others.sort((one, other) => other.probability - one.probability)[0];
    if (!b) return nothing(host, "There is no second token to compare with here.");
    const found = text.effects.get(`${[position, a.id, b.id, x.name]}`);
    if (found?.why) return nothing(host, found.why);
    if (!found && x.ask({ ask: "effects", component: x.name, answers: [a.id, b.id] })) return nothing(host, `Running the model without ${x.name} …`);
    if (!found) return this.elsewhere(host, x, a, b);
    const terms = [["direct effect", found.direct], ...found.others];
    if (found.more) terms.push([`${found.more} others`, found.rest]);
    terms.push(["final norm", found.norm], ["total effect", found.total]);
    const most = largest(terms);
    const line = ([name, value]) =>
      text.index.has(name)
        ? componentEntry(x, text.index.get(name), value, value / most)
        : entry(name, value, value / most, { "data-effect": name, strong: name.endsWith(" effect") });
    const later = found.total - found.direct - found.norm;
    const react = later * found.direct < 0 ? "compensate" : "depend on it";
    const direct = chip("direct effect ", put("b", {}, signed(found.direct)), ` logits to ${said(a.word)} − ${said(b.word)}`);
    const changes = ` logits: later components ${react} (${signed(later)}), the final norm changes (${signed(found.norm)})`;
    const total = chip("total effect ", put("b", {}, signed(found.total)), Math.abs(later) < 0.02 * most ? " logits" : changes);
    host.replaceChildren(put("p", { className: "chips" }, direct, total), halves(terms.map(line)));
  },
  // Say for which components a page has effects, and offer to go there.
  elsewhere(host, x, a, b) {
    const here = x.text.effectsAt;
    if (!here) return nothing(host, `${ELSEWHERE}, where the model is run without it.`);
    const { position, answers: [target, minus] } = here;
    const word = (id) => said(x.text.answers(position).find((answer) => answer.id === id)?.word);
    const where = `after ${said(x.text.tokens[position])}, for ${word(target)} − ${word(minus)}`;
    const has = `This page has it for ${here.rows.length} components ${where}`;
    if (`${[position, target, minus]}` === `${[x.position, a.id, b.id]}`) return nothing(host, `${has}; ${x.name} is not among them.`);
    const go = button({ "data-do": "effects", onclick: () => x.choose({ position, target, minus }) }, "go there");
    host.replaceChildren(put("p", { className: "none" }, `${has}. `, go));
  },
};

// The prediction after every layer: the logit lens.
VIEWS.answers = {
  title: () => "Prediction after every layer (logit lens)",
  caption: ({ text }) =>
    "The likeliest next token when the final norm and the unembedding read the stream after a layer, the last layer on " +
    "top; a stronger color is more probable, bold is the model's own prediction" +
    `${text.lens.length < new Set(text.components.map((c) => c.row)).size ? "; a long text has some of the layers" : ""}. ` +
    "Click a token, or press ← →, to go there.",
  draw(host, x) {
    const { text, position } = x;
    const count = clamp(Math.floor((widthOf(host) - 46) / 84), 2, text.length);
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

// The numbers and words that views draw, computed from the selection.

// Of each measure: its name on a button and the hint there, its unit, and its name in titles.
const MEASURES = {
  logit: {
    ...{ name: "logit", unit: "logits", says: (x) => `logit of ${x.towards}` },
    hint: "contribution to the logit of the target, minus the component's mean over the vocabulary",
  },
  cross_entropy: {
    ...{ name: "cross-entropy", unit: "nats", says: (x) => `cross-entropy of ${said(x.answer.word)}` },
    hint: "contribution to the cross-entropy of the target: below 0 it lowers the loss",
  },
};

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// The place in a list that an arrow key, Home or End moves to; undefined for another key.
function moved(key, at, count) {
  const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, Home: 0, End: count - 1 }[key];
  return to === undefined ? undefined : clamp(to, 0, count - 1);
}

function look(state, model, choose) {
  const { chosen, text } = state;
  const position = Math.min(chosen.position, text.length - 1);
  const component = text.index.get(chosen.component) ?? 0;
  const { row, head: isHead } = text.components[component];
  const rowNumber = Math.max(0, text.rows.indexOf(row));
  // The target at a position, and the token that it is contrasted with there.
  const aimsAt = (p) => {
    const answer = text.answer(chosen.target, p);
    const other = chosen.minus === null ? null : text.answer(chosen.minus, p);
    return { answer, contrast: other && other.id === chosen.minus && other.id !== answer.id ? other : null };
  };
  const { answer, contrast } = aimsAt(position);
  const minus = chosen.measure === "logit" ? contrast : null;
  const logit = (i, { slot }, p = position) => text.values.logit[slot][i][p];
  const valueAt = (i, p, aims) => {
    if (chosen.measure === "cross_entropy") return text.values.expectation[i][p] - logit(i, aims.answer, p);
    return logit(i, aims.answer, p) - (aims.contrast ? logit(i, aims.contrast, p) : 0);
  };
  return {
    ...{ text, chosen, position, component, row, rowNumber, isHead, answer, contrast, minus, choose },
    towards: minus ? `${said(answer.word)} − ${said(minus.word)}` : said(answer.word),
    ...MEASURES[chosen.measure],
    name: text.labels[component],
    // The measure of component i, and its two sides where two tokens are compared.
    value: (i) => valueAt(i, position, { answer, contrast }),
    sides(i) {
      const side = (token) => `${signed(logit(i, token))} to ${said(token.word)}`;
      return minus ? `: ${side(answer)}, ${side(minus)}` : "";
    },
    colorValue: (p) => (chosen.color === "loss" ? text.values.loss[p] : valueAt(component, p, aimsAt(p))),
    move(key) {
      const to = key === "ArrowUp" || key === "ArrowDown" ? undefined : moved(key, position, text.length);
      return to === undefined ? null : { position: to };
    },
    moveHead(key) {
      const [dr, dk] = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key] ?? [];
      if (dr === undefined || !text.heads.length) return null;
      const heads = text.inRow[clamp(rowNumber + dr, 0, text.rows.length - 1)];
      const current = text.inRow[rowNumber].indexOf(component);
      return { component: text.labels[heads[current < 0 ? 0 : clamp(current + dk, 0, heads.length - 1)]] };
    },
    // What was looked up for the selected component here; else a sentence: a kernel is asked, or the page lacks it.
    find(ask, wait, ...answers) {
      const found = text.found.get(`${[ask, position, component, ...answers]}`);
      const why = found?.why ?? (ask === "sources" && text.has.sources?.why); // one reason for all heads
      if (found || why) return why ? { why } : found;
      if (!model.get("live")) return { why: "", absent: true };
      const key = `${[ask, position, component, ...answers]}`;
      if (text.asked.has(key)) return { why: wait };
      // Not for every token that an arrow key runs over.
      clearTimeout(state.waits[ask]);
      state.waits[ask] = setTimeout(() => {
        text.asked.add(key);
        model.send({ ask, version: text.blobs.version, position, component: chosen.component, ...(answers.length ? { answers } : {}) });
      }, 200);
      return { why: wait };
    },
  };
}

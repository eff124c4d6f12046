// The numbers and words that views draw, computed from the selection.

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
  const answersAt = (p) => {
    const answer = text.answer(chosen.target, p);
    const other = chosen.minus === null ? null : text.answer(chosen.minus, p);
    return [answer, other && other.id === chosen.minus && other.id !== answer.id ? other : null];
  };
  const [answer, contrast] = answersAt(position);
  const isContrasted = chosen.measure === "logit";
  const measuredAt = (p) => new Measured(text, p, chosen.part, ...answersAt(p).slice(0, isContrasted ? 2 : 1));
  const minus = isContrasted ? contrast : null;
  return {
    ...{ text, chosen, position, component, row, rowNumber, isHead, answer, minus, contrast, choose },
    measured: measuredAt(position),
    towards: minus ? `${said(answer.word)} − ${said(minus.word)}` : said(answer.word),
    name: text.labels[component],
    live: model.get("live"),
    colorValue: (p) => (chosen.color === "loss" ? text.values.loss[p] : measuredAt(p).beyond(chosen.measure, component)),
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
    // Ask a kernel for promoted tokens here, the effects of ablating a component, or a head's source tokens; whether
    // there is one.
    ask(wanted = { ask: "promoted" }) {
      const key = `${position}:${JSON.stringify(wanted)}`;
      if (!model.get("live") || text.asked.has(key)) return model.get("live");
      // Not for every token that an arrow key runs over.
      clearTimeout(state.waits[wanted.ask]);
      state.waits[wanted.ask] = setTimeout(() => {
        text.asked.add(key);
        model.send({ ...wanted, version: text.blobs.version, position });
      }, 200);
      return true;
    },
  };
}

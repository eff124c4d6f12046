// The numbers and words that views draw, computed from the selection.

function look(state, model, choose) {
  const { chosen } = state;
  const text = state.texts[chosen.text];
  const position = Math.min(chosen.position, text.length - 1);
  const component = text.index.get(chosen.component) ?? 0;
  const row = text.components[component].row;
  const rowNumber = Math.max(0, text.rows.indexOf(row));
  // The target at a position, and the token that it is contrasted with there.
  const answersAt = (p) => {
    const answer = text.answer(chosen.target, p);
    const other = chosen.minus === null ? null : text.answer(chosen.minus, p);
    return [answer, other && other.id === chosen.minus && other.id !== answer.id ? other : null];
  };
  const [answer, contrast] = answersAt(position);
  const contrasted = chosen.measure === "logit";
  const measuredAt = (p) => new Measured(text, p, chosen.part, ...(contrasted ? answersAt(p) : [text.answer(chosen.target, p)]));
  const minus = contrasted ? contrast : null;
  const clamp = (value, count) => Math.min(Math.max(value, 0), count - 1);
  return {
    ...{ text, chosen, position, component, row, rowNumber, answer, minus, contrast, choose, clamp },
    attention: text.sublayers.find((i) => text.components[i].row === row && text.components[i].module === "attention"),
    measured: measuredAt(position),
    towards: minus ? `${said(answer.word)} − ${said(minus.word)}` : said(answer.word),
    name: text.labels[component],
    layers: new Set(text.components.map((c) => c.row)).size, // with "", where the embedding stands
    live: model.get("live"),
    colorValue: (p) => (chosen.color === "loss" ? text.values.loss[p] : measuredAt(p).beyond(chosen.measure, component)),
    move(key) {
      const to = { ArrowLeft: position - 1, ArrowRight: position + 1, Home: 0, End: text.length - 1 }[key];
      return to === undefined ? null : { position: clamp(to, text.length) };
    },
    moveHead(key) {
      const [dr, dk] = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key] ?? [];
      if (dr === undefined || !text.heads.length) return null;
      const heads = text.inRow[clamp(rowNumber + dr, text.rows.length)];
      const current = text.inRow[rowNumber].indexOf(component);
      return { component: text.labels[heads[current < 0 ? 0 : clamp(current + dk, heads.length)]] };
    },
    // Ask a kernel for promoted tokens here, the effects of ablating a component, or a head's source tokens; whether
    // there is one.
    ask(wanted = { ask: "promoted" }) {
      if (!model.get("live")) return false;
      const key = `${chosen.text}:${position}:${JSON.stringify(wanted)}`;
      if (state.asked.has(key)) return true;
      // Not for every token that an arrow key runs over.
      clearTimeout(state.waits[wanted.ask]);
      state.waits[wanted.ask] = setTimeout(() => {
        state.asked.add(key);
        model.send({ ...wanted, text: chosen.text, position });
      }, 200);
      return true;
    },
  };
}

// Components ranked by their number after the selected token.

const LISTED = 6;

VIEWS.ranked = {
  title: (x) => `Largest after ${quoted(x.text.tokens[x.position])}: ${MEASURES[x.chosen.measure].says(x)}`,
  caption:
    "Whole sublayers on the left; on the right the heads, which are parts of them. Gold is above the zero baseline, " +
    "purple below it. Click one to select it.",
  draw(host, x) {
    const { text, measured, chosen } = x;
    const column = (name, peers) => {
      const order = peers.map((i) => [i, measured.beyond(chosen.measure, i)]).sort((a, b) => b[1] - a[1]);
      const [above, below] = [order.filter(([, v]) => v > 0), order.filter(([, v]) => v < 0)];
      // As many lines whatever the signs are, so that nothing moves when the measure changes.
      const less = below.slice(-Math.max(LISTED, 2 * LISTED - above.length));
      const more = above.slice(0, 2 * LISTED - less.length);
      const most = Math.max(...order.map(([, v]) => Math.abs(v)), 1e-30);
      const lines = [...more, ...less].map(([i, v]) => entry(x, i, measured.value(chosen.measure, i), v / most));
      const rest = order.length - lines.length;
      if (rest > 0) lines.splice(more.length, 0, put("p", { className: "rest" }, `… ${rest} in between`));
      return put("div", {}, put("h3", {}, name), ...lines);
    };
    const columns = [column("sublayers", text.sublayers)];
    if (text.heads.length) columns.push(column("heads", text.heads));
    host.replaceChildren(put("div", { className: "columns" }, ...columns));
  },
};

// Components in the order of what they add after the chosen token.

const LISTED = 6;

VIEWS.ranked = {
  title: (x) => `Most after ${quoted(x.text.tokens[x.position])}: ${MEASURES[x.chosen.measure].says(x)}`,
  caption:
    "Whole sublayers on the left; on the right the heads, which are parts of them. Gold is more than a component " +
    "that writes nothing, purple is less. Click one to choose it.",
  draw(host, x) {
    const { text, measured, chosen } = x;
    const column = (name, peers) => {
      const order = peers.map((i) => [i, measured.beyond(chosen.measure, i)]).sort((a, b) => b[1] - a[1]);
      const more = order.filter(([, v]) => v > 0).slice(0, LISTED);
      const less = order.filter(([, v]) => v < 0).slice(-LISTED);
      const most = Math.max(...order.map(([, v]) => Math.abs(v)), 1e-30);
      const lines = [...more, ...less].map(([i, v]) => entry(x, i, measured.value(chosen.measure, i), v / most));
      const rest = order.length - lines.length;
      if (rest > 0) lines.splice(more.length, 0, put("p", { className: "rest" }, `… ${rest} between them`));
      return put("div", {}, put("h3", {}, name), ...lines);
    };
    const columns = [column("sublayers", text.sublayers)];
    if (text.heads.length) columns.push(column("heads", text.heads));
    host.replaceChildren(put("div", { className: "columns" }, ...columns));
  },
};

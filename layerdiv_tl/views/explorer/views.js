// The views of components' measures. Each draws the numbers of `x`, see look.js, into its host.

const VIEWS = {};
const labeled = (x, i, value) => ({ "data-component": x.text.labels[i], "data-value": value });
const aboutMeasure = (x) => `${MEASURES[x.chosen.measure].says(x)}, in ${MEASURES[x.chosen.measure].unit}`;

// A stem with a dot for every sublayer, from the zero baseline.
VIEWS.depth = {
  title: (x) => `Components by depth: ${aboutMeasure(x)}`,
  caption: (x) =>
    `${MEASURES[x.chosen.measure].means(x, said(x.answer.word), `over ${x.text.vocabulary} tokens`)} ` +
    "Click a component, or press ← → here.",
  draw(host, x) {
    const { text, chosen, measured } = x;
    const { svg, width } = drawing(host, 250, `${aboutMeasure(x)}, of every component`);
    const [left, right, top, bottom] = [52, width - 8, 10, 206];
    const { says, unit } = MEASURES[chosen.measure];
    const values = text.sublayers.map((i) => measured.value(chosen.measure, i));
    const zero = measured.zero(chosen.measure, 0);
    const scale = axisOf([...values, zero], bottom, top);
    const step = (right - left) / text.sublayers.length;
    const rows = [...new Set(text.sublayers.map((i) => text.components[i].row).filter(Boolean))];
    const every = Math.ceil(rows.length / Math.max(4, Math.floor(width / 70)));
    rows.forEach((row, n) => {
      const places = text.sublayers.flatMap((i, k) => (text.components[i].row === row ? [k] : []));
      const [from, wide] = [left + places[0] * step, places.length * step];
      if (row === x.row) svg.append(rect(from, top - 6, wide, bottom - top + 10, "band"));
      if (n % every === 0) svg.append(label(row, from + wide / 2, bottom + 20, "middle"));
    });
    gridlines(svg, scale, left, right);
    const base = scale.place(zero);
    text.sublayers.forEach((i, k) => {
      const [at, y] = [left + (k + 0.5) * step, Number.isFinite(values[k]) ? scale.place(values[k]) : base];
      const kind = { class: i === x.component ? "stem chosen" : "stem", style: `--own: var(--${text.components[i].module})` };
      const stem = mark(
        "g",
        { ...kind, ...labeled(x, i, values[k]) },
        hover(`${text.labels[i]}\n${says(x)} ${number(values[k])} ${unit}${sides(x, i)}`),
        rect(at - step / 2, 0, step, bottom + 4, "hit"),
        mark("line", { x1: at, x2: at, y1: base, y2: y, "stroke-width": clamp(step - 2, 2, 9) }),
      );
      if (i === x.component) stem.append(mark("circle", { cx: at, cy: y, r: Math.min(6, step / 2 + 2.5) }));
      svg.append(stem);
    });
    const line = { x1: left, x2: right, y1: base, y2: base, class: "even", "data-zero": zero };
    svg.append(mark("line", line, hover(`zero baseline: ${number(zero)}`)));
    let at = left;
    for (const module of new Set(text.sublayers.map((i) => text.components[i].module))) {
      svg.append(rect(at, bottom + 33, 10, 10, null, { rx: 2, style: `fill: var(--${module})` }));
      svg.append(label(module === "mlp" ? "MLP" : module, at + 15, bottom + 42));
      at += 32 + 7 * module.length;
    }
  },
  keys(key, x) {
    const { text, row } = x;
    const attention = text.sublayers.find((i) => text.components[i].row === row && text.components[i].module === "attention");
    const to = moved(key, text.sublayers.indexOf(x.isHead ? attention : x.component), text.sublayers.length);
    return to === undefined ? null : { component: text.labels[text.sublayers[to]] };
  },
};

VIEWS.grid = {
  heads: true,
  title: (x) => `All heads: ${aboutMeasure(x)}`,
  caption:
    "One square per head, the first layer at the bottom: gold is above the zero baseline, purple below. Colors end at " +
    "the 98th percentile. Click a square; arrow keys move.",
  draw(host, x) {
    const { text, chosen, rowNumber, measured } = x;
    const most = Math.max(...text.inRow.map((row) => row.length));
    const left = 38;
    const high = clamp(Math.floor(430 / text.rows.length), 5, 20);
    const { svg, width } = drawing(host, high * text.rows.length + 66, `${aboutMeasure(x)}, of every head`);
    const wide = Math.min(40, (width - left - 4) / most);
    const top = quantile(text.heads.map((i) => Math.abs(measured.beyond(chosen.measure, i))), 0.98) || 1;
    const every = Math.ceil(14 / high);
    const yOf = (r) => 4 + (text.rows.length - 1 - r) * high;
    const size = { width: Math.max(1, wide - Number(wide > 7)), height: Math.max(1, high - Number(high > 7)) };
    text.inRow.forEach((heads, r) => {
      if (r % every === 0) svg.append(label(text.rows[r], left - 8, yOf(r) + high / 2 + 4, "end", r === rowNumber ? "tick on" : "tick"));
      heads.forEach((i, k) => {
        const value = measured.value(chosen.measure, i);
        const share = measured.beyond(chosen.measure, i) / top;
        const fill = Number.isFinite(share) ? shade("div", 0.5 + clamp(share, -1, 1) / 2) : "transparent";
        const told = hover(`${text.labels[i]}\n${number(value)} ${MEASURES[chosen.measure].unit}${sides(x, i)}`);
        const known = { class: "cell", style: `fill: ${fill}`, ...labeled(x, i, value) };
        svg.append(mark("rect", { x: left + k * wide, y: yOf(r), ...size, ...known }, told));
      });
    });
    const frame = (k, count, kind) => rect(left + k * wide - 1, yOf(rowNumber) - 1, count * wide + 1, high + 1, kind);
    svg.append(frame(0, text.inRow[rowNumber].length, "frame"));
    const at = text.inRow[rowNumber].indexOf(x.component);
    if (at >= 0) svg.append(frame(at, 1, "frame strong"));
    const below = 4 + text.rows.length * high;
    for (let k = 0; k < most; k += Math.ceil(26 / wide)) svg.append(label(`H${k}`, left + (k + 0.5) * wide, below + 14, "middle"));
    this.legend(svg, top, measured.zero(chosen.measure, 1), left, below + 30, Math.min(width - left - 4, most * wide));
  },
  // The color scale: below, at and above the zero baseline.
  legend(svg, high, zero, left, y, wide) {
    const steps = 24;
    for (let k = 0; k < steps; k++)
      svg.append(rect(left + (k * wide) / steps, y, wide / steps + 0.5, 8, null, { style: `fill: ${shade("div", k / (steps - 1))}` }));
    [["start", zero - high], ["middle", zero], ["end", zero + high]].forEach(([anchor, value], n) =>
      svg.append(label(number(value), left + (n * wide) / 2, y + 22, anchor)),
    );
  },
  keys: (key, x) => x.moveHead(key),
};

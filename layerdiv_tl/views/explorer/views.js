// The views of components' measures. Each draws the numbers of `x`, see look.js, into its host.

const VIEWS = {};
const labeled = (x, i, value) => ({ "data-component": x.text.labels[i], "data-value": value });
const aboutMeasure = (x) => `${x.says(x)}, in ${x.unit}`;
const hint = (x, i, value) => hover(`${x.text.labels[i]}\n${signed(value)} ${x.unit}${x.sides(i)}`);

// A bar for every sublayer.
VIEWS.depth = {
  title: (x) => `Components by depth: ${aboutMeasure(x)}`,
  help:
    "Contribution of each sublayer to the prediction after the selected token. Logits are minus the component's mean over the " +
    "vocabulary; components sum to the model's own. Click a bar, or press ← →.",
  draw(host, x) {
    const { text } = x;
    const { svg, width } = drawing(host, 332, `${aboutMeasure(x)}, of every component`);
    const [left, right, top, bottom] = [46, width - 4, 8, 284];
    const values = text.sublayers.map(x.value);
    const scale = axisOf(values, bottom, top);
    const step = (right - left) / text.sublayers.length;
    const rows = [...new Set(text.sublayers.map((i) => text.components[i].row).filter(Boolean))];
    const every = Math.ceil(rows.length / Math.max(4, Math.floor(width / 70)));
    rows.forEach((row, n) => {
      const places = text.sublayers.flatMap((i, k) => (text.components[i].row === row ? [k] : []));
      const [from, wide] = [left + places[0] * step, places.length * step];
      if (row === x.row) svg.append(rect(from, top - 6, wide, bottom - top + 10, "band"));
      if (n % every === 0) svg.append(label(row, from + wide / 2, bottom + 18, "middle"));
    });
    gridlines(svg, scale, left, right);
    const base = scale.place(0);
    text.sublayers.forEach((i, k) => {
      const [at, y] = [left + (k + 0.5) * step, Number.isFinite(values[k]) ? scale.place(values[k]) : base];
      const kind = { class: i === x.component ? "stem chosen" : "stem", style: `--own: var(--${text.components[i].module})` };
      const bar = { x1: at, x2: at, y1: base, y2: y, "stroke-width": clamp(step - 2, 2, 9) };
      const stem = mark("g", { ...kind, ...labeled(x, i, values[k]) }, hint(x, i, values[k]));
      stem.append(rect(at - step / 2, 0, step, bottom + 4, "hit"), mark("line", bar));
      if (i === x.component) stem.append(mark("circle", { cx: at, cy: y, r: Math.min(6, step / 2 + 2.5) }));
      svg.append(stem);
    });
    let at = left;
    for (const module of new Set(text.sublayers.map((i) => text.components[i].module))) {
      svg.append(rect(at, bottom + 30, 10, 10, null, { rx: 2, style: `fill: var(--${module})` }));
      svg.append(label(module === "mlp" ? "MLP" : module, at + 15, bottom + 39));
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
  title: (x) => `All heads: ${x.says(x)}`,
  help: "A square per head, the first layer at the bottom. Colors end at the 98th percentile. Click a square; arrow keys move.",
  draw(host, x) {
    const { text, rowNumber } = x;
    const most = Math.max(...text.inRow.map((row) => row.length));
    const left = 38;
    const high = clamp(Math.floor(400 / text.rows.length), 5, 20);
    const { svg, width } = drawing(host, high * text.rows.length + 60, `${aboutMeasure(x)}, of every head`);
    const wide = Math.min(40, (width - left - 4) / most);
    const top = quantile(text.heads.map((i) => Math.abs(x.value(i))), 0.98) || 1;
    const every = Math.ceil(14 / high);
    const yOf = (r) => 4 + (text.rows.length - 1 - r) * high;
    const size = { width: Math.max(1, wide - Number(wide > 7)), height: Math.max(1, high - Number(high > 7)) };
    text.inRow.forEach((heads, r) => {
      if (r % every === 0 || r === rowNumber) svg.append(label(text.rows[r], left - 8, yOf(r) + high / 2 + 4, "end", r === rowNumber ? "tick on" : "tick"));
      heads.forEach((i, k) => {
        const value = x.value(i);
        const fill = Number.isFinite(value) ? shade("div", 0.5 + clamp(value / top, -1, 1) / 2) : "transparent";
        const known = { class: "cell", style: `fill: ${fill}`, ...labeled(x, i, value) };
        svg.append(mark("rect", { x: left + k * wide, y: yOf(r), ...size, ...known }, hint(x, i, value)));
      });
    });
    const at = text.inRow[rowNumber].indexOf(x.component);
    if (at >= 0) svg.append(rect(left + at * wide - 1, yOf(rowNumber) - 1, wide + 1, high + 1, "frame strong"));
    const below = 4 + text.rows.length * high;
    for (let k = 0; k < most; k += Math.ceil(26 / wide)) svg.append(label(`H${k}`, left + (k + 0.5) * wide, below + 14, "middle"));
    // The color scale.
    const [steps, length] = [24, most * wide];
    for (let k = 0; k < steps; k++)
      svg.append(rect(left + (k * length) / steps, below + 24, length / steps + 0.5, 8, null, { style: `fill: ${shade("div", k / (steps - 1))}` }));
    [["start", -top], ["middle", 0], ["end", top]].forEach(([anchor, value], n) =>
      svg.append(label(signed(value), left + (n * length) / 2, below + 46, anchor)),
    );
  },
  keys: (key, x) => x.moveHead(key),
};

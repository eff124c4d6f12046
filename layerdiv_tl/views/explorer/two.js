// Two models beside one another: a map of every component at every token, and the components of the chosen token.

// The components of both, sublayers or heads, in stream order: [label, number in a, number in b], −1 where one lacks it.
function rowsOfBoth(pair, heads) {
  const kind = heads ? "heads" : "sublayers";
  const names = pair[kind].map((i) => pair.labels[i]);
  const theirs = pair.other[kind].map((i) => pair.other.labels[i]);
  theirs.forEach((name, n) => {
    if (!names.includes(name)) names.splice(n ? names.indexOf(theirs[n - 1]) + 1 : 0, 0, name);
  });
  return names.map((name) => [name, pair.index.get(name) ?? -1, pair.other.index.get(name) ?? -1]);
}

// A component's number beyond one that writes nothing; 0 where the model lacks it.
const beyondOf = (measured, measure, i) => (i < 0 ? 0 : measured.beyond(measure, i));
const layerOf = (name) => name.split(".")[0];

// A row of a task is looked at where its answer comes, towards its own options.
function beginning({ name, length, targets: [target, minus] }) {
  return name ? { position: length - 1, target: target ?? null, minus: minus ?? null } : {};
}

// What is said of the chosen token by both models.
function bothLosses({ pair, position, chosen }) {
  if (!pair.other) return [];
  const [a, b] = [pair, pair.other].map((text) => text.values.loss[position]);
  const shown = put("span", {}, "views of one model show ", put("b", {}, `model ${chosen.side}`));
  if (!Number.isFinite(a)) return [shown];
  const both = ["loss in a ", put("b", {}, number(a)), ", in b ", put("b", {}, number(b)), `: ${signed(b - a)} nats`];
  return [put("span", {}, ...both), shown];
}

VIEWS.both = {
  two: true,
  title: (x) => `Every ${x.text.components[x.component].head ? "head" : "sublayer"} at every token: ${MEASURES[x.chosen.measure].name}`,
  caption: (x) =>
    `In ${MEASURES[x.chosen.measure].unit}, after every token, towards the target there: gold is more than a component that ` +
    "writes nothing, purple less; in the third map gold is more in b than in a. a and b share their colors; these end at " +
    "the 98th percentile. Click a cell; arrow keys move. Once a head is chosen, the maps show heads.",
  draw(host, x) {
    const { pair, chosen } = x;
    const heads = x.text.components[x.component].head;
    const key = JSON.stringify([chosen.measure, chosen.part, chosen.target, chosen.minus, heads]);
    if (host.shown !== pair || host.key !== key) {
      [host.shown, host.key, host.rows] = [pair, key, rowsOfBoth(pair, heads)];
      host.numbers = this.measure(x, host.rows);
    }
    const across = host.wide >= 760 ? 3 : 1;
    const wide = (Math.max(host.wide, 200) - 16 * (across - 1)) / across;
    const panels = ["model a", "model b", "change, b − a"].map((name, n) => this.panel(x, host, n, name, wide));
    host.replaceChildren(put("div", { className: "panels", style: `--across: ${across}` }, ...panels));
  },
  // The numbers of a, of b and of the change, `[row, position]`, and where their colors end.
  measure(x, rows) {
    const { pair, chosen } = x;
    const { length } = pair;
    const maps = [0, 1, 2].map(() => new Float32Array(rows.length * length));
    for (let p = 0; p < length; p++) {
      const [a, b] = [pair, pair.other].map((text) => x.measuredAt(text, p));
      rows.forEach(([, i, j], r) => {
        const at = r * length + p;
        maps[0][at] = beyondOf(a, chosen.measure, i);
        maps[1][at] = beyondOf(b, chosen.measure, j);
        maps[2][at] = maps[1][at] - maps[0][at];
      });
    }
    const ends = (...some) => quantile(some.flatMap((values) => Array.from(values, Math.abs)), 0.98) || 1;
    const shared = ends(maps[0], maps[1]);
    return { maps, most: [shared, shared, ends(maps[2])] };
  },
  panel(x, host, n, name, width) {
    const { rows, numbers } = host;
    const { length } = x.pair;
    const [values, most] = [numbers.maps[n], numbers.most[n]];
    const [left, top, count] = [44, 4, rows.length];
    const tall = Math.max(count * Math.max(1, Math.round(300 / count)), 60);
    const [wide, high] = [(width - left - 6) / length, tall / count];
    const size = { width, height: tall + 40, viewBox: `0 0 ${width} ${tall + 40}` };
    const svg = mark("svg", { ...size, role: "img", "aria-label": `${name}: every component at every token` });
    const image = new ImageData(length, count);
    const pixels = new Uint32Array(image.data.buffer);
    for (let r = 0; r < count; r++) {
      for (let p = 0; p < length; p++) {
        const share = Math.max(-1, Math.min(1, values[r * length + p] / most));
        pixels[(count - 1 - r) * length + p] = x.signed[Math.round(127.5 + 127.5 * share)];
      }
    }
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [length, count];
    canvas.getContext("2d").putImageData(image, 0, 0);
    canvas.style = `position: absolute; left: ${left}px; top: ${top}px; width: ${wide * length}px; height: ${tall}px`;
    const y = (r) => top + (count - 1 - r) * high;
    const box = (at, up, w, h, kind) => mark("rect", { x: at, y: up, width: w, height: h, class: kind });
    svg.append(box(left + x.position * wide - 1, top - 1, wide + 2, tall + 2, "frame"));
    const chosen = rows.findIndex(([label]) => label === x.name);
    // Marks at both ends: a frame would hide its neighbors.
    for (const end of chosen >= 0 ? [left - 5, left + wide * length + 1] : [])
      svg.append(box(end, y(chosen) - Math.max(0, 3 - high) / 2, 4, Math.max(high, 3), "own"));
    const layers = [...new Set(rows.map(([label]) => layerOf(label)))];
    const every = Math.ceil(layers.length / (tall / 16));
    layers.forEach((layer, k) => {
      if (k % every) return;
      const own = rows.flatMap(([label], r) => (layerOf(label) === layer ? [r] : []));
      const middle = (y(own[0]) + y(own[own.length - 1]) + high) / 2;
      svg.append(label(layer.slice(0, 6), left - 6, middle + 4, { class: "tick", "text-anchor": "end" }));
    });
    legend(svg, most, 0, left, top + tall + 8, Math.min(width - left - 6, 220));
    const map = put("div", { className: "canvas" }, canvas, svg);
    map.at = (event) => {
      const inside = canvas.getBoundingClientRect();
      const p = Math.floor(((event.clientX - inside.left) / inside.width) * length);
      const r = count - 1 - Math.floor(((event.clientY - inside.top) / inside.height) * count);
      return p >= 0 && p < length && r >= 0 && r < count ? { p, r } : null;
    };
    map.onmousemove = (event) => {
      const at = map.at(event);
      const here = at && `${rows[at.r][0]} after ${quoted(x.pair.tokens[at.p])}, ${name}: ${number(values[at.r * length + at.p])}`;
      if (at) map.title = `${here} ${MEASURES[x.chosen.measure].unit}`;
    };
    return put("div", { className: "panel", "data-map": n }, put("h3", {}, name), map);
  },
  keys(key, x) {
    const by = { ArrowUp: 1, ArrowDown: -1 }[key];
    if (!by) return x.move(key);
    const rows = rowsOfBoth(x.pair, x.text.components[x.component].head).filter(([label]) => x.text.index.has(label));
    const current = rows.findIndex(([label]) => label === x.name);
    return { component: rows[Math.min(Math.max(current + by, 0), rows.length - 1)][0] };
  },
  pick(target, x, event) {
    const at = target.closest(".canvas")?.at(event);
    if (!at) return null;
    const [name] = target.closest(".host").rows[at.r];
    return { position: at.p, ...(x.text.index.has(name) ? { component: name } : {}) };
  },
};

VIEWS.changed = {
  two: true,
  title: (x) => `What changed after ${quoted(x.pair.tokens[x.position])}: ${MEASURES[x.chosen.measure].says(x)}`,
  caption: (x) => {
    const { unit, squared } = MEASURES[x.chosen.measure];
    const whole = squared ? "The mean over all sublayers changes" : "The changes of all sublayers sum to that of";
    const rest = {
      logit: `${whole} the model's own logit, less the mean over the vocabulary.`,
      cross_entropy: `${whole} the loss, but for the entropy's.`,
    };
    return `Every sublayer in a and in b, in ${unit} beyond one that writes nothing, and what changed most from a to b. ${rest[x.chosen.measure] ?? ""} Click one to choose it.`;
  },
  draw(host, x) {
    const { pair, position, chosen } = x;
    const measured = [pair, pair.other].map((text) => x.measuredAt(text, position));
    const line = ([name, i, j]) => {
      const [a, b] = [i, j].map((at, n) => beyondOf(measured[n], chosen.measure, at));
      return { name, a, b, change: b - a };
    };
    const column = (title, rows) => {
      const order = rows.map(line).sort((p, q) => Math.abs(q.change) - Math.abs(p.change));
      const most = Math.max(Math.abs(order[0]?.change ?? 0), 1e-30);
      return put("div", {}, put("h3", {}, title), ...order.slice(0, LISTED + 2).map((row) => this.row(x, row, most)));
    };
    const sublayers = rowsOfBoth(pair, false);
    const columns = [column("sublayers: change, in a → in b", sublayers)];
    if (pair.heads.length && pair.other.heads.length) columns.push(column("heads, which are parts of them", rowsOfBoth(pair, true)));
    const chart = put("div", { className: "chart" });
    chart.wide = host.wide;
    host.replaceChildren(chart, put("div", { className: "columns" }, ...columns));
    this.lines(chart, x, sublayers.map(line));
  },
  row(x, { name, a, b, change }, most) {
    const wide = `--wide: ${(100 * Math.abs(change)) / most}%; background: var(--div-${change < 0 ? 1 : 3})`;
    const known = { "data-component": name, "data-value": change, "aria-pressed": name === x.name };
    return put(
      "button",
      { type: "button", className: "entry of-both", ...known },
      put("span", { className: "word plain" }, name),
      put("span", { className: "bar both" }, put("i", { style: wide, className: change < 0 ? "less" : "more" })),
      put("span", { className: "number" }, signed(change)),
      put("span", { className: "number from" }, `${number(a)} → ${number(b)}`),
    );
  },
  // A dot for a, one for b, and a line between them, for every sublayer.
  lines(host, x, rows) {
    const { unit } = MEASURES[x.chosen.measure];
    const { svg, width } = drawing(host, 226, "every sublayer in a and in b");
    const [left, right, top, bottom] = [52, width - 8, 26, 200];
    const scale = axisOf(rows.flatMap(({ a, b }) => [a, b]), bottom, top);
    const step = (right - left) / rows.length;
    gridlines(svg, scale, left, right);
    ["a", "b"].forEach((side, n) =>
      svg.append(
        mark("circle", { cx: left + 8 + 76 * n, cy: 10, r: 4.5, class: `at-${side}` }),
        label(`model ${side}`, left + 18 + 76 * n, 14, { class: "tick" }),
      ),
    );
    rows.forEach(({ name, a, b, change }, k) => {
      const [cx, r] = [left + (k + 0.5) * step, Math.max(2, Math.min(4.5, step / 2.2))];
      const [ya, yb] = [scale.place(a), scale.place(b)];
      const shown = { class: name === x.name ? "stem chosen" : "stem", style: "--own: var(--zero)" };
      svg.append(
        mark(
          "g",
          { ...shown, "data-component": name, "data-value": change },
          hover(`${name}\nin a ${number(a)}, in b ${number(b)}: ${signed(change)} ${unit}`),
          mark("rect", { x: cx - step / 2, y: 20, width: step, height: bottom - 16, class: "hit" }),
          mark("line", { x1: cx, x2: cx, y1: ya, y2: yb, "stroke-width": Math.max(1, Math.min(3, step - 2)) }),
        ),
        mark("circle", { cx, cy: ya, r: r + 1.5, class: "at-a still" }),
        mark("circle", { cx, cy: yb, r, class: "at-b still" }),
      );
    });
    const layers = [...new Set(rows.map(({ name }) => layerOf(name)))];
    const every = Math.ceil(layers.length / Math.max(3, Math.floor(width / 80)));
    layers.forEach((layer, n) => {
      if (n % every) return;
      const k = rows.findIndex(({ name }) => layerOf(name) === layer);
      svg.append(label(layer, left + (k + 0.5) * step, bottom + 18, { class: "tick", "text-anchor": "middle" }));
    });
  },
};

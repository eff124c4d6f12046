// The views of the text and of components' measures. Each draws the numbers of `x`, see look.js, into its host.

const VIEWS = {};

// Tokens as spans, with line breaks; one of spaces alone shows them.
function tokenSpans(text) {
  const shown = (token) => (token.trim() ? token : token.replaceAll(" ", "␣"));
  const spans = text.tokens.map((token) => put("span", { className: "token" }, shown(token)));
  return { spans, lines: spans.flatMap((span) => (span.textContent.includes("⏎") ? [span, put("br")] : [span])) };
}

// A text whose tokens wear the number of the prediction made after them.
VIEWS.tokens = {
  title: (x) => (x.text.written ? "The text; generated tokens are underlined" : "The text"),
  caption: (x) =>
    "Every token is colored by the prediction made after it. Click a token, or press ← →: all views below show the " +
    "prediction at that position" +
    (x.chosen.color === "loss" ? "." : `; colored by ${x.name}, gold above the zero baseline, purple below.`),
  draw(host, x) {
    const { text, chosen } = x;
    if (host.shown !== text) {
      const { spans, lines } = tokenSpans(text);
      Object.assign(host, { shown: text, key: null, spans });
      spans.forEach((span, p) => (span.dataset.position = p));
      spans.slice(text.length - text.written).forEach((span) => span.classList.add("written"));
      host.replaceChildren(...lines);
    }
    const { color, measure, part, target, minus } = chosen;
    const key = color === "component" ? JSON.stringify([measure, part, target, minus, x.name]) : color;
    if (host.key !== key) this.paint(host.spans, x, color === "loss");
    host.key = key;
    host.querySelector(".chosen")?.classList.remove("chosen");
    const at = host.spans[x.position];
    at.classList.add("chosen");
    // Only within the strip, the page itself stays where it is; after all is drawn, as it lays the page out.
    requestAnimationFrame(() => {
      const up = at.offsetTop - host.offsetTop;
      if (up < host.scrollTop || up > host.scrollTop + host.clientHeight - 30) host.scrollTop = up - 60;
    });
  },
  paint(spans, x, isLoss) {
    const { text } = x;
    const values = spans.map((_, p) => x.colorValue(p));
    const most = quantile(values.map(Math.abs), 0.98) || 1;
    spans.forEach((span, p) => {
      const share = Math.max(-1, Math.min(1, values[p] / most));
      const color = isLoss ? shade("seq", UNDER * share) : shade("div", 0.5 + 0.14 * share);
      span.dataset.value = values[p];
      span.style.background = Number.isFinite(values[p]) ? color : "";
      const next = text.tokens[p + 1] ?? text.next(p);
      const comes = next === null ? "" : ` comes ${said(next)}`;
      span.title = `position ${p}: after ${said(text.tokens[p])}${comes}\n${isLoss ? "loss" : x.name} ${number(values[p])}`;
    });
  },
  keys: (key, x) => x.move(key),
  pick: (target) => {
    const span = target.closest("[data-position]");
    return span && { position: +span.dataset.position };
  },
};

const aboutMeasure = (x) => `${MEASURES[x.chosen.measure].says(x)}, in ${MEASURES[x.chosen.measure].unit}`;

// A stem with a dot for every sublayer, from the zero baseline.
VIEWS.depth = {
  title: (x) => `Components by depth: ${aboutMeasure(x)}`,
  caption: (x) => `${meaning(x)} Click a component, or press ← → here.`,
  draw(host, x) {
    const { text, chosen, measured } = x;
    const { svg, width } = drawing(host, 250, `${aboutMeasure(x)}, of every component`);
    const [left, right, top, bottom] = [52, width - 8, 10, 206];
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
    text.sublayers.forEach((i, k) => svg.append(this.stem(x, i, values[k], scale, left + (k + 0.5) * step, step, bottom)));
    const line = { x1: left, x2: right, y1: scale.place(zero), y2: scale.place(zero), class: "even", "data-zero": zero };
    svg.append(mark("line", line, hover(`zero baseline: ${number(zero)}`)));
    let at = left;
    for (const module of new Set(text.sublayers.map((i) => text.components[i].module))) {
      svg.append(rect(at, bottom + 33, 10, 10, null, { rx: 2, style: `fill: var(--${module})` }));
      svg.append(label(module === "mlp" ? "MLP" : module, at + 15, bottom + 42));
      at += 32 + 7 * module.length;
    }
  },
  stem(x, i, value, scale, at, step, bottom) {
    const { text, chosen, measured } = x;
    const base = scale.place(measured.zero(chosen.measure, 0));
    const y = Number.isFinite(value) ? scale.place(value) : base;
    const kind = { class: i === x.component ? "stem chosen" : "stem", style: `--own: var(--${text.components[i].module})` };
    const stem = mark(
      "g",
      { ...kind, "data-component": text.labels[i], "data-value": value },
      hover(`${text.labels[i]}\n${MEASURES[chosen.measure].says(x)} ${number(value)} ${MEASURES[chosen.measure].unit}${sides(x, i)}`),
      rect(at - step / 2, 0, step, bottom + 4, "hit"),
      mark("line", { x1: at, x2: at, y1: base, y2: y, "stroke-width": Math.max(2, Math.min(9, step - 2)) }),
    );
    if (i === x.component) stem.append(mark("circle", { cx: at, cy: y, r: Math.min(6, step / 2 + 2.5) }));
    return stem;
  },
  keys(key, x) {
    const order = x.text.sublayers;
    const current = order.indexOf(x.text.components[x.component].head ? x.attention : x.component);
    const [back, on] = [current - 1, current + 1];
    const to = { ArrowLeft: back, ArrowDown: back, ArrowRight: on, ArrowUp: on, Home: 0, End: order.length - 1 }[key];
    return to === undefined ? null : { component: x.text.labels[order[x.clamp(to, order.length)]] };
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
    const high = Math.max(5, Math.min(20, Math.floor(430 / text.rows.length)));
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
        const fill = Number.isFinite(share) ? shade("div", 0.5 + Math.max(-1, Math.min(1, share)) / 2) : "transparent";
        const known = { class: "cell", style: `fill: ${fill}`, "data-component": text.labels[i], "data-value": value };
        const told = hover(`${text.labels[i]}\n${number(value)} ${MEASURES[chosen.measure].unit}${sides(x, i)}`);
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

VIEWS.scatter = {
  heads: true,
  title: () => "Bias against diversity",
  caption:
    "Every head is a mark; those of the selected layer are filled. Both grow with the size of the contribution, so marks " +
    "lie near the dashed line, where they are equal; above it net is positive. Click near a mark; ← → move.",
  draw(host, x) {
    const { text, chosen, measured } = x;
    const { svg, width } = drawing(host, 480, "bias against diversity of every head");
    const [left, right, top, bottom] = [52, width - 10, 10, 432];
    const points = text.heads.map((i) => ({ i, d: measured.value("diversity", i), b: measured.value("bias", i) }));
    const seen = points.filter(({ d, b }) => d > 0 && b > 0);
    if (!seen.length) return nothing(host, "No head differs from the mean of all components here.");
    const across = axisOf(seen.map(({ d }) => d), left, right, true);
    const up = axisOf(seen.map(({ b }) => b), bottom, top, true);
    gridlines(svg, up, left, right);
    for (const [value, name] of across.ticks) svg.append(label(name, across.place(value), bottom + 18, "middle"));
    const both = seen.flatMap(({ d, b }) => [d, b]);
    const [low, high] = [Math.min(...both), Math.max(...both)];
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    const equal = { x1: across.place(low), y1: up.place(low), x2: across.place(high), y2: up.place(high) };
    svg.append(
      mark("clipPath", { id: clip }, rect(left, top, right - left, bottom - top, null)),
      mark("line", { ...equal, class: "even", "clip-path": `url(#${clip})` }),
      label(`diversity, ${chosen.part}, logits²`, (left + right) / 2, bottom + 38, "middle", "name"),
      label("bias", left + 6, top + 8, "start", "name"),
    );
    const inLayer = new Set(text.inRow[x.rowNumber]);
    const rank = (i) => Number(inLayer.has(i)) + 2 * Number(i === x.component); // what is drawn last lies above
    for (const { i, d, b } of [...seen].sort((one, other) => rank(one.i) - rank(other.i))) {
      const kind = i === x.component ? "dot chosen" : inLayer.has(i) ? "dot near" : "dot";
      const at = { cx: across.place(d), cy: up.place(b), r: i === x.component ? 6 : 3.5, class: kind };
      const told = `${text.labels[i]}\nbias ${number(b)}, diversity ${number(d)}, net ${number(measured.value("net", i))} logits²`;
      svg.append(mark("circle", { ...at, "data-component": text.labels[i], "data-value": b, "data-across": d }, hover(told)));
    }
    host.dots = seen.map(({ i, d, b }) => [i, across.place(d), up.place(b)]);
  },
  keys(key, x) {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[key];
    const { heads, labels } = x.text;
    if (!by || !heads.length) return null;
    const current = heads.indexOf(x.component);
    return { component: labels[heads[current < 0 ? 0 : (current + by + heads.length) % heads.length]] };
  },
  pick(target, x, event) {
    const svg = target.closest("svg");
    const { dots } = target.closest(".host");
    if (!svg || !dots) return null;
    const box = svg.getBoundingClientRect();
    const far = ([, cx, cy]) => Math.hypot(cx - (event.clientX - box.left), cy - (event.clientY - box.top));
    const best = dots.reduce((a, b) => (far(b) < far(a) ? b : a));
    return far(best) < 24 ? { component: x.text.labels[best[0]] } : null;
  },
};

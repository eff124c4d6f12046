// The views. Each draws the numbers of `x`, which is what is chosen (look() in
// explorer.js), into its host.

const VIEWS = {};

// A text whose tokens wear the number of their own prediction.
VIEWS.tokens = {
  title: () => "The text",
  caption:
    "Every token wears the number of its own prediction, made at the token before it. Click a token, or press ← →, to " +
    "see how it was predicted: everything below follows. The first token is not predicted; what follows the last one " +
    "is framed with dots.",
  draw(host, x) {
    const { text, chosen } = x;
    const values = Array.from({ length: text.length }, (_, p) => text.colorValue(chosen.color, chosen.part, p));
    const signs = chosen.color === "net" && values.some((v) => v < 0);
    const { color } = colors(values, signs, false, signs ? 0.42 : 0.44);
    const unit = chosen.color === "loss" ? "nats" : `${UNIT}, ${chosen.part}, mean of ${text.counts[0]} components`;
    const pinned = chosen.pins.map((pin) => (pin && pin[0] === chosen.text ? pin[1] : null));
    const spans = [...text.tokens, text.target ?? "?"].map((token, i) => {
      const position = i - 1;
      const value = values[position];
      const span = put("span", { className: "token" }, token);
      if (position < 0) {
        span.classList.add("first");
        span.title = "the first token is not predicted";
        return span;
      }
      span.dataset.position = position;
      span.dataset.value = value;
      span.style.background = color(value);
      span.title = `position ${position}: ${quoted(text.tokens[position])} → ${quoted(text.next(position))}\n${chosen.color} ${number(value)} ${unit}`;
      if (i === text.length) span.classList.add("ghost");
      if (position === x.position) span.classList.add("chosen");
      if (i === x.position) span.classList.add("stands");
      pinned.forEach(
        (at, pin) => at === position && span.append(put("sup", { className: `pin pin-${"ab"[pin]}` }, "AB"[pin])),
      );
      return span;
    });
    if (x.position === 0) spans[0].classList.add("stands");
    host.replaceChildren(...spans.flatMap((span) => (span.textContent.includes("⏎") ? [span, put("br")] : [span])));
    host.querySelector(".chosen").scrollIntoView?.({ block: "nearest", inline: "nearest" });
  },
  keys: (key, x) => x.move(key),
  pick: (target, x) => {
    const span = target.closest("[data-position]");
    return span && { position: +span.dataset.position };
  },
};

VIEWS.depth = {
  title: (x) => `Components by depth: ${x.chosen.term}`,
  caption:
    "One stem per component, from the embedding to the last layer, in logits². The dashed line is a component that " +
    "adds nothing: of net, what is below it moves the logits towards the right token, what is above it away. Bias and " +
    "diversity are drawn logarithmically. Click a component, or press ← →, to choose its layer.",
  draw(host, x) {
    const { text, chosen } = x;
    const { svg, width } = drawing(host, 250, `${chosen.part} ${chosen.term} of every component`);
    const [left, right, top, bottom] = [52, width - 8, 10, 206];
    const values = text.sublayers.map((i) => text.value(chosen.term, chosen.part, i, x.position));
    const scale = axisOf(values, bottom, top, isLog(chosen.term));
    const step = (right - left) / text.sublayers.length;
    const rows = [...new Set(text.sublayers.map((i) => text.components[i].row).filter(Boolean))];
    const every = Math.ceil(rows.length / Math.max(4, Math.floor(width / 70)));
    rows.forEach((row, n) => {
      const places = text.sublayers.flatMap((i, k) => (text.components[i].row === row ? [k] : []));
      const from = left + places[0] * step;
      if (row === x.row)
        svg.append(
          mark("rect", { x: from, y: top - 6, width: places.length * step, height: bottom - top + 10, class: "band" }),
        );
      if (n % every === 0)
        svg.append(
          label(row, from + (places.length * step) / 2, bottom + 20, { class: "tick", "text-anchor": "middle" }),
        );
    });
    gridlines(svg, scale, left, right);
    stems(svg, x, text.sublayers, chosen.term, scale, left, step, bottom);
    zeroLine(svg, x, chosen.term, 0, scale, left, right, top, bottom);
    let at = left;
    for (const module of new Set(text.sublayers.map((i) => text.components[i].module))) {
      svg.append(
        mark("rect", { x: at, y: bottom + 33, width: 10, height: 10, rx: 2, style: `fill: var(--${module})` }),
        label(module === "mlp" ? "MLP" : module, at + 15, bottom + 42, { class: "tick" }),
      );
      at += 32 + 6.5 * module.length;
    }
  },
  keys(key, x) {
    const order = x.text.sublayers;
    const current = order.indexOf(x.text.components[x.component].head ? x.attention : x.component);
    const to = {
      ArrowLeft: current - 1,
      ArrowDown: current - 1,
      ArrowRight: current + 1,
      ArrowUp: current + 1,
      Home: 0,
      End: order.length - 1,
    }[key];
    return to === undefined ? null : { component: x.text.labels[order[Math.min(Math.max(to, 0), order.length - 1)]] };
  },
};

VIEWS.layer = {
  title: (x) => (x.text.heads.length ? `Heads of ${x.text.rows[x.rowNumber]}` : "Heads"),
  caption:
    "The heads of the chosen layer by all three terms; the scales are those of all heads, so that layers compare. " +
    "Click a head, or press ← →; ↑ ↓ change the layer.",
  draw(host, x) {
    const { text, chosen, rowNumber } = x;
    if (!text.heads.length) return nothing(host, `There are no views of heads here: ${text.no_heads}`);
    const { svg, width } = drawing(host, 150, `heads of ${text.rows[rowNumber]}`);
    const heads = text.inRow[rowNumber];
    const wide = width / 3;
    ["net", "bias", "diversity"].forEach((term, n) => {
      const [left, right] = [n * wide + 52, (n + 1) * wide - 6];
      const all = text.heads.map((i) => text.value(term, chosen.part, i, x.position));
      const scale = axisOf(all, 118, 26, isLog(term));
      const step = (right - left) / heads.length;
      svg.append(label(term, left, 12, { class: "name" }));
      gridlines(svg, scale, left, right);
      stems(svg, x, heads, term, scale, left, step, 118);
      zeroLine(svg, x, term, 1, scale, left, right, 26, 118);
      const every = Math.ceil(heads.length / Math.max(1, Math.floor((right - left) / 26)));
      heads.forEach((i, k) => {
        const name = text.labels[i].split(".")[1];
        if (k % every === 0)
          svg.append(label(name, left + (k + 0.5) * step, 136, { class: "tick", "text-anchor": "middle" }));
      });
    });
  },
  keys: (key, x) => x.moveHead(key),
};

VIEWS.grid = {
  heads: true,
  title: (x) => `All heads: ${x.chosen.term}`,
  caption:
    "One square per head, the first layer at the bottom. Net is blue below zero and orange above; bias and diversity are " +
    "colored logarithmically. Colors end at the 98th percentile. Click a square; arrow keys move.",
  draw(host, x) {
    const { text, chosen, rowNumber } = x;
    const most = Math.max(...text.inRow.map((row) => row.length));
    const left = 38;
    const high = Math.max(5, Math.min(20, Math.floor(430 / text.rows.length)));
    const { svg, width } = drawing(host, high * text.rows.length + 66, `${chosen.part} ${chosen.term} of every head`);
    const wide = Math.min(40, (width - left - 4) / most);
    const values = text.heads.map((i) => text.value(chosen.term, chosen.part, i, x.position));
    const { color, low, high: top } = colors(values, chosen.term === "net", isLog(chosen.term));
    const every = Math.ceil(14 / high);
    text.inRow.forEach((heads, r) => {
      const y = 4 + (text.rows.length - 1 - r) * high;
      const tall = Math.max(1, high - (high > 7));
      if (r % every === 0)
        svg.append(
          label(text.rows[r], left - 8, y + high / 2 + 4, {
            class: r === rowNumber ? "tick on" : "tick",
            "text-anchor": "end",
          }),
        );
      heads.forEach((i, k) => {
        const value = text.value(chosen.term, chosen.part, i, x.position);
        svg.append(
          mark(
            "rect",
            {
              x: left + k * wide,
              y,
              width: Math.max(1, wide - (wide > 7)),
              height: tall,
              class: "cell",
              style: `fill: ${color(value)}`,
              "data-component": text.labels[i],
              "data-value": value,
            },
            hover(`${text.labels[i]}\n${chosen.part} ${chosen.term} ${number(value)} ${UNIT}`),
          ),
        );
      });
    });
    const frame = (r, k, count, className) =>
      mark("rect", {
        x: left + k * wide - 1,
        y: 3 + (text.rows.length - 1 - r) * high,
        width: count * wide + 1,
        height: high + 1,
        class: className,
      });
    svg.append(frame(rowNumber, 0, text.inRow[rowNumber].length, "frame"));
    const at = text.inRow[rowNumber].indexOf(x.component);
    if (at >= 0) svg.append(frame(rowNumber, at, 1, "frame strong"));
    const below = 4 + text.rows.length * high;
    const step = Math.ceil(22 / wide);
    for (let k = 0; k < most; k += step)
      svg.append(label(`H${k}`, left + (k + 0.5) * wide, below + 14, { class: "tick", "text-anchor": "middle" }));
    legend(svg, chosen.term, low, top, left, below + 30, Math.min(width - left - 4, most * wide));
  },
  keys: (key, x) => x.moveHead(key),
};

VIEWS.scatter = {
  heads: true,
  title: () => "Bias against diversity",
  caption:
    "Every head is a mark, those of the chosen layer are filled. Both grow with how much a head adds, so marks lie " +
    "near the dashed line, where they are equal; above it net is positive. Click near a mark; ← → move.",
  draw(host, x) {
    const { text, chosen, position, part } = x;
    const { svg, width } = drawing(host, 480, "bias against diversity of every head");
    const [left, right, top, bottom] = [52, width - 10, 10, 432];
    const points = text.heads.map((i) => [
      i,
      text.value("diversity", part, i, position),
      text.value("bias", part, i, position),
    ]);
    const seen = points.filter(([, d, b]) => d > 0 && b > 0);
    if (!seen.length)
      return nothing(
        host,
        points.some(([, , b]) => b > 0)
          ? "No head differs from the mean of all components here."
          : "There is no next token here to measure bias against: choose a token of the text, or give a target.",
      );
    const across = axisOf(
      seen.map(([, d]) => d),
      left,
      right,
      true,
    );
    const up = axisOf(
      seen.map(([, , b]) => b),
      bottom,
      top,
      true,
    );
    gridlines(svg, up, left, right);
    for (const [value, name] of across.ticks)
      svg.append(label(name, across.place(value), bottom + 18, { class: "tick", "text-anchor": "middle" }));
    const both = [...seen.map(([, d]) => d), ...seen.map(([, , b]) => b)];
    const ends = [Math.min(...both), Math.max(...both)];
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    svg.append(
      mark("clipPath", { id: clip }, mark("rect", { x: left, y: top, width: right - left, height: bottom - top })),
      mark("line", {
        x1: across.place(ends[0]),
        y1: up.place(ends[0]),
        x2: across.place(ends[1]),
        y2: up.place(ends[1]),
        class: "even",
        "clip-path": `url(#${clip})`,
      }),
      label(`diversity, ${part}, ${UNIT}`, (left + right) / 2, bottom + 38, { class: "name", "text-anchor": "middle" }),
      label(`bias`, left + 6, top + 8, { class: "name" }),
    );
    const inLayer = new Set(text.inRow[x.rowNumber]);
    const order = [...seen].sort(
      ([a], [b]) => inLayer.has(a) - inLayer.has(b) || (a === x.component) - (b === x.component),
    );
    for (const [i, d, b] of order) {
      const kind = i === x.component ? "dot chosen" : inLayer.has(i) ? "dot near" : "dot";
      const at = { cx: across.place(d), cy: up.place(b), r: i === x.component ? 6 : 3.5 };
      svg.append(
        mark(
          "circle",
          { ...at, class: kind, "data-component": text.labels[i], "data-value": b, "data-across": d },
          hover(
            `${text.labels[i]}\nbias ${number(b)}, diversity ${number(d)}, net ${number(text.value("net", part, i, position))} ${UNIT}`,
          ),
        ),
      );
    }
    host.dots = seen.map(([i, d, b]) => [i, across.place(d), up.place(b)]);
  },
  keys(key, x) {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[key];
    if (!by || !x.text.heads.length) return null;
    const current = x.text.heads.indexOf(x.component);
    const count = x.text.heads.length;
    return { component: x.text.labels[x.text.heads[current < 0 ? 0 : (current + by + count) % count]] };
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

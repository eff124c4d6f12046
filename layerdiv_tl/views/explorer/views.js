// The views. Each draws the numbers of `x`, see look.js, into its host.

const VIEWS = {};

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
      [host.shown, host.key] = [text, null];
      host.spans = text.tokens.map((token, p) =>
        put("span", { className: "token", "data-position": p }, token.trim() ? token : token.replaceAll(" ", "␣")),
      );
      host.spans.slice(text.length - text.written).forEach((span) => span.classList.add("written"));
      host.replaceChildren(...host.spans.flatMap((span) => (span.textContent.includes("⏎") ? [span, put("br")] : [span])));
    }
    const { color, measure, part, target, minus } = chosen;
    const isLoss = color === "loss";
    const key = color === "component" ? JSON.stringify([measure, part, target, minus, x.name]) : color;
    if (host.key !== key) {
      host.key = key;
      this.paint(host.spans, x, isLoss);
    }
    host.querySelector(".chosen")?.classList.remove("chosen");
    host.spans[x.position].classList.add("chosen");
    // Only within the strip, the page itself stays where it is; after all is drawn, as it lays the page out.
    const at = host.spans[x.position];
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
      const next = p + 1 < text.length ? text.tokens[p + 1] : text.next(p);
      const comes = next === null ? "" : ` comes ${quoted(next)}`;
      span.title = `position ${p}: after ${quoted(text.tokens[p])}${comes}\n${isLoss ? "loss" : x.name} ${number(values[p])}`;
    });
  },
  keys: (key, x) => x.move(key),
  pick: (target) => {
    const span = target.closest("[data-position]");
    return span && { position: +span.dataset.position };
  },
};

VIEWS.depth = {
  title: (x) => `Components by depth: ${MEASURES[x.chosen.measure].says(x)}, in ${MEASURES[x.chosen.measure].unit}`,
  caption: (x) => `${meaning(x)} Click a component, or press ← → here.`,
  draw(host, x) {
    const { text, chosen, measured } = x;
    const { svg, width } = drawing(host, 250, `${MEASURES[chosen.measure].says(x)} of every component`);
    const [left, right, top, bottom] = [52, width - 8, 10, 206];
    const values = text.sublayers.map((i) => measured.value(chosen.measure, i));
    const zero = measured.zero(chosen.measure, 0);
    const scale = axisOf([...values, zero], bottom, top);
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
    stems(svg, x, text.sublayers, chosen.measure, scale, left, step, bottom);
    const line = { x1: left, x2: right, y1: scale.place(zero), y2: scale.place(zero), class: "even", "data-zero": zero };
    svg.append(mark("line", line, hover(`zero baseline: ${number(zero)}`)));
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

VIEWS.grid = {
  heads: true,
  title: (x) => `All heads: ${MEASURES[x.chosen.measure].says(x)}`,
  caption: (x) =>
    `One square per head, the first layer at the bottom, in ${MEASURES[x.chosen.measure].unit}: gold is above the ` +
    "zero baseline, purple below. Colors end at the 98th percentile. Click a square; arrow keys move.",
  draw(host, x) {
    const { text, chosen, rowNumber, measured } = x;
    const most = Math.max(...text.inRow.map((row) => row.length));
    const left = 38;
    const high = Math.max(5, Math.min(20, Math.floor(430 / text.rows.length)));
    const { svg, width } = drawing(host, high * text.rows.length + 66, `${MEASURES[chosen.measure].says(x)} of every head`);
    const wide = Math.min(40, (width - left - 4) / most);
    const { color, high: top } = signedColors(text.heads.map((i) => measured.beyond(chosen.measure, i)));
    const every = Math.ceil(14 / high);
    text.inRow.forEach((heads, r) => {
      const y = 4 + (text.rows.length - 1 - r) * high;
      const tall = Math.max(1, high - Number(high > 7));
      if (r % every === 0)
        svg.append(
          label(text.rows[r], left - 8, y + high / 2 + 4, {
            class: r === rowNumber ? "tick on" : "tick",
            "text-anchor": "end",
          }),
        );
      heads.forEach((i, k) => {
        const value = measured.value(chosen.measure, i);
        svg.append(
          mark(
            "rect",
            {
              x: left + k * wide,
              y,
              width: Math.max(1, wide - Number(wide > 7)),
              height: tall,
              class: "cell",
              style: `fill: ${color(measured.beyond(chosen.measure, i))}`,
              "data-component": text.labels[i],
              "data-value": value,
            },
            hover(`${text.labels[i]}\n${number(value)} ${MEASURES[chosen.measure].unit}${sides(x, i)}`),
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
    legend(svg, top, measured.zero(chosen.measure, 1), left, below + 30, Math.min(width - left - 4, most * wide));
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
    const points = text.heads.map((i) => [
      i,
      measured.value("diversity", i),
      measured.value("bias", i),
    ]);
    const seen = points.filter(([, d, b]) => d > 0 && b > 0);
    if (!seen.length) return nothing(host, "No head differs from the mean of all components here.");
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
      label(`diversity, ${chosen.part}, logits²`, (left + right) / 2, bottom + 38, { class: "name", "text-anchor": "middle" }),
      label(`bias`, left + 6, top + 8, { class: "name" }),
    );
    const inLayer = new Set(text.inRow[x.rowNumber]);
    const order = [...seen].sort(
      ([a], [b]) => Number(inLayer.has(a)) - Number(inLayer.has(b)) || Number(a === x.component) - Number(b === x.component),
    );
    for (const [i, d, b] of order) {
      const kind = i === x.component ? "dot chosen" : inLayer.has(i) ? "dot near" : "dot";
      const at = { cx: across.place(d), cy: up.place(b), r: i === x.component ? 6 : 3.5 };
      svg.append(
        mark(
          "circle",
          { ...at, class: kind, "data-component": text.labels[i], "data-value": b, "data-across": d },
          hover(`${text.labels[i]}\nbias ${number(b)}, diversity ${number(d)}, net ${number(measured.value("net", i))} logits²`),
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

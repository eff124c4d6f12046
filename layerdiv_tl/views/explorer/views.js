// The views. Each draws the chosen numbers of `x` = {text, texts, chosen, choose, position, part, component} into its host.

const UNIT = "logits²";
const isLog = (term) => term !== "net";
const MEANING = {
  net: "net = bias − diversity: what a component adds to the error",
  bias: "bias: how far a component alone is from the right token",
  diversity: "diversity: how far a component is from the mean of all",
};

function drawing(host, height, name) {
  const width = Math.max(host.clientWidth, 200);
  const svg = mark("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
  host.replaceChildren(svg);
  return { svg, width };
}

function gridlines(svg, { place, ticks }, left, right) {
  for (const [value, text] of ticks) {
    const y = place(value);
    svg.append(
      mark("line", { x1: left, x2: right, y1: y, y2: y, class: value === 0 ? "zero" : "rule" }),
      label(text, left - 6, y + 4, { class: "tick", "text-anchor": "end" }),
    );
  }
}

// Where a component that writes nothing stands, where the axis holds that.
function silence(svg, x, term, cut, scale, left, right, top, bottom) {
  const value = x.text.silent(term, x.part, cut, x.position);
  if (!Number.isFinite(value) || (isLog(term) && value <= 0)) return;
  const y = scale.place(value);
  if (y < top || y > bottom) return;
  const said = hover(`a component that writes nothing: ${term} ${number(value)}`);
  svg.append(mark("line", { x1: left, x2: right, y1: y, y2: y, class: "even", "data-silent": value }, said));
}

// A stem with a dot for every component: from zero where numbers have a sign, from below where they are logarithmic.
function stems(svg, x, components, term, scale, left, step, bottom) {
  const { text, part, position, component } = x;
  const base = isLog(term) ? bottom : scale.place(0);
  components.forEach((i, k) => {
    const value = text.value(term, part, i, position);
    const at = left + (k + 0.5) * step;
    const y = Number.isFinite(value) && (!isLog(term) || value > 0) ? scale.place(value) : base;
    const chosen = i === component;
    const group = mark(
      "g",
      {
        class: chosen ? "stem chosen" : "stem",
        style: `--own: var(--${text.components[i].module})`,
        "data-component": text.labels[i],
        "data-term": term,
        "data-value": value,
      },
      hover(`${text.labels[i]}\n${x.part} ${term} ${number(value)} ${UNIT}`),
      mark("rect", { x: at - step / 2, y: 0, width: step, height: bottom + 4, class: "hit" }),
    );
    if (Number.isFinite(value)) {
      const line = { x1: at, x2: at, y1: base, y2: y, "stroke-width": Math.max(1, Math.min(9, step - 2)) };
      group.append(mark("line", line));
      if (chosen) group.append(mark("circle", { cx: at, cy: y, r: Math.min(6, step / 2 + 2.5) }));
    }
    svg.append(group);
  });
}

function nothing(host, sentence) {
  host.replaceChildren(put("p", { className: "none" }, sentence));
}

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
    const values = Array.from({ length: text.length }, (_, p) => text.said(chosen.colour, chosen.part, p));
    const signs = chosen.colour === "net" && values.some((v) => v < 0);
    const { colour } = colours(values, signs, false, signs ? 0.42 : 0.44);
    const unit = chosen.colour === "loss" ? "nats" : `${UNIT}, ${chosen.part}, mean of ${text.counts[0]} components`;
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
      span.style.background = colour(value);
      span.title = `position ${position}: ${quoted(text.tokens[position])} → ${quoted(text.next(position))}\n${chosen.colour} ${number(value)} ${unit}`;
      if (i === text.length) span.classList.add("ghost");
      if (position === x.position) span.classList.add("chosen");
      if (i === x.position) span.classList.add("stands");
      pinned.forEach((at, pin) => at === position && span.append(put("sup", { className: `pin pin-${"ab"[pin]}` }, "AB"[pin])));
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
    "writes nothing: of net, what is below it moves the logits towards the right token, what is above it away. Bias and " +
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
      if (row === x.row) svg.append(mark("rect", { x: from, y: top - 6, width: places.length * step, height: bottom - top + 10, class: "band" }));
      if (n % every === 0) svg.append(label(row, from + (places.length * step) / 2, bottom + 20, { class: "tick", "text-anchor": "middle" }));
    });
    gridlines(svg, scale, left, right);
    stems(svg, x, text.sublayers, chosen.term, scale, left, step, bottom);
    silence(svg, x, chosen.term, 0, scale, left, right, top, bottom);
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
    const here = order.indexOf(x.text.components[x.component].head ? x.attention : x.component);
    const to = { ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1, Home: 0, End: order.length - 1 }[key];
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
      silence(svg, x, term, 1, scale, left, right, 26, 118);
      const every = Math.ceil(heads.length / Math.max(1, Math.floor((right - left) / 26)));
      heads.forEach((i, k) => {
        const name = text.labels[i].split(".")[1];
        if (k % every === 0) svg.append(label(name, left + (k + 0.5) * step, 136, { class: "tick", "text-anchor": "middle" }));
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
    "coloured logarithmically. Colours end at the 98th percentile. Click a square; arrow keys move.",
  draw(host, x) {
    const { text, chosen, rowNumber } = x;
    const most = Math.max(...text.inRow.map((row) => row.length));
    const left = 38;
    const high = Math.max(5, Math.min(20, Math.floor(430 / text.rows.length)));
    const { svg, width } = drawing(host, high * text.rows.length + 66, `${chosen.part} ${chosen.term} of every head`);
    const wide = Math.min(40, (width - left - 4) / most);
    const values = text.heads.map((i) => text.value(chosen.term, chosen.part, i, x.position));
    const { colour, low, high: top } = colours(values, chosen.term === "net", isLog(chosen.term));
    const every = Math.ceil(14 / high);
    text.inRow.forEach((heads, r) => {
      const y = 4 + (text.rows.length - 1 - r) * high;
      const tall = Math.max(1, high - (high > 7));
      if (r % every === 0) svg.append(label(text.rows[r], left - 8, y + high / 2 + 4, { class: r === rowNumber ? "tick on" : "tick", "text-anchor": "end" }));
      heads.forEach((i, k) => {
        const value = text.value(chosen.term, chosen.part, i, x.position);
        svg.append(
          mark(
            "rect",
            { x: left + k * wide, y, width: Math.max(1, wide - (wide > 7)), height: tall, class: "cell", style: `fill: ${colour(value)}`, "data-component": text.labels[i], "data-value": value },
            hover(`${text.labels[i]}\n${chosen.part} ${chosen.term} ${number(value)} ${UNIT}`),
          ),
        );
      });
    });
    const frame = (r, k, count, className) =>
      mark("rect", { x: left + k * wide - 1, y: 3 + (text.rows.length - 1 - r) * high, width: count * wide + 1, height: high + 1, class: className });
    svg.append(frame(rowNumber, 0, text.inRow[rowNumber].length, "frame"));
    const at = text.inRow[rowNumber].indexOf(x.component);
    if (at >= 0) svg.append(frame(rowNumber, at, 1, "frame strong"));
    const below = 4 + text.rows.length * high;
    const step = Math.ceil(22 / wide);
    for (let k = 0; k < most; k += step) svg.append(label(`H${k}`, left + (k + 0.5) * wide, below + 14, { class: "tick", "text-anchor": "middle" }));
    legend(svg, chosen.term, low, top, left, below + 30, Math.min(width - left - 4, most * wide));
  },
  keys: (key, x) => x.moveHead(key),
};

function legend(svg, term, low, high, left, y, wide) {
  const steps = 24;
  for (let k = 0; k < steps; k++) {
    const fill = `fill: ${shade(isLog(term) ? "seq" : "div", k / (steps - 1))}`;
    svg.append(mark("rect", { x: left + (k * wide) / steps, y, width: wide / steps + 0.5, height: 8, style: fill }));
  }
  svg.append(label(number(low), left, y + 22, { class: "tick" }), label(number(high), left + wide, y + 22, { class: "tick", "text-anchor": "end" }));
  if (!isLog(term)) svg.append(label("0", left + wide / 2, y + 22, { class: "tick", "text-anchor": "middle" }));
}

VIEWS.scatter = {
  heads: true,
  title: () => "Bias against diversity",
  caption:
    "Every head is a mark, those of the chosen layer are filled. Both grow with how much a head writes, so marks lie " +
    "near the dashed line, where they are equal; above it net is positive. Click near a mark; ← → move.",
  draw(host, x) {
    const { text, chosen, position, part } = x;
    const { svg, width } = drawing(host, 480, "bias against diversity of every head");
    const [left, right, top, bottom] = [52, width - 10, 10, 432];
    const points = text.heads.map((i) => [i, text.value("diversity", part, i, position), text.value("bias", part, i, position)]);
    const seen = points.filter(([, d, b]) => d > 0 && b > 0);
    if (!seen.length) return nothing(host, "There is no next token here to measure bias against: choose a token of the text, or give a target.");
    const across = axisOf(seen.map(([, d]) => d), left, right, true);
    const up = axisOf(seen.map(([, , b]) => b), bottom, top, true);
    gridlines(svg, up, left, right);
    for (const [value, name] of across.ticks) svg.append(label(name, across.place(value), bottom + 18, { class: "tick", "text-anchor": "middle" }));
    const both = [...seen.map(([, d]) => d), ...seen.map(([, , b]) => b)];
    const ends = [Math.min(...both), Math.max(...both)];
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    svg.append(
      mark("clipPath", { id: clip }, mark("rect", { x: left, y: top, width: right - left, height: bottom - top })),
      mark("line", { x1: across.place(ends[0]), y1: up.place(ends[0]), x2: across.place(ends[1]), y2: up.place(ends[1]), class: "even", "clip-path": `url(#${clip})` }),
      label(`diversity, ${part}, ${UNIT}`, (left + right) / 2, bottom + 38, { class: "name", "text-anchor": "middle" }),
      label(`bias`, left + 6, top + 8, { class: "name" }),
    );
    const inLayer = new Set(text.inRow[x.rowNumber]);
    const order = [...seen].sort(([a], [b]) => inLayer.has(a) - inLayer.has(b) || (a === x.component) - (b === x.component));
    for (const [i, d, b] of order) {
      const kind = i === x.component ? "dot chosen" : inLayer.has(i) ? "dot near" : "dot";
      const at = { cx: across.place(d), cy: up.place(b), r: i === x.component ? 6 : 3.5 };
      svg.append(
        mark(
          "circle",
          { ...at, class: kind, "data-component": text.labels[i], "data-value": b, "data-across": d },
          hover(`${text.labels[i]}\nbias ${number(b)}, diversity ${number(d)}, net ${number(text.value("net", part, i, position))} ${UNIT}`),
        ),
      );
    }
    host.dots = seen.map(([i, d, b]) => [i, across.place(d), up.place(b)]);
  },
  keys(key, x) {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[key];
    if (!by || !x.text.heads.length) return null;
    const here = x.text.heads.indexOf(x.component);
    const count = x.text.heads.length;
    return { component: x.text.labels[x.text.heads[here < 0 ? 0 : (here + by + count) % count]] };
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

VIEWS.attention = {
  heads: true,
  title: (x) => (x.text.components[x.component].head ? `What ${x.name} looks at` : "What a head looks at"),
  caption:
    "The darker a token, the more the chosen head reads of it at the underlined token, where the prediction is made. " +
    "Weights of a row sum to 1 (to less where a model has a sink beside the tokens); they are shown to 1/255.",
  draw(host, x) {
    const { text, position } = x;
    if (text.no_attention) return nothing(host, text.no_attention);
    if (!text.components[x.component].head) return nothing(host, `${x.name} is no head: choose one in the views above to see what it reads.`);
    const weights = text.reads(x.component, position);
    const most = Math.max(...weights, 1e-9);
    const spans = text.tokens.map((token, key) => {
      const span = put("span", { className: key > position ? "token behind" : "token" }, token);
      if (key <= position) {
        span.dataset.key = key;
        span.dataset.value = weights[key];
        span.style.background = shade("seq", 0.44 * (weights[key] / most));
        span.title = `${quoted(token)} at ${key}: ${percent(weights[key])}`;
      }
      if (key === position) span.classList.add("stands");
      return span;
    });
    const order = weights.map((w, k) => [w, k]).sort((a, b) => b[0] - a[0]).slice(0, 5).filter(([w]) => w > 0);
    const said = order.map(([w, k]) => put("span", { className: "chip" }, put("b", {}, quoted(text.tokens[k])), ` ${percent(w)}`));
    host.replaceChildren(
      put("p", { className: "chips" }, "reads most of ", ...said),
      put("div", { className: "strip" }, ...spans.flatMap((s) => (s.textContent.includes("⏎") ? [s, put("br")] : [s]))),
    );
  },
};

VIEWS.promotes = {
  title: (x) => `What ${x.name} says`,
  caption:
    "The next tokens that it raises and lowers most at this position, in logits beyond its mean over the vocabulary. " +
    "The right token is set in bold.",
  draw(host, x) {
    const { text, position } = x;
    const found = text.promoted(x.component, position);
    if (!found) return nothing(host, x.ask() ? "Looking it up …" : "Not on this page: open the explorer in a notebook, where it is looked up.");
    const most = Math.max(...[...found.promotes, ...found.suppresses].map(([, v]) => Math.abs(v)), 1e-9);
    const right = text.next(position);
    const column = (name, pairs) =>
      put(
        "div",
        {},
        put("h3", {}, name),
        ...pairs.map(([word, logit]) =>
          put(
            "div",
            { className: "said", "data-value": logit, "data-word": word },
            put("span", { className: word === right ? "word right" : "word", title: quoted(word) }, quoted(word)),
            put("span", { className: "bar" }, put("i", { style: `width: ${(100 * Math.abs(logit)) / most}%; background: var(--div-${logit < 0 ? 1 : 3})` })),
            put("span", { className: "number" }, signed(logit)),
          ),
        ),
      );
    host.replaceChildren(put("div", { className: "columns" }, column("promotes", found.promotes), column("suppresses", found.suppresses)));
  },
};

VIEWS.duplicates = {
  title: (x) => `Who writes like ${x.name}`,
  caption:
    "Cosine between what two components wrote to the logits, all tokens of this text and the whole vocabulary as one " +
    "vector, without their means: 1 is a duplicate, −1 undoes it. Exact. Click one to choose it.",
  draw(host, x) {
    const { text, component } = x;
    const line = ([i, cosine]) =>
      put(
        "button",
        { type: "button", className: "said", "data-component": text.labels[i], "data-value": cosine },
        put("span", { className: "word plain" }, text.labels[i]),
        put("span", { className: "bar" }, put("i", { style: `width: ${100 * Math.abs(cosine)}%; background: var(--${text.components[i].module})` })),
        put("span", { className: "number" }, number(cosine)),
      );
    const [like, against] = [text.nearest(component, 1), text.nearest(component, -1)];
    const list = (found, otherwise) => (found.length ? found.map(line) : [put("p", { className: "none" }, otherwise)]);
    host.replaceChildren(
      put(
        "div",
        { className: "columns" },
        put("div", {}, put("h3", {}, "most alike"), ...list(like, "none")),
        put("div", {}, put("h3", {}, "most opposed"), ...list(against, "none")),
      ),
    );
  },
};

VIEWS.shares = {
  title: (x) => `The share of ${x.name}`,
  caption:
    "Its own numbers at this position, and its share of the sum over all components of the cut it belongs to. Net has " +
    "both signs, so that shares of it may exceed 100 %.",
  draw(host, x) {
    const { text, part, position, component } = x;
    const head = text.components[component].head;
    const peers = head ? text.heads : text.sublayers;
    const rows = ["net", "bias", "diversity"].map((term) => {
      const value = text.value(term, part, component, position);
      const share = value / text.sum(term, part, component, position);
      const rank = peers.filter((i) => Math.abs(text.value(term, part, i, position)) > Math.abs(value)).length + 1;
      const known = Number.isFinite(value);
      return put(
        "tr",
        { "data-term": term, "data-value": value, "data-share": share },
        ...[term, number(value), percent(share), known ? `${rank} of ${peers.length}` : "–"].map((cell, k) => put(k ? "td" : "th", {}, cell)),
      );
    });
    const logit = text.value("logit", part, component, position);
    rows.push(put("tr", { "data-term": "logit", "data-value": logit }, put("th", {}, "to the right token"), put("td", {}, signed(logit)), put("td", { colSpan: 2 }, "logits beyond its mean")));
    const top = put("tr", {}, ...["", part, "share", "rank by size"].map((cell) => put("th", {}, cell)));
    const cut = head ? `Shares are of all ${text.counts[1]} components of the cut into heads.` : `Shares are of all ${text.counts[0]} sublayers.`;
    host.replaceChildren(put("table", {}, put("thead", {}, top), put("tbody", {}, ...rows)), put("p", { className: "none" }, cut));
  },
};

VIEWS.compare = {
  title: () => "Two pins compared",
  caption:
    "Pin two predictions, of one text or of two, with the buttons above or the keys a and b: the loss, the terms of all " +
    "components together, those of the chosen component, and, along depth, the chosen term at A and at B.",
  draw(host, x) {
    const { chosen, texts, part } = x;
    const pins = chosen.pins.map((pin) => pin && texts[pin[0]] && { text: texts[pin[0]], at: pin[1], number: pin[0] });
    if (!pins.some(Boolean)) return nothing(host, "Nothing is pinned. Choose a token and press a; choose another and press b.");
    const columns = [
      ["loss, nats", (p) => p.text.said("loss", part, p.at)],
      ...["net", "bias", "diversity"].map((term) => [`${term}, mean of components`, (p) => p.text.said(term, part, p.at)]),
      ...["net", "bias", "diversity"].map((term) => [
        `${term} of ${x.name}`,
        (p) => (p.text.index.has(x.name) ? p.text.value(term, part, p.text.index.get(x.name), p.at) : NaN),
      ]),
    ];
    if (pins[0] && pins[1] && pins[0].number !== pins[1].number) {
      const mean = (p) => {
        const known = Array.from(p.text.values.loss).filter(Number.isFinite);
        return known.reduce((a, b) => a + b, 0) / known.length;
      };
      columns.push(["mean loss of the text, nats", mean]);
    }
    const cell = (value) => put("td", { "data-value": value }, number(value));
    const rows = columns.map(([name, of]) => {
      const [a, b] = pins.map((p) => (p ? of(p) : NaN));
      return put("tr", { "data-row": name }, put("th", {}, name), cell(a), cell(b), put("td", { "data-value": b - a }, signed(b - a)));
    });
    const head = pins.map((p, n) =>
      put("th", {}, put("sup", { className: `pin pin-${"ab"[n]}` }, "AB"[n]), p ? ` ${quoted(p.text.tokens[p.at])} → ${quoted(p.text.next(p.at))}` : " not set"),
    );
    const table = put("table", {}, put("thead", {}, put("tr", {}, put("th", {}, part), ...head, put("th", {}, "B − A"))), put("tbody", {}, ...rows));
    const chart = put("div", { className: "chart" });
    host.replaceChildren(put("div", { className: "side" }, table, chart));
    this.lines(chart, x, pins);
  },
  lines(host, x, pins) {
    const { chosen } = x;
    const { svg, width } = drawing(host, 230, `${chosen.term} at the pins`);
    const [left, right, top, bottom] = [52, width - 8, 22, 200];
    const order = x.text.sublayers;
    const at = (p, i) => (p.text.index.has(x.text.labels[i]) ? p.text.value(chosen.term, chosen.part, p.text.index.get(x.text.labels[i]), p.at) : NaN);
    const values = pins.flatMap((p) => (p ? order.map((i) => at(p, i)) : []));
    const scale = axisOf(values, bottom, top, isLog(chosen.term));
    const step = (right - left) / order.length;
    svg.append(label(`${chosen.term}, ${chosen.part}, ${UNIT}`, left, 12, { class: "name" }));
    gridlines(svg, scale, left, right);
    pins.forEach((p, n) => {
      if (!p) return;
      order.forEach((i, k) => {
        const value = at(p, i);
        if (!Number.isFinite(value) || (isLog(chosen.term) && value <= 0)) return;
        const dot = { cx: left + (k + 0.5) * step, cy: scale.place(value), r: Math.max(2, Math.min(4.5, step / 2.2)) };
        svg.append(mark("circle", { ...dot, class: `at-${"ab"[n]}`, "data-component": x.text.labels[i], "data-value": value, "data-pin": "AB"[n] }, hover(`${x.text.labels[i]} at ${"AB"[n]}: ${number(value)}`)));
      });
    });
    const rows = [...new Set(order.map((i) => x.text.components[i].row).filter(Boolean))];
    const every = Math.ceil(rows.length / Math.max(3, Math.floor(width / 80)));
    rows.forEach((row, n) => {
      if (n % every) return;
      const k = order.findIndex((i) => x.text.components[i].row === row);
      svg.append(label(row, left + (k + 1) * step, bottom + 18, { class: "tick", "text-anchor": "middle" }));
    });
  },
};

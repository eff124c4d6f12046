// The text, colored by its predictions or by a head's attention, and the attention of all heads.

// The tokens of a text as spans, made once for each text; one of spaces alone shows them. `shown` has what a token wears:
// its kind, color, hover and data. The selected one is of the kind `selected`.
function strip(box, { text, position }, selected, shown) {
  if (box.text !== text) {
    box.text = text;
    box.spans = text.tokens.map((token) => put("span", {}, token.trim() ? token : token.replaceAll(" ", "␣")));
    box.replaceChildren(...box.spans.flatMap((span) => (span.textContent.includes("⏎") ? [span, put("br")] : [span])));
  }
  box.spans.forEach((span, p) => {
    const { kind = "", color = "", title = "", ...data } = shown(p);
    const className = ["token", kind, p === position ? selected : ""].filter(Boolean).join(" ");
    const worn = JSON.stringify([className, color, title, data]);
    if (span.worn === worn) return; // what does not change costs nothing
    Object.assign(span, { worn, className, title });
    span.style.background = color;
    for (const [name, value] of Object.entries(data)) {
      if (value === undefined) delete span.dataset[name];
      else span.dataset[name] = value;
    }
  });
}

// A text whose tokens wear the number of the prediction made after them.
VIEWS.tokens = {
  title: (x) => (x.text.written ? "The text; generated tokens are underlined" : "The text"),
  caption: (x) =>
    "Every token is colored by the prediction made after it" +
    (x.chosen.color === "loss" ? "; stronger: higher loss" : `, by ${x.name}: gold above the zero baseline, purple below`) +
    ". Click a token, or press ← →: all views below show the prediction at that position.",
  draw(host, x) {
    const { text, position } = x;
    const isLoss = x.chosen.color === "loss";
    const values = text.tokens.map((_, p) => x.colorValue(p));
    const most = quantile(values.map(Math.abs), 0.98) || 1;
    strip(host, x, "chosen", (p) => {
      const share = clamp(values[p] / most, -1, 1);
      const color = isLoss ? shade("seq", UNDER * share) : shade("div", 0.5 + 0.14 * share);
      const next = text.tokens[p + 1] ?? text.next(p);
      const comes = next === null ? "" : ` comes ${said(next)}`;
      return {
        ...{ position: p, value: values[p], kind: p >= text.length - text.written ? "written" : "" },
        color: Number.isFinite(values[p]) ? color : "",
        title: `position ${p}: after ${said(text.tokens[p])}${comes}\n${isLoss ? "loss" : x.name} ${number(values[p])}`,
      };
    });
    // Only within the strip, the page itself stays where it is; after all is drawn, as it lays the page out.
    const here = host.spans[position]; // another text may be drawn before the frame
    requestAnimationFrame(() => {
      const up = here.offsetTop - host.offsetTop;
      if (up < host.scrollTop || up > host.scrollTop + host.clientHeight - 30) host.scrollTop = up - 60;
    });
  },
  keys: (key, x) => x.move(key),
  pick: (target) => {
    const token = target.closest("[data-position]");
    return token && { position: +token.dataset.position };
  },
};

// Why a text has no attention to show, or not yet.
const unread = (text) => text.no_attention || (text.attention ? "" : "Reading the attention …");

VIEWS.attention = {
  heads: true,
  title: (x) => (x.isHead ? `Attention of ${x.name} from the selected token` : "Attention of a head"),
  caption:
    "The stronger the color, the larger the weight of the selected head on it, from the underlined token. Weights of a row " +
    "sum to 1, or less in models that have a sink next to the tokens; they are rounded to 1/255.",
  draw(host, x) {
    const { text, position } = x;
    if (unread(text)) return nothing(host, unread(text));
    if (!x.isHead) return nothing(host, "Select a head in the views above to see which tokens it attends to.", "none small");
    const head = text.heads.indexOf(x.component);
    const weights = Array.from({ length: position + 1 }, (_, key) => text.weight(head, position, key));
    const most = Math.max(...weights, 1e-9);
    if (!host.box?.isConnected) {
      Object.assign(host, { chips: put("p", { className: "chips" }), box: put("div", { className: "strip" }) });
      host.replaceChildren(host.chips, host.box);
    }
    strip(host.box, x, "stands", (key) => {
      const value = weights[key]; // none after the position
      if (value === undefined) return { kind: "after", key: undefined, value };
      const title = `${said(text.tokens[key])} at ${key}: ${percent(value)}`;
      return { key, value, title, color: value ? shade("seq", UNDER * (value / most)) : "" };
    });
    const order = weights.map((w, k) => [w, k]).sort((a, b) => b[0] - a[0]);
    const first = order.slice(0, 5).filter(([w]) => w > 0);
    const chips = first.map(([w, k]) => chip(put("b", {}, quoted(text.tokens[k])), ` ${percent(w)}`));
    host.chips.replaceChildren("attends most to ", ...chips);
  },
};

// The pixels of a scale, from 0 to 255.
function ramp(host, scale) {
  const style = getComputedStyle(host);
  const stops = [0, 1, 2, 3, 4].map((n) => {
    const hex = style.getPropertyValue(`--${scale}-${n}`).trim();
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) || 0);
  });
  return Array.from({ length: 256 }, (_, v) => {
    const at = (v / 255) * 4;
    const low = Math.min(Math.floor(at), 3);
    const [r, g, b] = stops[low].map((c, n) => Math.round(c + (at - low) * (stops[low + 1][n] - c)));
    return (255 << 24) | (b << 16) | (g << 8) | r; // little-endian, as all machines with browsers are
  });
}

VIEWS.glance = {
  heads: true,
  title: (x) => `Attention of all heads, from and to ${said(x.text.tokens[x.position])}`,
  caption:
    "A row for every head, the first layer at the bottom, a column for every token. Up to the framed column: weights " +
    "from the selected token on earlier ones; right of it: weights from later tokens on it. Click a row to select its head.",
  draw(host, x) {
    const { text, position } = x;
    if (unread(text)) return nothing(host, unread(text));
    const count = text.heads.length;
    const names = text.length <= 48 ? 74 : 4;
    const tall = Math.max(count, Math.min(430, count * 14));
    const { svg, width } = drawing(host, tall + names + 20, "attention of all heads");
    const [left, top] = [38, 16];
    const [wide, high] = [(width - left - 4) / text.length, tall / count];
    const end = left + wide * text.length;
    const canvas = this.image(x);
    canvas.style = `position: absolute; left: ${left}px; top: ${top}px; width: ${end - left}px; height: ${tall}px`;
    svg.append(rect(left + position * wide - 1, top - 1, wide + 2, tall + 2, "frame"));
    const y = top + (count - 1 - text.heads.indexOf(x.component)) * high - Math.max(0, 3 - high) / 2;
    // Marks at both ends: a frame would hide its neighbors.
    for (const at of x.isHead ? [left - 7, end + 1] : []) svg.append(rect(at, y, 6, Math.max(high, 3), "own"));
    const every = Math.ceil(text.rows.length / (tall / 14));
    text.inRow.forEach((heads, r) => {
      const middle = text.heads.indexOf(heads[0]) + heads.length / 2;
      if (r % every === 0) svg.append(label(text.rows[r], left - 8, top + (count - middle) * high + 4, "end"));
    });
    svg.append(label("from the selected token", left, 10));
    if (position + 1 < text.length && width > 300) svg.append(label("from later tokens", end, 10, "end"));
    const apart = Math.ceil(12 / wide);
    (names > 4 ? text.tokens : []).forEach((token, t) => {
      if (t % apart && t !== position) return;
      const [cx, cy] = [left + (t + 0.5) * wide + 4, top + tall + 6];
      const name = label([...quoted(token)].slice(0, 10).join(""), cx, cy + 4, "end", t === position ? "tick on" : "tick");
      name.setAttribute("transform", `rotate(-60 ${cx} ${cy})`);
      svg.append(name);
    });
    host.replaceChildren(put("div", { className: "canvas" }, canvas, svg));
    host.at = (event) => {
      const frame = canvas.getBoundingClientRect();
      const t = Math.floor((event.clientX - frame.left) / wide);
      const head = count - 1 - Math.floor((event.clientY - frame.top) / high);
      return t >= 0 && t < text.length && head >= 0 && head < count ? { t, head } : null;
    };
    host.onmousemove = (event) => {
      const at = host.at(event);
      if (!at) return;
      const [key, query] = [at.t, position].sort((a, b) => a - b);
      const name = text.labels[text.heads[at.head]];
      svg.setAttribute("aria-description", name);
      host.title = `${name} at ${said(text.tokens[query])} attends to ${said(text.tokens[key])}: ${percent(text.weight(at.head, query, key))}`;
    };
  },
  // A pixel for each head and token.
  image({ text, position, ramp }) {
    const [width, height] = [text.length, text.heads.length];
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    for (let head = 0; head < height; head++)
      for (let t = 0; t < width; t++) pixels[(height - 1 - head) * width + t] = ramp[Math.round(255 * text.weight(head, position, t))];
    const canvas = put("canvas", { width, height });
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  },
  keys: (key, x) => x.moveHead(key),
  pick(target, x, event) {
    const at = target.closest(".host").at?.(event);
    return at && { component: x.text.labels[x.text.heads[at.head]] };
  },
};

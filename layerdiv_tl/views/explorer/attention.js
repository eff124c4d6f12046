// Attention weights: of the selected head in the text, and of all heads.

function attentionMissing(host, x) {
  const { text } = x;
  if (text.attention && !text.no_attention) return false;
  nothing(host, text.no_attention || "Reading the attention …");
  return true;
}

VIEWS.attention = {
  heads: true,
  title: (x) => (x.text.components[x.component].head ? `Attention of ${x.name} from the selected token` : "Attention of a head"),
  caption:
    "The darker a token, the larger the weight of the selected head on it, from the underlined token. Weights of a row " +
    "sum to 1, or less in models that have a sink next to the tokens; they are rounded to 1/255.",
  draw(host, x) {
    const { text, position } = x;
    if (attentionMissing(host, x)) return;
    const head = text.heads.indexOf(x.component);
    if (head < 0) return nothing(host, `${x.name} is not a head: select one in the views above.`);
    const weights = Array.from({ length: position + 1 }, (_, key) => text.weight(head, position, key));
    const most = Math.max(...weights, 1e-9);
    if (host.shown !== text || !host.strip?.isConnected) {
      const { spans, lines } = tokenSpans(text);
      const [chips, strip] = [put("p", { className: "chips" }), put("div", { className: "strip" }, ...lines)];
      Object.assign(host, { shown: text, spans, chips, strip });
      host.replaceChildren(chips, strip);
    }
    host.spans.forEach((span, key) => {
      const weight = weights[key]; // none after the position
      // What does not change costs nothing.
      if (host.drawn?.[key] === weight && host.most === most && span.dataset.key) return;
      span.classList.toggle("after", weight === undefined);
      if (weight === undefined) {
        delete span.dataset.key;
        span.removeAttribute("style");
        span.title = "";
        return;
      }
      Object.assign(span.dataset, { key, value: weight });
      span.style.background = weight ? shade("seq", UNDER * (weight / most)) : "";
      span.title = `${said(text.tokens[key])} at ${key}: ${percent(weight)}`;
    });
    [host.drawn, host.most] = [weights, most];
    host.querySelector(".stands")?.classList.remove("stands");
    host.spans[position].classList.add("stands");
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
    if (attentionMissing(host, x)) return;
    const count = text.heads.length;
    const names = text.length <= 48 ? 74 : 4;
    const tall = Math.max(count, Math.min(430, count * 14));
    const { svg, width } = drawing(host, tall + names + 20, "attention of all heads");
    const [left, top] = [38, 16];
    const [wide, high] = [(width - left - 4) / text.length, tall / count];
    const end = left + wide * text.length;
    const canvas = this.image(x);
    canvas.style = `position: absolute; left: ${left}px; top: ${top}px; width: ${end - left}px; height: ${tall}px`;
    const y = (head) => top + (count - 1 - head) * high;
    svg.append(rect(left + position * wide - 1, top - 1, wide + 2, tall + 2, "frame"));
    const own = text.heads.indexOf(x.component);
    // Marks at both ends: a frame would hide its neighbors.
    for (const at of own >= 0 ? [left - 7, end + 1] : [])
      svg.append(rect(at, y(own) - Math.max(0, 3 - high) / 2, 6, Math.max(high, 3), "own"));
    const every = Math.ceil(text.rows.length / (tall / 14));
    let head = 0;
    text.inRow.forEach((heads, r) => {
      if (r % every === 0) svg.append(label(text.rows[r], left - 8, y(head + heads.length / 2 - 1) + 4, "end"));
      head += heads.length;
    });
    svg.append(label("from the selected token", left, 10));
    if (position + 1 < text.length && width > 300) svg.append(label("from later tokens", end, 10, "end"));
    if (names > 4) {
      const apart = Math.ceil(12 / wide);
      text.tokens.forEach((token, t) => {
        if (t % apart && t !== position) return;
        const [cx, cy] = [left + (t + 0.5) * wide + 4, top + tall + 6];
        const name = label([...quoted(token)].slice(0, 10).join(""), cx, cy + 4, "end", t === position ? "tick on" : "tick");
        name.setAttribute("transform", `rotate(-60 ${cx} ${cy})`);
        svg.append(name);
      });
    }
    host.replaceChildren(put("div", { className: "canvas" }, canvas, svg));
    host.at = (event) => {
      const frame = canvas.getBoundingClientRect();
      const t = Math.floor((event.clientX - frame.left) / wide);
      const at = count - 1 - Math.floor((event.clientY - frame.top) / high);
      return t >= 0 && t < text.length && at >= 0 && at < count ? { t, head: at } : null;
    };
    host.onmousemove = (event) => {
      const at = host.at(event);
      if (!at) return;
      const [query, key] = at.t <= position ? [position, at.t] : [at.t, position];
      const name = text.labels[text.heads[at.head]];
      svg.setAttribute("aria-description", name);
      host.title = `${name} at ${said(text.tokens[query])} attends to ${said(text.tokens[key])}: ${percent(text.weight(at.head, query, key))}`;
    };
  },
  // A pixel for each head and token.
  image({ text, position, ramp }) {
    const count = text.heads.length;
    const image = new ImageData(text.length, count);
    const pixels = new Uint32Array(image.data.buffer);
    const weights = (text.length * (text.length + 1)) / 2;
    for (let head = 0; head < count; head++) {
      const row = (count - 1 - head) * text.length;
      for (let t = 0; t < text.length; t++) {
        const [query, key] = t <= position ? [position, t] : [t, position];
        pixels[row + t] = ramp[text.attention[head * weights + (query * (query + 1)) / 2 + key]];
      }
    }
    const canvas = put("canvas", { width: text.length, height: count });
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  },
  keys: (key, x) => x.moveHead(key),
  pick(target, x, event) {
    const at = target.closest(".host").at?.(event);
    return at && { component: x.text.labels[x.text.heads[at.head]] };
  },
};

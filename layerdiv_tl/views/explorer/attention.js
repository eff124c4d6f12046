// The text, colored by its predictions, and the attention pattern of the selected head.

// A text as spans, made once for each text; a token of spaces alone shows them. `shown` has what a token wears: its kind,
// color, hover and data.
function strip(box, { text }, shown) {
  if (box.text !== text) {
    box.text = text;
    box.spans = text.tokens.map((token) => put("span", {}, token.trim() ? token : token.replaceAll(" ", "␣")));
    box.replaceChildren(...box.spans.flatMap((span) => (span.textContent.includes("⏎") ? [span, put("br")] : [span])));
  }
  box.spans.forEach((span, p) => {
    const { kind, color, title, ...data } = shown(p);
    const worn = JSON.stringify([kind, color, title, data]);
    if (span.worn === worn) return; // what does not change costs nothing
    Object.assign(span, { worn, className: `token ${kind}`, title });
    span.style.background = color;
    for (const [name, value] of Object.entries(data)) span.dataset[name] = value;
  });
}

// A text whose tokens wear the number of the prediction made after them.
VIEWS.tokens = {
  title: () => "The text",
  help:
    "Click a token, or press ← →: all views show the prediction after it. Click a component anywhere to select it. The color is " +
    "the loss of the token that follows, or the selected component's measure.",
  draw(host, x) {
    const { text, position } = x;
    const isLoss = x.chosen.color === "loss";
    const values = text.tokens.map((_, p) => x.colorValue(p));
    const most = quantile(values.map(Math.abs), 0.98) || 1;
    strip(host, x, (p) => {
      const share = clamp(values[p] / most, -1, 1);
      const color = isLoss ? shade("seq", UNDER * share) : shade("div", 0.5 + 0.14 * share);
      const comes = text.isKnown(p) ? ` comes ${said(text.answers(p)[0].word)}` : "";
      return {
        kind: p === position ? "chosen" : "",
        color: Number.isFinite(values[p]) ? color : "",
        title: `position ${p}: after ${said(text.tokens[p])}${comes}\n${isLoss ? "loss" : x.name} ${number(values[p])}`,
        ...{ position: p, value: values[p] },
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

VIEWS.attention = {
  heads: true,
  title: (x) => (x.isHead ? `Attention pattern of ${x.name}` : "Attention pattern of a head"),
  help:
    "A row per token that attends, a column per token that it attends to. The framed row is the selected token's, whose largest weights " +
    "are above it. A row sums to 1, or less in models with a sink. Click a row to select its token; arrow keys choose a head.",
  draw(host, x) {
    const { text, position } = x;
    if (!text.attention) return nothing(host, text.no_attention || "Reading the attention …");
    if (!x.isHead) return nothing(host, "Select a head to see which tokens it attends to.");
    const [head, n] = [text.heads.indexOf(x.component), text.length];
    const weights = Array.from({ length: position + 1 }, (_, key) => [text.weight(head, position, key), key]);
    const first = weights.sort((a, b) => b[0] - a[0]).slice(0, 5).filter(([weight]) => weight > 0);
    const chips = first.map(([weight, key]) => {
      const known = { "data-key": key, "data-value": weight };
      return put("span", { className: "chip", ...known }, put("b", {}, quoted(text.tokens[key])), ` ${percent(weight)}`);
    });
    const names = n <= 32 ? 86 : 4;
    const side = Math.min(widthOf(host) - names - 4, 430);
    const cell = side / n;
    const { svg } = drawing(host, side + 8, `attention pattern of ${x.name}`);
    const canvas = this.image(x, head);
    canvas.style.cssText = `left: ${names}px; top: 3px; width: ${side}px; height: ${side}px`;
    svg.append(rect(names, 3, side, side, "frame"), rect(names - 1, 2 + position * cell, side + 2, cell + 2, "frame strong"));
    const every = Math.ceil(13 / cell);
    (names > 4 ? text.tokens : []).forEach((token, p) => {
      const name = [...quoted(token)].slice(0, 11).join("");
      if (p % every === 0 || p === position) svg.append(label(name, names - 6, 7 + (p + 0.5) * cell, "end", p === position ? "tick on" : "tick"));
    });
    host.replaceChildren(put("p", { className: "chips" }, "attends to ", ...chips), put("div", { className: "canvas" }, canvas, svg));
    host.at = (event) => {
      const box = canvas.getBoundingClientRect();
      const [key, query] = [event.clientX - box.left, event.clientY - box.top].map((at) => Math.floor(at / cell));
      return query >= 0 && query < n && key < n ? { query, key } : null;
    };
    host.onmousemove = (event) => {
      const { query, key } = host.at(event) ?? { query: 0, key: 1 };
      const weight = percent(text.weight(head, query, key));
      host.title = key < 0 || key > query ? "" : `${said(text.tokens[query])} attends to ${said(text.tokens[key])}: ${weight}`;
    };
  },
  // A pixel for each pair of tokens, more opaque for a larger weight.
  image({ text, attentionColor }, head) {
    const n = text.length;
    const image = new ImageData(n, n);
    const color = [1, 3, 5].map((at) => parseInt(attentionColor.slice(at, at + 2), 16) || 0);
    for (let query = 0; query < n; query++)
      for (let key = 0; key <= query; key++) image.data.set([...color, Math.round(255 * text.weight(head, query, key))], 4 * (query * n + key));
    const canvas = put("canvas", { width: n, height: n });
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  },
  keys: (key, x) => x.moveHead(key),
  pick(target, x, event) {
    const at = target.closest(".host").at?.(event);
    return at && { position: at.query };
  },
};

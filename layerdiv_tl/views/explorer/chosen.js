// The views of what is chosen: what it attends to, promotes, resembles and adds, and two pins compared.

VIEWS.attention = {
  heads: true,
  title: (x) => (x.text.components[x.component].head ? `What ${x.name} looks at` : "What a head looks at"),
  caption:
    "The darker a token, the more the chosen head reads of it at the underlined token, where the prediction is made. " +
    "Weights of a row sum to 1 (to less where a model has a sink next to the tokens); they are shown to 1/255.",
  draw(host, x) {
    const { text, position } = x;
    if (text.no_attention) return nothing(host, text.no_attention);
    if (!text.components[x.component].head)
      return nothing(host, `${x.name} is not a head: choose one in the views above to see what it reads.`);
    const weights = text.attentionTo(x.component, position);
    const most = Math.max(...weights, 1e-9);
    const spans = text.tokens.map((token, key) => {
      const span = put("span", { className: key > position ? "token after" : "token" }, token);
      if (key <= position) {
        span.dataset.key = key;
        span.dataset.value = weights[key];
        span.style.background = shade("seq", 0.44 * (weights[key] / most));
        span.title = `${quoted(token)} at ${key}: ${percent(weights[key])}`;
      }
      if (key === position) span.classList.add("stands");
      return span;
    });
    const order = weights
      .map((w, k) => [w, k])
      .sort((a, b) => b[0] - a[0])
      .slice(0, 5)
      .filter(([w]) => w > 0);
    const chips = order.map(([w, k]) =>
      put("span", { className: "chip" }, put("b", {}, quoted(text.tokens[k])), ` ${percent(w)}`),
    );
    host.replaceChildren(
      put("p", { className: "chips" }, "reads most of ", ...chips),
      put("div", { className: "strip" }, ...spans.flatMap((s) => (s.textContent.includes("⏎") ? [s, put("br")] : [s]))),
    );
  },
};

VIEWS.promotes = {
  title: (x) => `What ${x.name} promotes`,
  caption:
    "The next tokens that it raises and lowers most at this position, in logits beyond its mean over the vocabulary. " +
    "The right token is set in bold.",
  draw(host, x) {
    const { text, position } = x;
    const promoted = text.promoted(x.component, position);
    if (!promoted)
      return nothing(
        host,
        x.ask() ? "Looking it up …" : "Not on this page: open the explorer in a notebook, where it is looked up.",
      );
    const most = Math.max(...[...promoted.promotes, ...promoted.suppresses].map(([, v]) => Math.abs(v)), 1e-9);
    const right = text.next(position);
    const column = (name, pairs) =>
      put(
        "div",
        {},
        put("h3", {}, name),
        ...pairs.map(([word, logit]) =>
          put(
            "div",
            { className: "entry", "data-value": logit, "data-word": word },
            put("span", { className: word === right ? "word right" : "word", title: quoted(word) }, quoted(word)),
            put(
              "span",
              { className: "bar" },
              put("i", {
                style: `width: ${(100 * Math.abs(logit)) / most}%; background: var(--div-${logit < 0 ? 1 : 3})`,
              }),
            ),
            put("span", { className: "number" }, signed(logit)),
          ),
        ),
      );
    host.replaceChildren(
      put("div", { className: "columns" }, column("promotes", promoted.promotes), column("suppresses", promoted.suppresses)),
    );
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
        { type: "button", className: "entry", "data-component": text.labels[i], "data-value": cosine },
        put("span", { className: "word plain" }, text.labels[i]),
        put(
          "span",
          { className: "bar" },
          put("i", { style: `width: ${100 * Math.abs(cosine)}%; background: var(--${text.components[i].module})` }),
        ),
        put("span", { className: "number" }, number(cosine)),
      );
    const [like, against] = [text.nearest(component, 1), text.nearest(component, -1)];
    const list = (neighbors, otherwise) => (neighbors.length ? neighbors.map(line) : [put("p", { className: "none" }, otherwise)]);
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
        ...[term, number(value), percent(share), known ? `${rank} of ${peers.length}` : "–"].map((cell, k) =>
          put(k ? "td" : "th", {}, cell),
        ),
      );
    });
    const logit = text.value("logit", part, component, position);
    rows.push(
      put(
        "tr",
        { "data-term": "logit", "data-value": logit },
        put("th", {}, "to the right token"),
        put("td", {}, signed(logit)),
        put("td", { colSpan: 2 }, "logits beyond its mean"),
      ),
    );
    const top = put("tr", {}, ...["", part, "share", "rank by size"].map((cell) => put("th", {}, cell)));
    const cut = head
      ? `Shares are of all ${text.counts[1]} components of the cut into heads.`
      : `Shares are of all ${text.counts[0]} sublayers.`;
    host.replaceChildren(
      put("table", {}, put("thead", {}, top), put("tbody", {}, ...rows)),
      put("p", { className: "none" }, cut),
    );
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
    if (!pins.some(Boolean))
      return nothing(host, "Nothing is pinned. Choose a token and press a; choose another and press b.");
    const columns = [
      ["loss, nats", (p) => p.text.colorValue("loss", part, p.at)],
      ...["net", "bias", "diversity"].map((term) => [
        `${term}, mean of components`,
        (p) => p.text.colorValue(term, part, p.at),
      ]),
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
      return put(
        "tr",
        { "data-row": name },
        put("th", {}, name),
        cell(a),
        cell(b),
        put("td", { "data-value": b - a }, signed(b - a)),
      );
    });
    const head = pins.map((p, n) =>
      put(
        "th",
        {},
        put("sup", { className: `pin pin-${"ab"[n]}` }, "AB"[n]),
        p ? ` ${quoted(p.text.tokens[p.at])} → ${quoted(p.text.next(p.at))}` : " not set",
      ),
    );
    const table = put(
      "table",
      {},
      put("thead", {}, put("tr", {}, put("th", {}, part), ...head, put("th", {}, "B − A"))),
      put("tbody", {}, ...rows),
    );
    const chart = put("div", { className: "chart" });
    host.replaceChildren(put("div", { className: "side" }, table, chart));
    this.lines(chart, x, pins);
  },
  lines(host, x, pins) {
    const { chosen } = x;
    const { svg, width } = drawing(host, 230, `${chosen.term} at the pins`);
    const [left, right, top, bottom] = [52, width - 8, 22, 200];
    const order = x.text.sublayers;
    const at = (p, i) =>
      p.text.index.has(x.text.labels[i])
        ? p.text.value(chosen.term, chosen.part, p.text.index.get(x.text.labels[i]), p.at)
        : NaN;
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
        svg.append(
          mark(
            "circle",
            {
              ...dot,
              class: `at-${"ab"[n]}`,
              "data-component": x.text.labels[i],
              "data-value": value,
              "data-pin": "AB"[n],
            },
            hover(`${x.text.labels[i]} at ${"AB"[n]}: ${number(value)}`),
          ),
        );
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

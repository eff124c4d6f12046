// The views of what is chosen: what it promotes, what writes like it, all its numbers, and two pins compared.

VIEWS.promotes = {
  title: (x) => `What ${x.name} promotes`,
  caption:
    "The next tokens that it raises and lowers most at this position, in logits beyond its mean over the vocabulary. " +
    "The target is set in bold.",
  draw(host, x) {
    const { text, position } = x;
    const promoted = text.promoted(x.component, position);
    if (promoted === false && !x.live)
      return nothing(host, `Not on this page, which has it for the components that add most to the answer after each token: ${x.name} is not among them.`);
    if (!promoted)
      return nothing(host, x.ask() ? "Looking it up …" : "Not on this page: open the explorer in a notebook, where it is looked up.");
    const most = Math.max(...[...promoted.promotes, ...promoted.suppresses].map(([, v]) => Math.abs(v)), 1e-9);
    const right = x.answer.word;
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
    const line = ([i, cosine]) => entry(x, i, cosine, cosine, `var(--${text.components[i].module})`);
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

VIEWS.numbers = {
  title: (x) => `All numbers of ${x.name}`,
  caption: (x) =>
    `Every measure of it after ${quoted(x.text.tokens[x.position])}, beside that of a component that writes nothing. Its rank is ` +
    `by the distance between the two, among all ${x.text.components[x.component].head ? "heads" : "sublayers"}.`,
  draw(host, x) {
    const { text, component, measured } = x;
    const head = text.components[component].head;
    const peers = head ? text.heads : text.sublayers;
    const rows = Object.entries(MEASURES).map(([measure, { says, unit }]) => {
      const value = measured.value(measure, component);
      const size = (i) => Math.abs(measured.beyond(measure, i));
      const rank = peers.filter((i) => size(i) > size(component)).length + 1;
      const cells = [`${says(x)}, ${unit}`, number(value), number(measured.zero(measure, head ? 1 : 0)), `${rank} of ${peers.length}`];
      return put(
        "tr",
        { "data-measure": measure, "data-value": value },
        ...cells.map((cell, k) => put(k ? "td" : "th", k ? {} : { scope: "row" }, cell)),
      );
    });
    const top = put("tr", {}, put("td", {}), ...["here", "nothing", "rank"].map((cell) => put("th", { scope: "col" }, cell)));
    host.replaceChildren(put("table", {}, put("thead", {}, top), put("tbody", {}, ...rows)));
  },
};

VIEWS.compare = {
  title: () => "Two pins compared",
  caption:
    "Pin two predictions, of one text or of two, with the buttons above or the keys a and b: the loss, all numbers of " +
    "the chosen component, and, along depth, what components are drawn by, at A and at B.",
  draw(host, x) {
    const { chosen, texts } = x;
    const pins = chosen.pins.map((pin) => pin && texts[pin[0]] && { text: texts[pin[0]], at: pin[1], number: pin[0] });
    if (!pins.some(Boolean))
      return nothing(host, "Nothing is pinned. Choose a token and press a; choose another and press b.");
    const at = pins.map((p) => p && x.measuredAt(p.text, p.at));
    const columns = [
      ["loss, nats", (p) => p.text.values.loss[p.at]],
      ...Object.entries(MEASURES).map(([measure, { name, unit }]) => [
        `${name} of ${x.name}, ${unit}`,
        (p, n) => (p.text.index.has(x.name) ? at[n].value(measure, p.text.index.get(x.name)) : NaN),
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
      const [a, b] = pins.map((p, n) => (p ? of(p, n) : NaN));
      return put(
        "tr",
        { "data-row": name },
        put("th", { scope: "row" }, name),
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
        p ? ` ${quoted(p.text.tokens[p.at])} → ${quoted(p.text.answer(chosen.target, p.at).word)}` : " not set",
      ),
    );
    const table = put(
      "table",
      {},
      put("thead", {}, put("tr", {}, put("td", {}), ...head, put("th", {}, "B − A"))),
      put("tbody", {}, ...rows),
    );
    const chart = put("div", { className: "chart" });
    host.replaceChildren(put("div", { className: "side" }, table, chart));
    this.lines(chart, x, pins, at);
  },
  lines(host, x, pins, measured) {
    const { chosen } = x;
    const { measure } = chosen;
    const { svg, width } = drawing(host, 230, `${MEASURES[measure].name} at the pins`);
    const [left, right, top, bottom] = [52, width - 8, 22, 200];
    const order = x.text.sublayers;
    const at = (n, i) => {
      const own = pins[n].text.index.get(x.text.labels[i]);
      return own === undefined ? NaN : measured[n].value(measure, own);
    };
    const values = pins.flatMap((p, n) => (p ? order.map((i) => at(n, i)) : []));
    const scale = axisOf(values, bottom, top);
    const step = (right - left) / order.length;
    svg.append(label(`${MEASURES[measure].name}, ${MEASURES[measure].unit}`, left, 12, { class: "name" }));
    gridlines(svg, scale, left, right);
    pins.forEach((p, n) => {
      if (!p) return;
      order.forEach((i, k) => {
        const value = at(n, i);
        if (!Number.isFinite(value)) return;
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

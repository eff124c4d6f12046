// The prediction after every layer: the logit lens.

VIEWS.answers = {
  title: () => "Prediction after every layer (logit lens)",
  caption: (x) =>
    "The likeliest next token when the final norm and the unembedding read the stream after a layer, the last layer on " +
    "top; darker is more probable, bold is the model's own prediction" +
    `${x.text.lens.length < x.layers ? "; a long text has some of the layers" : ""}. Click a token, or press ← →, to go there.`,
  draw(host, x) {
    const { text, position } = x;
    const { lens_word: word, lens_probability: probability } = text.values;
    const width = Math.max(host.wide ?? host.clientWidth, 200);
    const count = Math.max(2, Math.min(text.length, Math.floor((width - 46) / 84)));
    const first = Math.max(0, Math.min(position - Math.floor(count / 2), text.length - count));
    const columns = Array.from({ length: count }, (_, k) => first + k);
    const last = text.lens.length - 1;
    const head = columns.map((p) =>
      put("th", { scope: "col", "data-position": p, className: p === position ? "on" : "" }, quoted(text.tokens[p])),
    );
    const rows = text.lens.map((name, row) =>
      put(
        "tr",
        {},
        put("th", { scope: "row" }, name.split(".")[0]),
        ...columns.map((p) => {
          const at = row * text.length + p;
          const said = text.words[word[at]];
          const final = word[at] === word[last * text.length + p];
          return put(
            "td",
            {
              "data-position": p,
              "data-row": name,
              "data-value": probability[at],
              className: `${final ? "final" : ""} ${p === position ? "on" : ""}`,
              title: `after ${quoted(text.tokens[p])}, ${name}: ${quoted(said)} ${percent(probability[at])}`,
              style: `background: ${shade("seq", UNDER * probability[at])}`,
            },
            quoted(said),
          );
        }),
      ),
    );
    host.replaceChildren(
      put("table", { className: "lens" }, put("thead", {}, put("tr", {}, put("td", {}, "after"), ...head)), put("tbody", {}, ...rows.reverse())),
    );
  },
  keys: (key, x) => x.move(key),
  pick: (target) => {
    const cell = target.closest("[data-position]");
    return cell && { position: +cell.dataset.position };
  },
};

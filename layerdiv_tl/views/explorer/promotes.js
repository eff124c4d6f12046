// The tokens that the selected component promotes and suppresses.

VIEWS.promotes = {
  title: (x) => `Tokens that ${x.name} promotes`,
  caption:
    "The tokens whose logit it raises and lowers most at this position, relative to its mean over the vocabulary. " +
    "The target is in bold.",
  draw(host, x) {
    const { text, position } = x;
    const promoted = text.promoted(x.component, position);
    if (promoted === false && !x.live)
      return nothing(host, `Not on this page, which has it for the components with the largest contributions after each token: ${x.name} is not among them.`);
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

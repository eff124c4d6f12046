// Where a reader types another text; the kernel measures it and reports how far it is.
function form(model) {
  const text = put("textarea", { rows: 2, placeholder: "another text", "aria-label": "another text" });
  const token = (name, hint) => put("input", { placeholder: name, title: hint, "aria-label": name, size: 12 });
  const target = token("target", "a token whose logit is decomposed at every position, with its leading space, as in ␣Paris; may stay empty");
  const minus = token("contrast with", "a token to contrast the target with; may stay empty");
  const generate = put("input", { type: "number", min: 0, max: 200, value: 0, "aria-label": "tokens to generate", title: "how many tokens the model generates first" });
  const go = put("button", { type: "submit" }, "Decompose");
  const bar = put("progress", { max: 1, value: 0, hidden: true, "aria-label": "progress" });
  const status = put("span", { className: "progress-text", role: "status" });
  const made = put("form", { className: "ask" }, text, target, minus, generate, go, bar, status);
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    model.send({ ask: "text", text: text.value, target: target.value, minus: minus.value, generate: +generate.value });
  });
  made.addEventListener("keydown", (event) => {
    event.stopPropagation(); // a notebook has keys of its own
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target === go) return;
    event.preventDefault();
    made.requestSubmit();
  });
  const report = () => {
    const { done, of, message } = model.get("progress");
    bar.hidden = !of;
    bar.value = of ? done / of : 0;
    status.textContent = message;
  };
  model.on("change:progress", report);
  report();
  return made;
}

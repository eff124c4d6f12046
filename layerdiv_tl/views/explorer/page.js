// On a page: the numbers lie in it, and nobody listens to what is chosen.
function openPage() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const held = { ...data, live: false };
  const model = {
    get: (name) => held[name],
    set: (name, value) => (held[name] = value),
    save_changes() {},
    send() {},
    on() {},
    off() {},
  };
  return render({ model, el: document.getElementById("explorer") });
}

export default { render };

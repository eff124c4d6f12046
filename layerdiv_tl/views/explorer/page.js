// On a page: the numbers lie in it, what is chosen is in its address, and nobody listens.
function openPage() {
  const held = { ...JSON.parse(document.getElementById("data").textContent), live: false };
  const write = () => {
    const address = new URLSearchParams(Object.entries(held.chosen).filter(([, value]) => value !== null));
    try {
      history.replaceState(null, "", `#${address}`);
    } catch {
      // A page inside another one may have no address of its own.
    }
  };
  const model = {
    get: (name) => (name === "address" ? Object.fromEntries(new URLSearchParams(location.hash.slice(1))) : held[name]),
    set: (name, value) => (held[name] = value),
    // Not for every token that an arrow key runs over: browsers complain of many changes.
    save_changes() {
      clearTimeout(held.waits);
      held.waits = setTimeout(write, 250);
    },
    // Copy the link; where a browser does not let pages write to the clipboard, show it.
    async send() {
      write();
      const share = document.querySelector("[data-do=link]");
      try {
        await navigator.clipboard.writeText(location.href);
        share.textContent = "copied";
        setTimeout(() => (share.textContent = "copy link"), 1500);
      } catch {
        window.prompt("copy link", location.href);
      }
    },
    on: (name, hear) => name === "change:chosen" && window.addEventListener("hashchange", hear),
    off() {},
  };
  return render({ model, el: document.getElementById("explorer") });
}

export default { render };

// Buttons that choose between panels, and what circuitsvis draws, each when it comes near the window.
function ready(root) {
  const boxes = root.querySelectorAll(".ld-circuits");
  const draw = (box) => {
    if (box.id) return; // it is drawn
    const { element, props } = JSON.parse(box.nextElementSibling.textContent);
    box.id = "circuits-" + Math.random().toString(36).slice(2);
    CircuitsVis.render(box.id, CircuitsVis[element], props);
  };
  const near = new IntersectionObserver(
    (entries) => entries.forEach((entry) => entry.isIntersecting && draw(entry.target)),
    { rootMargin: "800px" },
  );
  boxes.forEach((box) => near.observe(box));
  window.addEventListener("beforeprint", () => boxes.forEach((box) => box.offsetParent && draw(box)));

  root.querySelectorAll(".ld-switch").forEach((box) => {
    const [names, ...panels] = box.children;
    const show = (chosen) => {
      [...names.children].forEach((button, i) => button.setAttribute("aria-pressed", i === chosen));
      panels.forEach((panel, i) => (panel.hidden = i !== chosen));
      window.dispatchEvent(new Event("resize")); // figures that were hidden take their width
    };
    [...names.children].forEach((button, i) => button.addEventListener("click", () => show(i)));
  });
}

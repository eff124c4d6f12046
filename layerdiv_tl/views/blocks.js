// Draws what circuitsvis draws, each when it comes near the window.
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
}

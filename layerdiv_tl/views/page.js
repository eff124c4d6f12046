// Draws the page's figures, in the reader's light or dark, each when it comes near the window.
"use strict";
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const theme = () => (dark.matches ? SETTINGS.dark : SETTINGS.light);
const all = (selector) => document.querySelectorAll(selector);

function draw(chart) {
  const { data, layout } = JSON.parse(chart.nextElementSibling.textContent);
  layout.template = theme();
  chart.style.height = "auto"; // it kept the place
  return Plotly.newPlot(chart, data, layout, SETTINGS.config);
}

const near = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) {
        near.unobserve(target);
        draw(target);
      }
    }
  },
  { rootMargin: "800px" },
);
all(".chart").forEach((chart) => near.observe(chart));

dark.addEventListener("change", () => {
  all(".chart").forEach((chart) => chart.data && Plotly.relayout(chart, { template: theme() }));
});
// Paper shows all of it but what the reader did not choose.
window.addEventListener("beforeprint", () => {
  all("details").forEach((fold) => (fold.open = true));
  all(".chart").forEach((chart) => chart.data || (chart.offsetParent && draw(chart)));
});

// The contents follow the reader: of the section a quarter down the window, the first and the last one at the ends of the
// page, or the one that was clicked, which may be too short to reach the quarter.
const links = all("nav a");
function mark(hash) {
  for (const link of links) {
    link.setAttribute("aria-current", link.hash === hash);
    if (link.hash === hash) link.parentElement.scrollTo({ left: link.offsetLeft - 40 });
  }
}
links[0]?.setAttribute("aria-current", true);
const follow = new IntersectionObserver(
  (entries) => {
    const here = entries.find((entry) => entry.isIntersecting);
    if (here) mark("#" + here.target.id);
  },
  { rootMargin: "-25% 0px -74.9% 0px" },
);
let clicked = "";
links.forEach((link) => link.addEventListener("click", () => (clicked = link.hash)));
window.addEventListener("scrollend", () => {
  const isEnd = window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 2;
  const end = window.scrollY < 2 ? links[0] : isEnd && links[links.length - 1];
  if (clicked || end) setTimeout(mark, 50, clicked || end.hash);
  clicked = "";
});
all("main > section[id]").forEach((section) => follow.observe(section));

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

// Draws the page's figures, in the reader's light or dark, each when it comes near the window.
"use strict";
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const theme = () => (dark.matches ? SETTINGS.dark : SETTINGS.light);

function draw(chart) {
  const { data, layout } = JSON.parse(chart.nextElementSibling.textContent);
  layout.template = theme();
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
const charts = () => document.querySelectorAll(".chart");
charts().forEach((chart) => near.observe(chart));

dark.addEventListener("change", () => {
  charts().forEach((chart) => chart.data && Plotly.relayout(chart, { template: theme() }));
});
// Paper shows all of it.
window.addEventListener("beforeprint", () => {
  charts().forEach((chart) => chart.data || draw(chart));
});

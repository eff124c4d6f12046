"""Every kind of figure of every result, at 400, 700 and 1440 pixels, light and dark, on one offline page.

    python assets/contact_sheet.py [PAGE]

Figures are drawn when they are scrolled to. `faults` reads an open page in Playwright and lists texts that are cut off
or lie on one another; CI asks it of every figure. A kind that is registered and not shown here is an error.
"""

from __future__ import annotations

import contextlib
import html
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from plotly.offline import get_plotlyjs
from plotly.utils import PlotlyJSONEncoder

import layerdiv_tl as ld
from layerdiv_tl.results import Result
from layerdiv_tl.views import html as html_pages
from layerdiv_tl.views import style

WIDTHS = (400, 700, 1440)
TEXT = "The Eiffel Tower is in Paris, which is the capital of France."
CHAIN, SUMS = "synthetic/k_hop", "synthetic/modular:largest=19"

# Texts of figure ARG that are cut off by its edge, pairs that lie on one another or are hardly apart (ticks), and words
# in a panel that a straight guide crosses.
FAULTS = """plot => {
  const edge = plot.getBoundingClientRect(), faults = [];
  const drawn = [...plot.querySelectorAll("svg text")].filter(t => t.textContent.trim());
  const texts = drawn.map(t => ({box: t.getBoundingClientRect(), text: t.textContent.slice(0, 60),
                                 tick: t.parentElement.classList.contains("xtick"),
                                 inside: !!t.closest(".annotation, .textpoint, .shape-label"),
                                 turned: /rotate\\((?!0,)[^)]+\\)/.test(t.getAttribute("transform") || "")}))
    .filter(t => t.box.width);
  for (const {box, text} of texts)
    if (Math.min(box.left - edge.left, edge.right - box.right, box.top - edge.top, edge.bottom - box.bottom) < -1)
      faults.push("cut off: " + text);
  for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
    const [a, b] = [texts[i], texts[j]];
    if (a.turned && b.turned) continue;  // boxes of slanted labels overlap though the labels do not
    const x = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
    const y = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
    if (x > 2 && y > 4) faults.push("overlap: " + a.text + " | " + b.text);
    else if (a.tick && b.tick && x > -3 && y > 4) faults.push("no gap: " + a.text + " | " + b.text);
  }
  const guides = [...plot.querySelectorAll(".shapelayer path, .scatterlayer path.js-line")]
    .map(g => g.getBoundingClientRect()).filter(g => (g.width < 3) != (g.height < 3));
  for (const {box, text, inside} of texts) for (const g of inside ? guides : [])
    // A name begins and ends with a blank.
    if (Math.min(box.right - 8, g.right) - Math.max(box.left + 8, g.left) > (g.width < 3 ? -1 : 4) &&
        Math.min(box.bottom - 3, g.bottom) - Math.max(box.top + 3, g.top) > (g.height < 3 ? -1 : 4))
      faults.push("crossed by a line: " + text);
  return faults;
}"""

SCRIPT = """
const seen = new IntersectionObserver(entries => entries.filter(e => e.isIntersecting).forEach(e => draw(e.target)),
                                      {rootMargin: "600px"});
function draw(cell) {
  seen.unobserve(cell);
  const figure = FIGURES[cell.dataset.figure], layout = structuredClone(figure.layout);
  layout.template = TEMPLATES[cell.dataset.scheme];
  layout.width = +cell.dataset.width;
  fitTitles(layout, layout.width);
  cell.style.height = "auto";
  return Plotly.newPlot(cell, structuredClone(figure.data), layout, {displayModeBar: false});
}
document.querySelectorAll(".cell").forEach(cell => seen.observe(cell));
"""


def results() -> Iterator[tuple[str, Result]]:
    """A name and a result for every class that has a figure, from the default model and the zoo."""
    model = ld.load_model()
    task = ld.task("sample/topic", limit=32).resolve(model)
    for unit in ("sublayer", "head"):
        c = ld.contributions(model, task.prompts, task.option_ids, unit=unit)
        yield f"Contributions, {unit}", c
        for loss in ("squared", "cross_entropy", "paper") if unit == "sublayer" else ("squared",):
            yield f"Decomposition, {unit}, {loss}", ld.decompose(c, task.labels, loss=loss)
    yield "LogitDifference", c.difference(0, 1)
    yield "Continuation", ld.continuation(model, TEXT[:28], max_new_tokens=12)
    both = [ld.contributions(name, ld.task(CHAIN, limit=32), unit="head") for name in ("zoo/d4", "zoo/d4-seed1")]
    yield "Comparison", ld.compare(*both)
    yield "Profile", ld.profile(model, TEXT)
    yield "AttentionPatterns", ld.attention_patterns(model, TEXT, heads=["L3.H0", "L20.H4"])
    yield "SourceTokens", ld.source_tokens(model, TEXT[:28], [" Paris", " Rome"])
    chain = ld.task(CHAIN, limit=256).resolve(ld.load_model("zoo/d8-shared"))
    shared = ld.decompose(ld.contributions("zoo/d8-shared", chain.prompts, chain.option_ids), chain.labels)
    yield "Decomposition, shared layers", shared
    yield from _information()
    yield from _depth()


def _information() -> Iterator[tuple[str, Result]]:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 600)
    members = 0.6 * labels[:, None] + generator.normal(size=(600, 8))
    yield "Information", ld.information(members, labels, n_permutations=40, n_resamples=40)


def _depth() -> Iterator[tuple[str, Result]]:
    model, task = ld.load_model("zoo/d8"), ld.task(CHAIN, limit=32)
    texts = list(task.prompts[:8])
    yield "ResidualNorms", ld.depth.residual_norms(model, texts)
    yield "Skip", ld.depth.skip(model, texts)
    yield "LogitLens", ld.depth.logit_lens(model, texts)
    yield "Erasure", ld.depth.erase(model, texts[:2])
    yield "IntegratedGradients", ld.depth.integrated_gradients(model, texts[:2], steps=16)
    yield "LayerMaps", ld.depth.map_layers(model, "zoo/d12", ld.task(CHAIN, limit=128))
    yield "DepthScore", ld.depth.depth_score(model, ld.depth.questions(CHAIN, limit=12))
    yield "DropPlan", ld.depth.drop_plan(model, task, budget=3)
    yield "DropPlan of heads", ld.depth.drop_plan(model, task, 4, "contribution", "head", random=4)
    yield "Effects", ld.effects(model, task, unit="head", groups={"heads of layer 5": ["L5.H0", "L5.H1"]})


def drawn() -> dict[str, Any]:
    """{name of a result and kind: its figure}. Raises RuntimeError for a kind that is not among them."""
    sheet: dict[str, Any] = {}
    missing = {function for cls in Result._classes.values() for function in cls.figures.values()}
    for name, result in results():
        for kind, function in type(result).figures.items():
            with contextlib.suppress(ld.InputError):  # this result lacks what the kind draws; another one must have it
                sheet[f"{name} · {kind}"] = result.plot(kind)
                missing.discard(function)
    if missing:
        raise RuntimeError(f"no result here shows {sorted(missing)}: add one to assets/contact_sheet.py.")
    return sheet


def write(page: Path) -> Path:
    """The page with all figures."""
    sheet = drawn()
    data = {name: json.loads(figure.to_json()) for name, figure in sheet.items()}
    templates = {name: style.template(scheme).to_plotly_json() for name, scheme in _schemes().items()}
    cells = []
    for name, figure in data.items():
        height = figure["layout"].get("height", 450)
        row = "".join(
            f'<div class="cell {scheme}" data-figure="{html.escape(name)}" data-scheme="{scheme}" data-width="{width}" '
            f'style="width:{width}px;height:{height}px"></div>'
            for width in WIDTHS
            for scheme in templates
        )
        cells.append(f"<h2>{html.escape(name)}</h2><div class=row>{row}</div>")
    css = "body{font:14px sans-serif;margin:24px}.row{display:flex;flex-wrap:wrap;gap:12px}.dark{background:#181b20}"
    values = f"const FIGURES={_script(data)},TEMPLATES={_script(templates)};"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><title>Figures of layerdiv_tl</title><style>{css}</style>"
        f"<script>{get_plotlyjs()}</script><h1>Figures of layerdiv_tl</h1>{''.join(cells)}"
        f"<script>{html_pages.read('titles.js')}{values}{SCRIPT}</script>",
        encoding="utf-8",
    )
    return page


def _schemes() -> dict[str, Any]:
    return {"light": style.LIGHT, "dark": style.DARK}


def _script(value: Any) -> str:
    return json.dumps(value, cls=PlotlyJSONEncoder).replace("</", "<\\/")


def faults(page: Any) -> dict[str, list[str]]:
    """What is wrong on an open sheet (Playwright's page): {figure, width: sentences}; light only, dark is the same."""
    found: dict[str, list[str]] = {}
    for cell in page.query_selector_all(".cell.light"):
        cell.evaluate("async cell => { await draw(cell); }")
        if told := cell.evaluate(FAULTS):
            found[f"{cell.get_attribute('data-figure')} at {cell.get_attribute('data-width')}"] = told
        cell.evaluate("cell => Plotly.purge(cell)")
    return found


if __name__ == "__main__":
    wanted = Path(sys.argv[1] if len(sys.argv) > 1 else "contact_sheet.html")
    if not wanted.parent.is_dir() or wanted.is_dir():
        sys.exit(f"{wanted} cannot be written: give the path of a page in a folder that exists.")
    print(write(wanted))

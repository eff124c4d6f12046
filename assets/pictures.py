"""The README's pictures, from the default model on a sample task, in light and dark.

    python assets/pictures.py

Needs `pip install 'layerdiv-tl[images]'` and a Chrome or Chromium.
"""

from __future__ import annotations

from pathlib import Path

import layerdiv_tl as ld

HERE = Path(__file__).parent


def main() -> None:
    """Write them beside this file."""
    model = ld.load_model()
    task = ld.task("sample/topic").resolve(model)
    d = ld.decompose(ld.contributions(model, task.prompts, task.option_ids), task.labels)
    for dark in (False, True):
        figure = d.plot(dark=dark, title=f"{model.name} on 80 texts: bias and diversity of every component")
        figure.write_image(HERE / f"components{'-dark' * dark}.png", width=1100, scale=1.6)


if __name__ == "__main__":
    main()

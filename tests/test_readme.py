"""What the README shows runs, and is what it says."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.full
def test_the_first_examples_run(smol, tmp_path, monkeypatch):
    """The Python examples that need nothing but the default model, one after the other, as a reader would."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("The cat sat on the mat.\nOnce upon a time there was a king.\n")
    examples = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    names = {}
    for example in examples[:4]:
        assert "ld." in example
        exec(compile(example, "README.md", "exec"), names)
    assert names["c"].identity_gap < 1e-6
    assert names["d"].loss == pytest.approx(names["d"].bias - names["d"].diversity)


def test_pictures_and_files_that_it_names_are_there():
    named = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    named += re.findall(r"`((?:tests|assets|notebooks)/[\w/]+\.py)`", README) + re.findall(
        r"\]\((notebooks/[^)]+)\)", README
    )
    notebooks = (Path(__file__).parents[1] / "notebooks").glob("*.ipynb")
    assert {f"notebooks/{path.name}" for path in notebooks} <= set(named)
    for path in named:
        assert (Path(__file__).parents[1] / path).is_file(), path
    for name in re.findall(r"`(\w+\.py)(?: DATA)?`", README.split("## Developing")[1].split("## Cite")[0]):
        assert (Path(__file__).parent / "benchmarks" / name).is_file(), name

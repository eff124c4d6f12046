"""What a type checker, and so an editor, sees of the public names."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import layerdiv_tl as ld

# A user's own settings: strict, and not reading the sources of torch and transformers, which takes a minute.
SETTINGS = """[mypy]
strict = true
follow_imports = silent
[mypy-torch.*,transformers.*,transformer_lens.*,plotly.*,sklearn.*,scipy.*]
follow_imports = skip
ignore_missing_imports = true
"""
SCRIPT = """\
import layerdiv_tl as ld

c = ld.contributions(ld.load_model(), ["The sky is"], [" blue", " green"])
reveal_type(c)
reveal_type(c.identity_gap)
reveal_type(ld.decompose(c, labels=[0], loss="cross_entropy"))
reveal_type(ld.decompose(c, labels=[0]))
reveal_type(ld.depth.skip(None, ["a text"]))
reveal_type(ld.zoo.planted("copied"))
ld.decompose(c, nonsense=3)  # error: call-arg
c.no_such_field  # error: attr-defined
ld.depth.skip(None, ["a text"], part="head")  # error: arg-type
ld.no_such_name  # error: attr-defined
"""
REVEALED = ["Contributions", "float", "Decomposition", "Decomposition", "Skip", "Planted"]


def _checked(tmp_path: Path, text: str) -> str:
    (tmp_path / "script.py").write_text(text)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "script.py"]
    environment = {"MYPYPATH": str(Path(ld.__file__).parents[1]), "PATH": ""}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False).stdout


@pytest.mark.nightly
def test_a_type_checker_sees_signatures_and_fields(tmp_path):
    """Under mypy --strict right calls have their types, and each wrong one is its own error."""
    output = _checked(tmp_path, SCRIPT)
    revealed = re.findall(r'Revealed type is "(?:[\w.]+\.)?(\w+)"', output)
    assert revealed == REVEALED, output
    expected = {
        (str(number), line.split("# error: ")[1])
        for number, line in enumerate(SCRIPT.splitlines(), 1)
        if "# error: " in line
    }
    assert set(re.findall(r"script\.py:(\d+): error: .*\[([\w-]+)\]", output)) == expected, output


@pytest.mark.nightly
def test_a_users_script_is_clean_under_strict(tmp_path):
    output = _checked(tmp_path, (Path(__file__).parents[1] / ".ci/js/user_script.py").read_text(encoding="utf-8"))
    assert "Success" in output, output


def test_every_public_name_is_typed_and_there():
    """The names of the stub file, which type checkers read, are the names that Python has."""
    stub = Path(ld.__file__).with_suffix(".pyi").read_text()
    names = {name for line in stub.splitlines() for name in re.findall(r" import \w+ as (\w+)", line)}
    assert names == set(dir(ld))
    assert all(getattr(ld, name) is not None for name in names)

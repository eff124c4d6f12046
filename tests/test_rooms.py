"""The package's own rules: imports point downwards, public names are stable, nothing heavy at import."""

import ast
import subprocess
import sys
from pathlib import Path

import layerdiv_tl

ROOT = Path(layerdiv_tl.__file__).parent
# Every room may import from itself and from those below it; rooms on one line are on one level.
LEVELS = [
    ["cli"],
    ["views"],
    ["replication", "studies"],
    ["zoo"],
    ["depth"],
    ["tasks"],
    ["attribution"],
    ["model"],
    ["ensemble"],
    ["results"],
    ["components"],
    ["_checks", "_files", "_signals"],
    ["errors"],
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}


def _imports(path: Path) -> set[str]:
    """First names, inside the package, of everything a module imports."""
    here = path.relative_to(ROOT).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*here[: len(here) - node.level], *(node.module or "").split(".")]
            names = [base] if node.module else [[*base, alias.name] for alias in node.names]
            found |= {name[0] or name[1] for name in names}
    return found


def test_imports_point_downwards():
    """Each room imports only from its own level and from those below."""
    upwards = []
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).with_suffix("").parts[0]
        for other in _imports(path):
            if LEVEL.get(other, 99) < LEVEL.get(room, -1):
                upwards.append(f"{path.relative_to(ROOT)} imports {other}")
    assert not upwards


def test_few_rooms_know_the_model_libraries():
    """torch, transformers and transformer_lens are imported by model, attribution, depth and zoo alone."""
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] in ("model", "attribution", "depth", "zoo"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules.append(node.module or "")
            heavy = [m for m in modules if m.split(".")[0] in ("torch", "transformers", "transformer_lens")]
            assert not heavy, f"{path} imports {heavy}"


def test_import_is_light():
    """Importing the package loads none of its heavy dependencies."""
    code = (
        "import sys, layerdiv_tl; heavy = {'torch', 'transformers', 'transformer_lens', 'plotly', 'pandas', 'numpy'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_public_names_are_the_same_before_and_after_importing_every_submodule():
    """A submodule never takes the place of a public name."""
    code = """
import importlib, pkgutil, layerdiv_tl
before = {name: getattr(layerdiv_tl, name) for name in layerdiv_tl.__all__}
for module in pkgutil.walk_packages(layerdiv_tl.__path__, "layerdiv_tl."):
    importlib.import_module(module.name)
print(all(getattr(layerdiv_tl, name) is value for name, value in before.items()), len(before))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split()[0] == "True"

"""The package's own rules: imports point downwards and in no circle, public names are stable, importing is light."""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import layerdiv_tl

ROOT = Path(layerdiv_tl.__file__).parent
# Every room may import from itself and from those below it; rooms on one line are on one level.
LEVELS = [
    ["cli"],
    ["views", "teaching"],
    ["studies"],
    ["zoo"],
    ["depth"],
    ["tasks"],
    ["attribution"],
    ["model"],
    ["ensemble"],
    ["results"],
    ["components"],
    ["_checks", "_files", "_progress"],
    ["_registry", "errors"],
]
LEVEL = {"": 0, "__main__": 0} | {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
MODULES = {
    ".".join(["layerdiv_tl", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}


def _room(module: str) -> str:
    """The room of a module; the package itself has none and stands at the top."""
    return [*module.split("."), ""][1]


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _statements(tree: ast.AST, types: bool) -> Iterator[ast.AST]:
    """Every node, inside functions too; with `types` also what only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if types or not _is_for_types(node):
            yield node
            yield from _statements(node, types)


def _imports(module: str, types: bool = False) -> set[str]:
    """The package's modules that a module imports, in any function and by importlib; by their full names."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = set()
    for node in _statements(ast.parse(path.read_text(encoding="utf-8")), types):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            # `from . import x` may be a module or a name that the package defines.
            submodules = {f"{base}.{alias.name}" for alias in node.names} & set(MODULES)
            names |= submodules if len(submodules) == len(node.names) else {base, *submodules}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("layerdiv_tl."):
            names.add(node.value.partition(":")[0])  # what importlib or the registry is given
    return {name for name in names if name in MODULES and name != module}


def test_imports_point_downwards():
    """Each room imports only from its own level and from those below; the registry alone is filled from above."""
    upwards = [
        f"{module} imports {other}"
        for module in MODULES
        for other in _imports(module)
        if LEVEL[_room(other)] < LEVEL[_room(module)]
    ]
    assert not upwards


def test_every_room_has_a_level():
    """A new room, or a module at the top, must find its place in LEVELS."""
    assert {_room(module) for module in MODULES} <= set(LEVEL)


def test_a_file_is_read_in_one_sitting():
    """One idea a file: none of the package has more than 400 lines."""
    assert not [path.name for path in MODULES.values() if len(path.read_text(encoding="utf-8").splitlines()) > 400]


@pytest.mark.full
def test_no_circles():
    """No module imports, at any depth, one that imports it: not for its types either."""
    imports = {module: _imports(module, types=True) for module in MODULES}
    order: list[str] = []  # every module after those that it imports
    circles = []

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            circles.append(" -> ".join((*path[path.index(module) :], module)))
        elif module not in order:
            for other in sorted(imports[module]):
                visit(other, (*path, module))
            order.append(module)

    for module in sorted(MODULES):
        visit(module, ())
    assert not circles


@pytest.mark.full
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
        "import sys, layerdiv_tl; hasattr(layerdiv_tl, '_repr_html_');"
        "heavy = {'torch', 'transformers', 'transformer_lens', 'plotly', 'pandas', 'numpy'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_public_names_are_the_same_before_and_after_importing_every_submodule():
    """A submodule never takes the place of a public name."""
    code = """
import importlib, pkgutil, layerdiv_tl
before = {name: getattr(layerdiv_tl, name) for name in dir(layerdiv_tl)}
for module in pkgutil.walk_packages(layerdiv_tl.__path__, "layerdiv_tl."):
    importlib.import_module(module.name)
print(all(getattr(layerdiv_tl, name) is value for name, value in before.items()), len(before))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split()[0] == "True"


def test_the_picture_of_the_house_is_that_of_its_imports():
    """`python -m tests.oracles.house` draws it again."""
    from tests.oracles.house import PICTURE, ROOMS, draw

    assert {room for room in map(_room, MODULES) if (ROOT / room).is_dir() and room} | {"results"} == set(ROOMS)
    assert PICTURE.read_text(encoding="utf-8") == draw()

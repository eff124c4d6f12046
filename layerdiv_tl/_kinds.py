"""What `help(result.plot)` says of each kind of figure, read from the sources of `views.figures`.

The functions themselves are not imported, as they load pandas and plotly, which a list of tasks or models does not
need.
"""

from __future__ import annotations

import ast
import pkgutil
import re
import textwrap
from collections.abc import Mapping
from functools import cache

# The name, parameters and docstring of a function that draws a figure.
_FUNCTION = re.compile(r'^def (\w+)\(((?:[^()]|\([^()]*\))*)\) -> go\.Figure:\n    """(.+?)"""', re.M | re.S)


@cache
def _functions(module: str) -> dict[str, tuple[str, str]]:
    """Return {function: (its options with their defaults, its first sentence)} of a module of `views.figures`."""
    source = (pkgutil.get_data(__package__, f"views/figures/{module}.py") or b"").decode()
    found = {}
    for name, parameters, text in _FUNCTION.findall(source):
        arguments = ast.parse(f"def f({parameters}): ...").body[0].args  # type: ignore[attr-defined]
        defaults = [ast.unparse(value).replace("'", '"') for value in arguments.defaults]
        options = zip([a.arg for a in arguments.args][-len(defaults) :] if defaults else [], defaults, strict=True)
        sentence = re.split(r"(?<=\.)\s(?=[A-Z`])", " ".join(text.split()))[0]
        found[name] = ", ".join(f"{option}={default}" for option, default in options), sentence
    return found


def describe(figures: Mapping[str, str]) -> str:
    """Return a paragraph with a line for each of {kind: "module.function"}."""
    lines = ["Kinds and their options (all have `title`, `height` and `dark`):"]
    for kind, function in figures.items():
        module, _, name = function.partition(".")
        options, sentence = _functions(module).get(name, ("", ""))
        shown = f"kind={kind!r}".replace("'", '"') + f", {options}" * bool(options)
        lines.append(textwrap.fill(f"{shown}: {sentence}", 112, initial_indent="    ", subsequent_indent="        "))
    return "\n".join(lines)

"""Component: one additive term of the final residual stream. Rows of arrays are labeled by components."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, cast, get_args

from ._checks import listed, shown, whole_number
from .errors import InputError

Kind = Literal[
    "embed", "pos_embed", "attn", "mixer", "mlp", "moe", "head", "mixer_head", "neuron", "attn_bias", "mixer_bias",
    "mlp_bias", "expert", "shared_expert", "attn_latent", "mixer_latent",
    "mlp_latent", "attn.error", "mixer.error", "mlp.error", "moe.error", "ple.error", "laurel.error", "attn.rest",
    "mixer.rest", "mlp.rest", "moe.rest", "group", "ple", "laurel", "constant", "rounding",
    "added", "member", "layer",
]  # fmt: skip
Unit = Literal["sublayer", "head", "neuron", "expert"]
Module = Literal[
    "embedding", "attention", "mixer", "mlp", "group", "ple", "laurel", "constant", "rounding", "added",
    "member", "layer",
]  # fmt: skip

# The sublayer of each kind of part, and the paper's module of every kind (Eq. 9); other kinds are their own.
_SUBLAYERS: dict[str, Kind] = {
    **dict.fromkeys(("head", "attn_bias", "attn_latent"), "attn"),
    **dict.fromkeys(("mixer_head", "mixer_bias", "mixer_latent"), "mixer"),
    **dict.fromkeys(("neuron", "mlp_bias", "mlp_latent", "expert", "shared_expert"), "mlp"),
    **{f"{of}.{part}": of for of in ("attn", "mixer", "mlp", "moe") for part in ("error", "rest")},
    **{"ple.error": "ple", "laurel.error": "laurel"},
}
_MODULES: dict[str, Module] = {
    **dict.fromkeys(("embed", "pos_embed"), "embedding"),
    "attn": "attention",
    "moe": "mlp",
}
# The columns that name a component; in frames of numbers, all but the first come last.
COLUMNS = ("component", "kind", "module", "layer", "index", "repeat")
# The conditions of `positions`.
CONDITIONS = ("kind", "layer", "index", "repeat", "module", "label")
_INDEX_LETTER = {
    **{"head": "H", "mixer_head": "MH", "neuron": "N", "member": "M", "expert": "E", "shared_expert": "SE"},
    **{"mlp_latent": "F", "attn_latent": "AF", "mixer_latent": "MF"},
}
_KIND_OF_LETTER = {letter: kind for kind, letter in _INDEX_LETTER.items()}
_LABEL = re.compile(
    r"(?:L(?P<layer>\d+)(?:@(?P<repeat>\d+))?\.)?"
    r"(?:(?P<letter>[AMS]?[A-Z])(?P<index>\d+)|(?P<kind>[a-z_.]+))(?::(?P<name>.+))?",
    re.DOTALL,
)
# TransformerLens' names: of hooks, of stacked residuals (`decompose_resid`) and of heads and neurons.
_TRANSFORMER_LENS = re.compile(
    r"L(?P<layer>\d+)(?P<part>[HN]\d+)"
    r"|(?P<number>\d+)_(?P<out>attn|mlp)_out"
    r"|blocks\.(?P<block>\d+)\.(?:hook_(?P<hook>attn|mlp)_out|(?P<module>attn|mlp|mixer)(?:\.hook_out)?)"
    r"|(?:hook_)?(?P<embedding>embed|pos_embed)(?:\.hook_out)?"
)


def own_label(label: str) -> str:
    """Translate a name of TransformerLens to this package's label; other texts are returned unchanged.

    >>> [own_label(x) for x in ("L23H3", "23_attn_out", "blocks.5.hook_mlp_out", "hook_embed", "L23.H3")]
    ['L23.H3', 'L23.attn', 'L5.mlp', 'embed', 'L23.H3']
    """
    if (match := _TRANSFORMER_LENS.fullmatch(label)) is None:
        return label
    if match["embedding"]:
        return match["embedding"]
    layer = match["layer"] or match["number"] or match["block"]
    return f"L{int(layer)}.{match['part'] or match['out'] or match['hook'] or match['module']}"


@dataclass(frozen=True, slots=True)
class Component:
    """One additive term of the final residual stream.

    Attributes:
        kind: The kind of term; `"mixer"`: a recurrent or linear-attention sublayer; `"moe"`: a mixture of experts next
            to an MLP of the same layer; `"ple"`: a per-layer input embedding, gated; `"laurel"`: a learned low-rank
            residual; `"mlp_latent"`: a latent of a dictionary (`L3.F12`, in an attention `L3.AF12`), `"mlp.error"`: a
            write minus the sum of its cut's parts; `"group"`: several components, `"mlp.rest"`: a sublayer minus the
            members of groups; `"added"`: what the user's hooks add to the stream; `"member"`: a row of a plain array,
            `"layer"`: the sum of a layer's outputs, where `depth` measures whole layers.
        layer, index: The model's distinct block from 0 (None outside blocks), and the head, neuron, expert or latent in
            it (None for sublayers).
        repeat: Which repeat of a looped or shared layer, from 1; None for a layer that runs once.
        name: The user's name of a group (`group:induction`) or of a part of a sublayer (`L3.mlp:first half`).

    >>> Component("head", layer=3, index=5).label
    'L3.H5'
    >>> Component.parse("L3@2.attn")
    Component(kind='attn', layer=3, index=None, repeat=2, name=None)
    """

    kind: Kind
    layer: int | None = None
    index: int | None = None
    repeat: int | None = None
    name: str | None = None

    @property
    def label(self) -> str:
        """The name used on axes, in frames and in files, e.g. `embed`, `L3.attn`, `L3@2.H5`."""
        name = self.kind if self.index is None else f"{_INDEX_LETTER[self.kind]}{self.index}"
        name = name if self.name is None else f"{name}:{self.name}"
        if self.layer is None:
            return name
        return f"L{self.layer}.{name}" if self.repeat is None else f"L{self.layer}@{self.repeat}.{name}"

    @property
    def transformer_lens_label(self) -> str:
        """TransformerLens' label of a row of its residual stacks; the own label if there is none.

        >>> [Component.parse(x).transformer_lens_label for x in ("L23.H3", "L23.attn", "embed", "L3.mlp_bias")]
        ['L23H3', '23_attn_out', 'embed', 'L3.mlp_bias']
        """
        if self.repeat is None and self.name is None:
            if self.kind in ("head", "neuron"):
                return self.label.replace(".", "")
            if self.kind in ("attn", "mlp"):
                return f"{self.layer}_{self.kind}_out"
        return self.label

    @property
    def module(self) -> Module:
        """The paper's module (Eq. 9): heads and their bias are attention, neurons and theirs MLP."""
        kind = _SUBLAYERS.get(self.kind, self.kind)
        return _MODULES.get(kind) or cast(Module, kind)

    @property
    def sublayer(self) -> Component:
        """The sublayer that holds this component, `L3.attn` for `L3.H5`; other components return themselves."""
        if self.kind == "group" or (self.kind not in _SUBLAYERS and self.name is None):
            return self
        return Component(_SUBLAYERS.get(self.kind, self.kind), self.layer, repeat=self.repeat)

    @classmethod
    def parse(cls, label: str) -> Component:
        """Parse a label of this package or of TransformerLens. Raises InputError for one that names no component."""
        match = _LABEL.fullmatch(own_label(label)) if isinstance(label, str) else None
        kind = match and (_KIND_OF_LETTER.get(match["letter"] or "") or match["kind"])
        if not match or kind not in get_args(Kind):
            raise InputError(
                f"{shown(label)} is not a component label: write it like 'embed', 'L3.attn', 'L3.H5' or 'L3@2.mlp'."
            )
        number = {name: int(match[name]) if match[name] else None for name in ("layer", "index", "repeat")}
        return cls(kind, **number, name=match["name"])  # type: ignore[arg-type]  # kind is one of Kind

    def __str__(self) -> str:
        return self.label


def members(count: int) -> tuple[Component, ...]:
    """Names for the rows of a plain array: `M0`, `M1`, …"""
    return tuple(Component("member", index=i) for i in range(count))


def positions(components: Sequence[Component], **conditions: Any) -> list[int]:
    """Find the positions of the components that meet every given condition (of `CONDITIONS`), in order.

    A condition is one value or several. Raises InputError for a condition, kind, module or label that does not exist
    here, and if nothing is left.

    >>> parts = [Component("embed"), Component("attn", 0), Component("mlp", 0), Component("attn", 1)]
    >>> positions(parts, kind="attn", layer=range(1, 4))
    [3]
    """
    if unknown := set(conditions) - set(CONDITIONS):
        raise InputError(f"there is no condition {min(unknown)}= on components: use {', '.join(CONDITIONS)}.")
    chosen = list(range(len(components)))
    wanted = {name: conditions[name] for name in CONDITIONS if conditions.get(name) is not None}
    known = {"kind": get_args(Kind), "module": get_args(Module), "label": [c.label for c in components]}
    for name, condition in wanted.items():
        if isinstance(condition, str | Component | Integral):
            condition = [condition]
        # A set is accepted, as order does not matter.
        allowed = listed(name, list(condition) if isinstance(condition, Set) else condition, "a value, or a list")
        if name == "label":
            allowed = [
                own_label(c) if isinstance(c, str) else c.label if isinstance(c, Component) else c for c in allowed
            ]
        for value in allowed:
            if name not in known:
                whole_number(name, value, 0)
            elif not isinstance(value, str) or value not in known[name]:
                here = list(dict.fromkeys(getattr(c, name) for c in components))
                raise InputError(f"there is no {name} {shown(value)} here: {instead_of(value, components, here)}.")
        chosen = [i for i in chosen if getattr(components[i], name) in allowed]
    if not chosen:
        asked = ", ".join(f"{name}={shown(value)}" for name, value in wanted.items())
        kinds = ", ".join(dict.fromkeys(c.kind for c in components))
        layers = [c.layer for c in components if c.layer is not None]
        span = f" of layers {min(layers)} to {max(layers)}" if layers else ""
        raise InputError(
            f"no component is left after select({asked}): here are {kinds}{span}; unit= decides the kinds."
        )
    return chosen


def instead_of(value: Any, components: Iterable[Component], known: Sequence[str]) -> str:
    """Say what there is where a component, kind or module was not found: what its layer has, or what is known."""
    layers = {c.layer for c in components if c.layer is not None}
    asked = re.match(r"(?:L|blocks\.)?(\d+)", value) if isinstance(value, str) else None
    if asked and layers and int(asked[1]) not in layers:
        return f"layers here are {min(layers)} to {max(layers)}"
    of_layer = [c.label for c in components if asked and c.layer == int(asked[1])]
    shown_labels = (of_layer or known)[:12]
    listing = ", ".join(shown_labels) + (", …" if len(of_layer or known) > len(shown_labels) else "")
    return f"layer {asked[1]} has {listing}" if asked and of_layer else f"choose among {listing}"


def component_columns(components: Sequence[Component], rows: Sequence[int] | Any = None) -> dict[str, Any]:
    """Make the columns that name each row's component in every frame: `layer`, `index`, `repeat` are Int64.

    `module` is the paper's module (Eq. 9), by which figures are colored.

    `rows` has the index of each row's component; None for one row per component.

    >>> columns = component_columns([Component("head", 3, 5)])
    >>> list(columns), str(columns["layer"].dtype)
    (['component', 'kind', 'module', 'layer', 'index', 'repeat'], 'Int64')
    """
    import pandas as pd

    columns: dict[str, Any] = {"component": [c.label for c in components], "kind": [c.kind for c in components]}
    columns["module"] = [c.module for c in components]
    for name in ("layer", "index", "repeat"):
        columns[name] = pd.array([getattr(c, name) for c in components], dtype="Int64")
    return columns if rows is None else {name: pd.Series(column).take(rows).array for name, column in columns.items()}


def labels_of(name: str, given: Any) -> list[str]:
    """Get the labels of one or several labels or components; TransformerLens' names are accepted, too.

    Raises InputError for an empty list, and for anything else.

    >>> labels_of("heads", ["L0H1", Component("head", 1, 0)])
    ['L0.H1', 'L1.H0']
    """
    example = "L3.H5" if name == "heads" else "L3.attn"
    what = f"a label such as {example!r}, a component, or a list of these that is not empty"
    several = [given] if isinstance(given, str | Component) else listed(name, given, what)
    if not several or not all(isinstance(c, str | Component) for c in several):
        raise InputError(f"{name}={shown(given)} must be {what}.")
    return [own_label(str(c)) for c in several]

"""Groups: named sets of components as rows of one unit; a group's row is the sum of its members' rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from .._checks import shown
from ..components import Component, Kind, Unit, labels_of
from ..errors import InputError
from .architecture import Architecture, CustomUnit, Sublayer, SublayerCut
from .load import as_model

# The unit whose rows are a sublayer's parts.
_UNITS: dict[str, Unit] = {
    **dict.fromkeys(("head", "attn_bias", "mixer_head", "mixer_bias"), "head"),
    **dict.fromkeys(("neuron", "mlp_bias"), "neuron"),
}
_SUBLAYERS = ("attn", "mixer", "mlp", "moe")


class Groups(CustomUnit):
    """The unit that `groups` makes. `members`: the labels of each group."""

    name = "groups"

    def __init__(self, members: Mapping[str, Sequence[str]]) -> None:
        self.members = {name: tuple(labels) for name, labels in members.items()}
        self._group_of = {Component.parse(x): name for name, labels in members.items() for x in labels}
        self._cut: dict[tuple[str, int | None], Unit] = {}
        for component in self._group_of:
            if (unit := _UNITS.get(component.kind)) is not None:
                self._cut[component.sublayer.kind, component.layer] = unit

    def of(self, sublayer: Sublayer) -> SublayerCut | None:
        """Cut into heads or neurons if some of them are in a group."""
        unit = self._cut.get((sublayer.kind, sublayer.layer))
        # No label refers to the parts of a `moe` next to an MLP.
        return None if unit is None else sublayer.cut(unit)

    def group_of(self, component: Component) -> str | None:
        """The group that holds a component; None for one that keeps its own row."""
        return self._group_of.get(component)

    def check(self, rows: Collection[Component]) -> None:
        """Raise InputError for members that a pass does not have."""
        if lacking := [component for component in self._group_of if component not in rows]:
            raise InputError(
                f"the group {shown(self._group_of[lacking[0]])} asks for {lacking[0].label}, which this model does not "
                "have (a layer that is used once is L3.attn, the second use of a reused one L3@2.attn)."
            )

    def rows_of(self, architecture: Architecture, rows: list[Component]) -> list[Component]:
        """List the rows minus the members of groups, then the groups."""
        named: list[Component] = []
        for row in rows:
            if self.group_of(row) is None:
                row = rest_of(row) if row.kind in _UNITS else row
                named += [] if row in named[-1:] else [row]
        return named + [Component("group", name=name) for name in self.members]

    def __repr__(self) -> str:
        return f"groups({', '.join(f'{name!r}: {len(labels)}' for name, labels in self.members.items())})"


def rest_of(part: Component) -> Component:
    """The row of a sublayer minus its parts in groups, for one of its parts."""
    whole = part.sublayer
    return Component(cast(Kind, f"{whole.kind}.rest"), whole.layer, repeat=whole.repeat)


def groups(members: Mapping[str, Any]) -> Groups:
    """Make a unit of named groups of components: `unit=ld.groups({"induction": ["L5.H1", "L6.H9"]})`.

    A group's row `group:induction` is the sum of its members' rows: heads, neurons and biases of any layers, and whole
    sublayers or embeddings (a sublayer or some of its parts, not both). The rest of a sublayer is `L5.attn.rest`; all
    other sublayers stay whole. As groups join the outputs of different layers, there are no prefixes of the stream.

    Args:
        members: The labels or components of every group, by its name. `key_value_groups` makes one.

    Raises InputError for an empty group, an invalid label, and a label in two groups.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> c = ld.contributions(tiny, [[1, 2, 3]], [7, 9], unit=ld.groups({"mine": ["L0.H1", "L1.H0", "L1.mlp"]}))
    >>> [component.label for component in c.components]
    ['embed', 'L0.attn.rest', 'L0.mlp', 'L1.attn.rest', 'group:mine']
    """
    if not isinstance(members, Mapping) or not members:
        raise InputError(f"groups must be a dict of lists of labels by the groups' names, not {shown(members)}.")
    found: dict[str, list[str]] = {}
    seen: dict[Component, str] = {}
    for name, labels in members.items():
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"a group must have a text as its name, not {shown(name)}.")
        found[name] = labels_of(f"groups[{name!r}]", labels)
        for component in map(Component.parse, found[name]):
            if component in seen:
                raise InputError(f"{component.label} occurs twice, in {shown(seen[component])} and in {shown(name)}.")
            seen[component] = name
    if both := next((c for c in seen if c.kind in _UNITS and c.sublayer in seen), None):
        raise InputError(f"{both.label} is part of {both.sublayer.label}, which is in a group, too: name one of them.")
    if wrong := next((c for c in seen if c.kind not in (*_UNITS, *_SUBLAYERS, "embed", "pos_embed")), None):
        raise InputError(
            f"{wrong.label} cannot be in a group: use heads, neurons, their biases, sublayers, embeddings."
        )
    return Groups(found)


def key_value_groups(model: Any) -> dict[str, list[str]]:
    """Group the heads that share keys and values, for `groups`: `{"L0.KV0": ["L0.H0", "L0.H1", "L0.H2"], …}`.

    Raises InputError for a model in which every head has its own.
    """
    model = as_model(model)
    config = getattr(model.hf_model, "config", None)
    count = getattr(config and config.get_text_config(), "num_key_value_heads", None)
    # The module is more reliable: Falcon's configuration uses another name, and Gemma 4's layers differ.
    modules = {s.layer: s.inputs.module for s in model.architecture.sublayers if s.kind == "attn" and s.inputs}
    shares = {
        layer: getattr(module, "num_key_value_groups", None) or module.num_heads // module.num_kv_heads
        for layer, module in modules.items()
        if hasattr(module, "num_key_value_groups") or hasattr(module, "num_kv_heads")
    }
    heads = [row for row in model.components("head") if row.kind == "head"]
    made: dict[str, list[str]] = {}
    for sublayer in dict.fromkeys(head.sublayer for head in heads):
        own = [head.label for head in heads if head.sublayer == sublayer]
        share = shares.get(sublayer.layer, len(own) // count if count and len(own) % count == 0 else 1)
        for start in range(0, len(own) if share > 1 else 0, share):
            made[f"{sublayer.label.removesuffix('attn')}KV{start // share}"] = own[start : start + share]
    if not made:
        raise InputError(f"every head of {model.name} has keys and values of its own, so it has no such groups.")
    return made

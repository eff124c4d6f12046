"""Named groups of components as a unit, and the heads that share keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from ..components import Component, Kind, labels_of
from ..errors import InputError
from .load import as_model
from .path import Path
from .units import CustomUnit, Parts, count_of, cut, names_of, total
from .writers import Writer

_UNITS: dict[str, str] = {
    **dict.fromkeys(("head", "attn_bias", "mixer_head", "mixer_bias"), "head"),
    **dict.fromkeys(("neuron", "mlp_bias"), "neuron"),
    **dict.fromkeys(("expert", "shared_expert"), "expert"),
}


_SUBLAYERS = ("attn", "mixer", "mlp", "moe")


class Groups(CustomUnit):
    """The unit that `groups` makes. `members`: the components of each group."""

    name = "groups"

    def __init__(self, members: Mapping[str, Sequence[str]]) -> None:
        self.members = {
            Component("group", name=name): tuple(map(Component.parse, labels)) for name, labels in members.items()
        }
        self.group_of = {member: group for group, own in self.members.items() for member in own}
        self._cuts = {(c.sublayer.kind, c.layer): _UNITS[c.kind] for c in self.group_of if c.kind in _UNITS}

    def cut_of(self, writer: Writer) -> str | None:
        """Heads, neurons or experts where a group has some of a sublayer's."""
        return self._cuts.get((writer.kind, writer.component.layer))

    def split(self, writer: Writer, whole: Component, write: Tensor, received: Any, g: Tensor) -> list[Parts] | None:
        """The members' sums by group, and what is left of the write."""
        if whole in self.group_of:
            return [((self.group_of[whole],), total(g, write)[..., None])]
        unit = self.cut_of(writer)
        if unit is None:
            return None
        found: list[Parts] = []
        left: list[Tensor] = []
        for components, u in cut(unit, writer, whole, write, received, g) or []:
            groups = [self.group_of.get(component) for component in components]
            for group in dict.fromkeys(x for x in groups if x is not None):
                own = u[..., [place for place, x in enumerate(groups) if x == group]].sum(-1)
                found.append(((group,), own[..., None]))
            if None in groups:
                left.append(u[..., [place for place, x in enumerate(groups) if x is None]].sum(-1))
        if not left:
            return found
        rest = torch.stack(left).sum(0)
        if not bool(rest.any()):
            return found
        kind = cast(Kind, f"{whole.kind}.rest")
        return [((replace(whole, kind=kind),), rest[..., None]), *found]

    def merged(
        self, components: Sequence[Component], values: Float[Tensor, "K n component"]
    ) -> tuple[list[Component], Float[Tensor, "K n component"]]:
        """Add up the rows of each group; groups come last, in their order."""
        rows: dict[Component, list[int]] = {c: [i] for i, c in enumerate(components) if c not in self.members}
        for group in self.members:
            rows[group] = [i for i, component in enumerate(components) if component == group]
        return list(rows), torch.stack([values[..., places].sum(-1) for places in rows.values()], -1)

    def check(self, path: Path) -> None:
        """Raise InputError for members that the model does not have."""
        repeated = {writer for writer, number in path.calls if number}
        known = {replace(w.component, repeat=n + 1 if w in repeated else None): w for w, n in path.calls}
        for member, group in self.group_of.items():
            writer, unit = known.get(member.sublayer), _UNITS.get(member.kind)
            is_there = writer is not None and (unit is None or (member.index or 0) < count_of(writer, unit))
            if not is_there:
                raise InputError(f"the group {group.name!r} has {member.label}, which this model does not have.")


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
    seen: set[Component] = set()
    for name, labels in members.items():
        for component in map(Component.parse, labels_of(f"groups[{name!r}]", labels)):
            if component in seen:
                raise InputError(f"{component.label} is in the groups twice.")
            if component.kind not in (*_UNITS, *_SUBLAYERS, "embed", "pos_embed"):
                raise InputError(
                    f"{component.label} cannot be in a group: use heads, neurons, their biases, sublayers, embeddings."
                )
            seen.add(component)
    if both := next((c for c in seen if c.kind in _UNITS and c.sublayer in seen), None):
        raise InputError(f"{both.label} is part of {both.sublayer.label}, which is in a group, too: name one of them.")
    return Groups({name: labels_of(name, labels) for name, labels in members.items()})


def key_value_groups(model: Any) -> dict[str, list[str]]:
    """Group the heads that share keys and values, for `groups`: `{"L0.KV0": ["L0.H0", "L0.H1", "L0.H2"], …}`.

    Raises InputError for a model in which every head has its own.
    """
    model = as_model(model)
    config = getattr(model.hf_model, "config", None)
    count = getattr(config and config.get_text_config(), "num_key_value_heads", None)
    made: dict[str, list[str]] = {}
    for writer in model.path.writers:
        if writer.kind != "attn" or not writer.heads:
            continue
        # The module is more reliable: Falcon's configuration uses another name, and Gemma 4's layers differ.
        owner: Any = writer.owner
        share = getattr(owner, "num_key_value_groups", None)
        if share is None and hasattr(owner, "num_kv_heads"):
            share = owner.num_heads // owner.num_kv_heads
        if share is None:
            share = writer.heads // count if count and writer.heads % count == 0 else 1
        labels = [head.label for head in names_of("head", writer.component, writer.heads)]
        for start in range(0, len(labels) if share > 1 else 0, share):
            made[f"L{writer.component.layer}.KV{start // share}"] = labels[start : start + share]
    if not made:
        raise InputError(f"every head of {model.name} has keys and values of its own.")
    return made

"""The tokens that components promote and suppress, as a table."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..attribution.profile_results import Profile
from ..components import Component
from . import style


def promoted_tokens(
    profile: Profile,
    component: str | Component | Sequence[str | Component] | None = None,
    position: int = -1,
    k: int = 6,
) -> pd.DataFrame:
    """Show the tokens that components promote and suppress at a position: `Profile.top_tokens`, a column per rank.

    Numbers are logits minus the component's mean over the vocabulary, which softmax cannot see. Raises InputError like
    `Profile.top_tokens`.
    """
    tokens = profile.top_tokens(component, position, k)
    cells = tokens["token"].map(style.visible) + " " + tokens["contribution_centered"].map(style.signed)
    labels, effects = tokens["component"].unique(), ("promotes", "suppresses")
    index = pd.MultiIndex.from_product([labels, effects], names=("component", "effect"))
    keys = zip(tokens["component"], tokens["effect"], strict=True)
    rows = pd.Series(cells.to_list(), index=pd.MultiIndex.from_tuples(keys))
    return pd.DataFrame([rows[key].to_list() for key in index], index=index, columns=range(1, k + 1))

"""Measurements as a page and as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..studies.measure import Measurement
from . import style
from .figures import component_bars, contribution_map
from .page import Page

if TYPE_CHECKING:
    import pandas as pd

# Column of the frame -> heading of the table.
_COLUMNS = {
    "module": "module",
    "members": "members",
    "count_share": "share of members",
    "bias": "bias",
    "diversity": "diversity",
    "net": "net",
    "diversity_share": "share of diversity",
    "bias_centred": "bias, centred",
    "diversity_centred": "diversity, centred",
    "net_centred": "net, centred",
    "diversity_share_centred": "share of centred diversity",
}


def module_table(measurement: Measurement) -> pd.DataFrame:
    """Bias, diversity and net of every module and in all, raw and centred, as formatted text."""
    import pandas as pd

    frame = measurement.decomposition.by_module()[list(_COLUMNS)]
    total = frame.drop(columns="module").sum().to_frame().T
    total.insert(0, "module", "all")
    both = pd.concat([frame, total], ignore_index=True)
    both["module"] = [style.MODULE_NAME.get(name, name) for name in both["module"]]
    both["members"] = both["members"].astype(int)
    for column in both.columns[2:]:
        percent = "share" in column
        both[column] = [f"{x:.1%}" if percent else style.number(x) for x in both[column]]
    return both.rename(columns=_COLUMNS)


def summary_lines(measurement: Measurement) -> list[str]:
    """What a terminal shows of one task."""
    m, row = measurement, measurement.frame().iloc[0]
    return [
        f"{m.task.name}: {len(m.task)} rows ({m.task.source}), {m.contributions.model}",
        f"  {row.members} components sum to the logits: largest gap {row.absolute_gap:.1e} logits, "
        f"{row.identity_gap:.1e} of Σ|u|",
        f"  accuracy {_interval(row, 'accuracy')}, bag of words {_interval(row, 'bag_of_words')}, "
        f"chance {row.chance:.2f}",
        f"  answers: {', '.join(f'{option.strip()} {count}' for option, count in m.answers.items())}",
        f"  loss {row.loss:.4g} = bias {row.bias:.4g} − diversity {row.diversity:.4g}   (logits²; identity to "
        f"{row.theorem_gap:.0e})",
        f"  centred: {row.loss_centred:.4g} = {row.bias_centred:.4g} − {row.diversity_centred:.4g}   "
        f"({_unseen(measurement):.1%} of raw diversity is a shift that softmax cannot see)",
    ]


def measurement_page(measurements: Sequence[Measurement], provenance: dict[str, object], title: str) -> Page:
    """One page: headline numbers, a bar figure, a module table and a logit map for every task."""
    page = Page(title)
    page.text(
        "The model's logits are taken apart, exactly, into what each attention and MLP sublayer and the embedding "
        "wrote to them. Each of these components is then read as a member of an ensemble. Bias is how far a member's "
        "own prediction is from the gold answer, diversity how far it is from the members' mean; the ensemble's "
        "squared error is the mean bias minus the mean diversity (Theorem 1). Net is bias minus diversity, "
        "a member's own part of the error."
    )
    for m in measurements:
        row = m.frame().iloc[0]
        page.heading(f"{m.task.name}: {' / '.join(option.strip() for option in m.task.options)}")
        page.facts(
            {
                "accuracy": (f"{row.accuracy:.1%}", f"95 % [{row.accuracy_low:.1%}, {row.accuracy_high:.1%}]"),
                "bag of words": (
                    f"{row.bag_of_words:.1%}",
                    f"95 % [{row.bag_of_words_low:.1%}, {row.bag_of_words_high:.1%}], chance {row.chance:.0%}",
                ),
                "loss = bias − diversity": (
                    f"{row.loss:.3g} = {row.bias:.3g} − {row.diversity:.3g}",
                    f"logits²; centred {row.loss_centred:.3g} = {row.bias_centred:.3g} − {row.diversity_centred:.3g}",
                ),
                "identity gap": (f"{row.identity_gap:.0e}", f"of Σ|u|; {row.absolute_gap:.0e} logits at most"),
            }
        )
        page.figure(
            component_bars(m.decomposition, title=f"Bias, diversity and net of {row.members} components"),
            "Each bar is one component's own value, averaged over the rows, with a 95 % bootstrap interval. "
            "Components that write next to nothing about these options stand at the dotted line. "
            "Raw numbers hold a shift common to all options, which softmax cannot see: "
            f"{_unseen(m):.1%} of the raw diversity here. Centred numbers leave it out.",
        )
        page.table(
            module_table(m),
            "Modules (Eq. 9-10): each row is (members / all members) × the mean over the module's members, so the "
            "rows add up to the last. In logits². Where a share of diversity differs from the share of members, "
            "the module is more or less diverse than its size alone would make it.",
        )
        page.figure(
            contribution_map(m.contributions),
            "What each component writes to the logit of each option, on average. Blue lowers it, vermilion raises it.",
        )
    page.small("Model: " + "; ".join(f"{key} {value}" for key, value in provenance.items()) + ".")
    return page


def _unseen(measurement: Measurement) -> float:
    shift = measurement.decomposition.shift
    assert shift is not None
    return shift.diversity / measurement.decomposition.diversity


def _interval(row: pd.Series, name: str) -> str:
    return f"{row[name]:.3f} [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]"

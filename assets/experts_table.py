"""What the stored table on the zoo's experts says: intervals over seeds, and the figure. Written by `experts.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from scipy.stats import t as student

from layerdiv_tl.views import style

HERE = Path(__file__).parent
TABLE, FIGURE = HERE / "experts.csv", HERE / "experts.png"
SEEDS = ("", "-seed1", "-seed2")
TASKS = {
    "recall": "synthetic/recall:seed=1",
    "sums": "synthetic/modular:largest=19,seed=1",
    "1 hop": "synthetic/k_hop:hops=1,seed=1",
    "2 hops": "synthetic/k_hop:seed=1",
}


def over_seeds(values: Any) -> tuple[float, float, float]:
    """The mean of a number of each seed, with Student's interval."""
    values = np.asarray(values, dtype=float)
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(values.mean() - half), float(values.mean() + half)


# Of the mixture and of a plain model: which members are compared.
PAIRS = {
    "embedding, attention and 8 experts; d6, 13 members each": ("all, experts", "zoo/d6", "all"),
    "the same 13 members; d4, 9 members": ("all, experts", "zoo/d4", "all"),
    "whole mixtures; d4, 9 members each": ("all", "zoo/d4", "all"),
    "8 experts; 8 MLPs of d8": ("experts", "zoo/d8", "MLPs"),
}


def ratios(table: pd.DataFrame) -> pd.DataFrame:
    """The mixture's diversity over that of plain models; Welch's interval of logs over seeds.

    A task counts where all six runs answer 90 % of it. "mean" is the geometric mean over these tasks.
    """
    table = table.assign(shape=table["run"].str.replace(r"-seed\d", "", regex=True))
    learned = table[table["what"] == "accuracy"].groupby(["shape", "task"])["value"].min().ge(0.9)
    found, rows = table[table["what"] == "diversity"], []
    for pair, (members, shape, plain) in PAIRS.items():
        tasks = [task for task in TASKS if learned["zoo/moe", task] and learned[shape, task]]
        for about in ("diversity_centered", "diversity_logit_centered"):
            for task in (*tasks, "mean"):
                sides = []
                for name, kept in (("zoo/moe", members), (shape, plain)):
                    own = found[(found["shape"] == name) & (found["members"] == kept) & (found["about"] == about)]
                    own = own[own["task"].isin(tasks if task == "mean" else [task])]
                    sides.append(np.log(own["value"].astype(float)).groupby(own["run"]).mean().to_numpy())
                errors = [side.var(ddof=1) / len(side) for side in sides]
                free = sum(errors) ** 2 / sum(e**2 / (len(s) - 1) for e, s in zip(errors, sides, strict=True))
                middle, half = sides[0].mean() - sides[1].mean(), student.ppf(0.975, free) * sum(errors) ** 0.5
                ends = np.exp([middle, middle - half, middle + half])
                row = {"compared": pair, "about": about, "task": task}
                row |= dict(zip(("ratio", "low", "high"), ends, strict=True))
                rows.append(row | {"says": "differs" if abs(middle) > half else "cannot tell"})
    return pd.DataFrame(rows)


def within(table: pd.DataFrame) -> pd.DataFrame:
    """Of the diversity of 8 members, the share within 4 pairs, mean over tasks: experts of a layer, neighbors in d8.

    Pairs drawn at random have 4/7.
    """
    rows = []
    for members, of in (("experts", "the two experts of a layer"), ("MLPs", "MLPs of neighboring layers of d8")):
        own = table[(table["about"] == "within pairs") & (table["members"] == members)]
        mean, low, high = over_seeds(own.groupby("run")["value"].mean())
        rows.append({"pairs": of, "share": mean, "low": low, "high": high, "at random": 4 / 7})
    return pd.DataFrame(rows)


def routing(table: pd.DataFrame) -> pd.DataFrame:
    """What routers know, mean over layers, by seed: over seeds, beyond permutations and beyond the untrained router."""
    rows = []
    for what, abouts in (("routing", ("token", "position given token", "task")), ("router", None)):
        own = table[table["what"] == what]
        for about in abouts or own["about"].unique():
            one = own[own["about"] == about].assign(beyond=lambda f: f["value"] - f["null"].fillna(0.0))
            of_run = one.groupby(["trained", "run"])["beyond"].mean()
            row: dict[str, Any] = {"about": about}
            for name, values in (
                ("trained", of_run[True]),
                ("untrained", of_run[False]),
                ("difference", of_run[True] - of_run[False]),
            ):
                row |= dict(zip((name, name + "_low", name + "_high"), over_seeds(values), strict=True))
            rows.append(row | {"largest_p": one.loc[one["trained"].astype(bool), "p"].max()})
    return pd.DataFrame(rows)


def figure(table: pd.DataFrame) -> go.Figure:
    """What routers know, before and after training, and the ratios of diversities."""
    fig = make_subplots(rows=1, cols=2, column_widths=[0.42, 0.58], horizontal_spacing=0.32)
    abouts = ["token", "position given token", "task"]
    own = table[table["what"] == "routing"].assign(beyond=lambda f: f["value"] - f["null"])
    for number, (trained, name) in enumerate(((False, "before training"), (True, "trained"))):
        runs = own[own["trained"].astype(bool) == trained].groupby(["about", "run"])["beyond"].mean()
        x = np.repeat(np.arange(3) + 0.24 * number - 0.12, len(SEEDS))
        y = np.concatenate([runs[about].to_numpy() for about in abouts])
        fig.add_scatter(x=x, y=y, mode="markers", marker_color=style.SERIES[number], name=name, row=1, col=1)
    fig.update_xaxes(tickvals=[0, 1, 2], ticktext=["token", "position,<br>given token", "task"], row=1, col=1)
    fig.update_yaxes(
        title_text="information on the pair of experts,<br>share of its entropy", rangemode="tozero", row=1, col=1
    )
    found = ratios(table)
    found = found[found["task"] == "mean"]
    for number, about in enumerate(("diversity_centered", "diversity_logit_centered")):
        rows = found[found["about"] == about]
        y = np.arange(len(rows))[::-1] + 0.2 * number - 0.1
        bars = {"array": rows["high"] - rows["ratio"], "arrayminus": rows["ratio"] - rows["low"], "symmetric": False}
        name = "size-fair diversity" if number else "diversity"
        about = {"mode": "markers", "marker_color": style.SERIES[2 + number], "name": name}
        fig.add_scatter(x=rows["ratio"], y=y, error_x=bars, row=1, col=2, **about)
    names = [name.replace("; ", ";<br>").replace(" and 8", "<br>and 8") for name in PAIRS]
    fig.update_yaxes(tickvals=np.arange(len(PAIRS))[::-1], ticktext=names, row=1, col=2)
    fig.update_xaxes(
        type="log", tickvals=[0.5, 1, 2, 4], title_text="mixture / plain model, 95 % over seeds", row=1, col=2
    )
    fig.add_vline(x=1, line_dash="dot", row=1, col=2)
    fig.update_traces(marker_size=9)
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    fig.update_layout(template="plotly_white", width=1000, height=420, legend=legend, margin={"t": 60, "r": 20})
    return fig

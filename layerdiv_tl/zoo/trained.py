"""The models that come with the package: their names, files and training logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._checks import shown
from ..errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from ..model.load import Loadable

PREFIX = "zoo/"
FOLDER = Path(__file__).parent / "models"
# Depth, or width and depth; `shared` blocks each run twice; `moe` has experts.
SHORT = (
    *("d1", "d2", "d4", "d6", "d8", "d12"),
    *("d1-seed1", "d2-seed1", "d4-seed1", "d6-seed1", "d8-seed1"),
    *("d1-seed2", "d2-seed2", "d4-seed2", "d6-seed2", "d8-seed2"),
    *("d4-shared", "d8-shared", "d12-shared"),
    *("d4-shared-seed1", "d8-shared-seed1", "d4-shared-seed2", "d8-shared-seed2"),
    *("w32-d2", "w32-d4", "w96-d2", "w96-d4"),
    *("moe", "moe-seed1", "moe-seed2"),
)
COLUMNS = ("depth", "width", "shared", "experts", "seed", "parameters", "members")
NAMES = tuple(PREFIX + short for short in SHORT)
# k_hop defaults to two hops, so its tasks are listed by their full names.
TASKS = (
    "synthetic/k_hop:hops=1",
    "synthetic/k_hop",
    "synthetic/k_hop:hops=3",
    "synthetic/k_hop:hops=4",
    "synthetic/recall",
    "synthetic/modular:largest=19",
)


def source(name: str) -> Loadable:
    """Load the weights and the tokenizer of `load_model("zoo/name")`: trained ones in float32, planted ones in float64.

    Raises InputError for a name that is not in the zoo.
    """
    from ..model.load import Loadable, load_model

    short = name.removeprefix(PREFIX)
    is_planted = short.startswith("planted-") and (FOLDER / short).is_dir()
    if not is_planted and short not in SHORT:
        raise InputError(
            f"there is no {shown(name)} in the zoo: choose among {', '.join(NAMES)}, or zoo/planted-NAME with one of "
            "ld.zoo.PLANTED."
        )
    tokenizer, dtype = (FOLDER / short, "float64") if is_planted else (FOLDER, "float32")
    loaded = load_model(FOLDER / short, tokenizer=str(tokenizer), dtype=dtype, device="cpu")
    root: Any = loaded.root
    root.config._name_or_path = short
    if getattr(root.config, "layer_sharing", False):
        repeat_blocks(root)
    return Loadable(root, loaded.tokenizer)


def repeat_blocks(model: Any) -> None:
    """Let every block of a Llama run twice in a row, as in MobileLLM (Liu et al. 2024)."""
    from torch import nn

    model.model.layers = nn.ModuleList([block for block in model.model.layers for _ in range(2)])
    model.config.num_hidden_layers *= 2
    # Both runs of a block would write to the same place of a cache.
    model.config.use_cache = model.generation_config.use_cache = False


def training_log(name: str, folder: Path = FOLDER) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read (settings, evaluations in order) from the training log of a model, e.g. "zoo/d4"."""
    lines = (folder / "logs" / f"{name.removeprefix(PREFIX)}.jsonl").read_text(encoding="utf-8").splitlines()
    settings, *evaluations = map(json.loads, lines)
    return settings, evaluations


def models() -> pd.DataFrame:
    """List the trained models, one per row, with their accuracy on each task after training.

    `shape` is the name without its training seed. `experts` is the number of experts per layer, 0 for an MLP.
    `parameters` counts shared blocks once, and all experts. `members` is |L|, the components at unit sublayer.
    `attrs["rows"]` is the number of rows per task behind the accuracy.

    >>> frame = models()
    >>> frame.loc[frame["name"] == "zoo/d4-seed1", ["shape", "seed", "depth", "width", "members"]].values.tolist()
    [['d4', 1, 4, 64, 9]]
    """
    import pandas as pd

    rows = []
    for name in NAMES:
        settings, evaluations = training_log(name)
        row = {"name": name, "shape": name.removeprefix(PREFIX).partition("-seed")[0], "experts": 0}
        row |= {key: settings[key] for key in COLUMNS if key in settings}
        rows.append(row | evaluations[-1]["accuracy"])
    frame = pd.DataFrame(rows)
    frame.attrs["rows"] = evaluations[-1]["rows"]  # the same for all
    return frame

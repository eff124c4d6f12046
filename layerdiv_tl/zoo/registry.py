"""The trained models of the zoo: their names, files and measured accuracies."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._checks import listed, shown, text
from ..errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from ..model.load import Loadable

PREFIX = "zoo/"
FOLDER = Path(__file__).parent / "models"
HOPS = (1, 2, 3, 4)
ACTIVE = 2  # experts per token in a mixture
# k_hop defaults to two hops, so its tasks are listed by their full names.
TASKS = (
    *("synthetic/k_hop" if hops == 2 else f"synthetic/k_hop:hops={hops}" for hops in HOPS),
    *("synthetic/recall", "synthetic/modular:largest=19"),
)


@dataclass(frozen=True)
class ZooModel:
    """One shape and training seed of the zoo, shipped or not.

    Attributes:
        depth, shared: Number of blocks run in a pass. With `shared`, half as many blocks each run twice in a row.
        width, seed: Width of the residual stream (MLPs are twice, heads half as wide); seed of the initial weights and
            the training rows.
        experts: Number of experts that replace each MLP, each of its size, two per token; 0 for an MLP.

    >>> ZooModel(8, shared=True).name, ZooModel(4, width=96).name, ZooModel(2, seed=1).name
    ('zoo/d8-shared', 'zoo/w96-d4', 'zoo/d2-seed1')
    >>> ZooModel(4, experts=4, seed=1).name
    'zoo/moe-seed1'
    """

    depth: int
    width: int = 64
    shared: bool = False
    seed: int = 0
    experts: int = 0

    @property
    def short(self) -> str:
        """The folder's name."""
        wide = f"w{self.width}-" if self.width != ZooModel.width else ""
        shape = "moe" if self.experts else f"d{self.depth}"
        return f"{wide}{shape}{'-shared' * self.shared}{f'-seed{self.seed}' * bool(self.seed)}"

    @property
    def name(self) -> str:
        """The name for `load_model`."""
        return PREFIX + self.short

    @property
    def folder(self) -> Path:
        """The model's folder in this package."""
        return FOLDER / self.short

    @property
    def members(self) -> int:
        """|L| at unit sublayer: the embedding, and an attention and an MLP for every block that runs."""
        return 1 + 2 * self.depth


MODELS = (
    *(ZooModel(depth, seed=seed) for seed in range(3) for depth in (1, 2, 4, 6, 8, 12)),
    *(ZooModel(depth, shared=True, seed=seed) for seed in range(3) for depth in (4, 8, 12)),
    *(ZooModel(depth, width=width) for width in (32, 96) for depth in (2, 4)),
    *(ZooModel(4, experts=4, seed=seed) for seed in range(3)),
)
SHIPPED = tuple(model for model in MODELS if (model.folder / "model.safetensors").is_file())
NAMES = tuple(model.name for model in SHIPPED)


def find_model(name: str, among: tuple[ZooModel, ...] = MODELS) -> ZooModel:
    """Find the model of a name, with or without `zoo/`. Raises InputError for a name that is not on the list.

    >>> find_model("zoo/d4").members
    9
    """
    for model in among:
        if isinstance(name, str) and name in (model.name, model.short):
            return model
    names = ", ".join(model.name for model in among)
    raise InputError(f"there is no {shown(name)} in the zoo: choose among {names}, or one of ld.zoo.PLANTED.")


def seeds(names: str | Iterable[str] = NAMES) -> dict[str, tuple[str, int]]:
    """Return {name: (shape, seed)} of the zoo's models among these names.

    Models of one shape differ only in their training seed. Raises InputError for anything but a list of names.

    >>> seeds(["zoo/d4", "zoo/d4-seed1", "zoo/d8-shared", "gpt2"])
    {'zoo/d4': ('d4', 0), 'zoo/d4-seed1': ('d4', 1), 'zoo/d8-shared': ('d8-shared', 0)}
    """
    known = {model.name: (replace(model, seed=0).short, model.seed) for model in MODELS}
    what = "a list of models' names, such as ld.zoo.NAMES"
    names = [names] if isinstance(names, str) else listed("names", names, what)
    return {name: known[name] for name in (text("names", name) for name in names) if name in known}


def load(name: str) -> Loadable:
    """Load a model that comes with the package, in float32, and its tokenizer."""
    from ..model.load import Loadable, load_model

    model = find_model(name, SHIPPED)
    loaded = load_model(model.folder, tokenizer=str(FOLDER), dtype="float32", device="cpu")
    root: Any = loaded.architecture.root
    root.config._name_or_path = model.short
    return Loadable(root, loaded.tokenizer)


def training_log(model: ZooModel, folder: Path = FOLDER) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read (settings, evaluations in order) from a model's training log."""
    lines = (folder / "logs" / f"{model.short}.jsonl").read_text(encoding="utf-8").splitlines()
    settings, *evaluations = map(json.loads, lines)
    return settings, evaluations


def models() -> pd.DataFrame:
    """List the models that come with the package, one per row, with their accuracy on each task after training.

    `experts` is the number of experts per layer, 0 for an MLP. `parameters` counts shared blocks once, and all
    experts. `members` is |L|. `attrs["rows"]` is the number of rows per task behind the accuracy.

    >>> frame = models()
    >>> frame.loc[frame["name"] == "zoo/d4", ["depth", "width", "shared", "members"]].values.tolist()
    [[4, 64, False, 9]]
    """
    import pandas as pd

    rows = []
    for model in SHIPPED:
        settings, evaluations = training_log(model)
        row = {"name": model.name, "depth": model.depth, "width": model.width, "shared": model.shared}
        row |= {"experts": model.experts, "seed": model.seed}
        row |= {"parameters": settings["parameters"], "members": model.members}
        rows.append(row | evaluations[-1]["accuracy"])
    frame = pd.DataFrame(rows)
    frame.attrs["rows"] = evaluations[-1]["rows"]  # the same for all
    return frame

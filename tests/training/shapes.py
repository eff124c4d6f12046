"""The shapes and seeds of the zoo's trained models, shipped or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from layerdiv_tl.errors import InputError
from layerdiv_tl.zoo.trained import FOLDER, PREFIX

ACTIVE = 2  # experts per token in a mixture


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


def find_model(name: str, among: tuple[ZooModel, ...] = MODELS) -> ZooModel:
    """Find the model of a name, with or without `zoo/`. Raises InputError for a name that is not on the list.

    >>> find_model("zoo/d4").members
    9
    """
    for model in among:
        if isinstance(name, str) and name in (model.name, model.short):
            return model
    names = ", ".join(model.name for model in among)
    raise InputError(f"there is no {name!r} in the zoo: choose among {names}.")

"""The rank of this process and the number of processes, as Accelerate, torchrun or SLURM launched them."""

from __future__ import annotations

import os
import secrets

from ..errors import InputError


def rank_and_world() -> tuple[int, int]:
    """This process's number and how many there are: `accelerate launch`, `srun`, tasks of a SLURM array, or (0, 1).

    An array may launch several processes in each of its tasks. Raises InputError for variables that are no such
    numbers.
    """
    rank, world = _pair("RANK", "WORLD_SIZE") if "WORLD_SIZE" in os.environ else _pair("SLURM_PROCID", "SLURM_NTASKS")
    task, least, step = (_number(f"SLURM_ARRAY_TASK_{name}", default) for name, default in _ARRAY)
    tasks = _number("SLURM_ARRAY_TASK_COUNT", 1)
    # --array=3-9:2 has the tasks 3, 5, 7 and 9; of 1,5,6 two may begin at one place, which costs only order.
    index = (task - least) // max(1, step) % max(1, tasks)
    return index * world + rank, max(1, tasks) * world


def first_shard(count: int) -> int:
    """The shard to begin with: process r of W at its part, unrelated ones apart by chance (ids may be the same)."""
    rank, world = rank_and_world()
    return rank * count // world if world > 1 else secrets.randbelow(max(1, count))


# A task's number, the first one's, and the step between two.
_ARRAY = (("ID", 0), ("MIN", 0), ("STEP", 1))


def _pair(rank: str, world: str) -> tuple[int, int]:
    own, count = _number(rank, 0), _number(world, 1)
    if not 0 <= own < count:
        raise InputError(
            f"{rank}={own} in the environment does not number one of {world}={count} processes, from 0 on: "
            "unset both, or launch it again."
        )
    return own, count


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    try:
        return int(text) if text else default
    except ValueError as error:
        raise InputError(f"{name}={text!r} in the environment is not a number: unset it, or give one.") from error

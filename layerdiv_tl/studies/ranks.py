"""The rank of this process and the number of processes, as Accelerate, torchrun or SLURM launched them."""

from __future__ import annotations

import os
import secrets

from ..errors import InputError


def rank_and_world() -> tuple[int, int]:
    """Return (rank, world size) from `accelerate launch`, `srun` or the tasks of a SLURM array; otherwise (0, 1).

    Each task of an array may launch several processes. Raises InputError if these variables are not valid numbers.
    """
    rank, world = _pair("RANK", "WORLD_SIZE") if "WORLD_SIZE" in os.environ else _pair("SLURM_PROCID", "SLURM_NTASKS")
    task, least, step = (_number(f"SLURM_ARRAY_TASK_{name}", default) for name, default in _ARRAY)
    tasks = _number("SLURM_ARRAY_TASK_COUNT", 1)
    # --array=3-9:2 has the tasks 3, 5, 7 and 9; two tasks of 1,5,6 may begin at the same shard, which is harmless.
    index = (task - least) // max(1, step) % max(1, tasks)
    return index * world + rank, max(1, tasks) * world


def first_shard(count: int) -> int:
    """Return the shard to begin with: the start of this rank's part, or a random one for unrelated processes."""
    rank, world = rank_and_world()
    return rank * count // world if world > 1 else secrets.randbelow(max(1, count))


# The task's number, the first task's number, and the step.
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

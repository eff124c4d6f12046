"""What runs take: floating-point operations, and memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

# PyTorch counts attention by the names of its kernels, and leaves out the one for CPUs.
_ON_CPU = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
}


@contextmanager
def operations() -> Iterator[Callable[[], int]]:
    """Count the floating-point operations of what runs inside."""
    with FlopCounterMode(display=False, custom_mapping=_ON_CPU) as counter:
        yield counter.get_total_flops


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Callable[[], tuple[float, float]]]:
    """The memory that was taken when this began, and the most since then: the device's, or this process's."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: (before, torch.cuda.max_memory_allocated(device))
        return
    process, done = psutil.Process(), threading.Event()
    seen: list[Any] = [process.memory_info().rss]

    def watch() -> None:
        while not done.wait(0.005):
            seen.append(max(seen[-1], process.memory_info().rss))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: (seen[0], max(seen[-1], process.memory_info().rss))
    finally:
        done.set()
        thread.join()

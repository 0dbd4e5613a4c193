"""Many models in parts that stay in the processor's cache, each part on a core of its own.

Threads that share a product wait for each other several times a step: on busy cores two took six to ten times as long
as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch

TILE_BYTES = 8 * 2**20  # what all models of a tile work on stays in cache
_FEWEST = 8  # models for which a core of their own is worth its start


def models_per_tile(bytes_each: int) -> int:
    """How many models are in hand at a time if each works on so many bytes."""
    return max(1, TILE_BYTES // bytes_each)


def tiles(models: int, bytes_each: int) -> list[slice]:
    """Slices of as many models as are in hand at a time, of equal length up to one, enough for every thread of torch.

    >>> [tile.stop for tile in tiles(5, TILE_BYTES // 2)]
    [1, 3, 5]
    """
    count = -(-models // models_per_tile(bytes_each))
    count = max(count, min(torch.get_num_threads(), models // _FEWEST))
    ends = [models * number // count for number in range(count + 1)]
    return [slice(begin, end) for begin, end in pairwise(ends)]


def in_threads(work: Callable[[slice], None], parts: Sequence[slice]) -> None:
    """Do the work on all parts, as many at a time as torch has threads, each with one.

    Threads that share a product wait for each other many times a step, and where other programs run, the last of them
    is late each time: on two busy cores that took six to ten times as long as one thread alone.
    """
    threads = min(torch.get_num_threads(), len(parts))
    if threads == 1:
        for part in parts:
            work(part)
        return
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        without_gradients = torch.no_grad()(work)  # each thread has a mode of its own
        for done in [pool.submit(without_gradients, part) for part in parts]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)  # what a thread sets is what threads to come begin with

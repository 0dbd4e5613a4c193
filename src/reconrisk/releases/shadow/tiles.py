"""Many models in parts that stay in the processor's cache, each part on its own core.

Threads that share a product wait for each other several times a step: on busy cores two of them took six to ten times
as long as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch

TILE_BYTES = 8 * 2**20  # working set of all models of a tile, so that it stays in cache
_FEWEST = 8  # models that make a separate thread worth its start


def models_per_tile(bytes_each: int) -> int:
    """Return the number of models whose working set fits into the cache.

    Args:
        bytes_each: Bytes that one model works on.

    Returns:
        Number of models, at least 1.
    """
    return max(1, TILE_BYTES // bytes_each)


def split_into_tiles(models: int, bytes_each: int) -> list[slice]:
    """Split models into slices that fit into the cache, of equal length up to one, enough for every thread of torch.

    Args:
        models: Number of models.
        bytes_each: Bytes that one model works on.

    Returns:
        Consecutive slices over all models.

    >>> [tile.stop for tile in split_into_tiles(5, TILE_BYTES // 2)]
    [1, 3, 5]
    """
    count = -(-models // models_per_tile(bytes_each))
    count = max(count, min(torch.get_num_threads(), models // _FEWEST))
    ends = [models * number // count for number in range(count + 1)]
    return [slice(begin, end) for begin, end in pairwise(ends)]


def run_in_threads(work: Callable[[slice], None], parts: Sequence[slice]) -> None:
    """Process all parts, as many at a time as torch has threads, each in one thread.

    Threads that share a product wait for each other many times a step. If other programs run, the last of them is late
    each time: on two busy cores that took six to ten times as long as one thread alone.

    Args:
        work: Function that processes one part.
        parts: The parts.
    """
    threads = min(torch.get_num_threads(), len(parts))
    if threads == 1:
        for part in parts:
            work(part)
        return
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        without_gradients = torch.no_grad()(work)  # grad mode is local to a thread
        for done in [pool.submit(without_gradients, part) for part in parts]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)  # new threads inherit the last value that any thread has set

"""How a batch of states is shared out: in blocks that caches hold, to all threads.

Each block has a place of its own for its result, and results are added in the order of the blocks,
so that they do not depend on the number of threads.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import torch

BLOCK = 32  # states; what the kernels keep of 128 groups and 8 rounds then has 3 MB
Block = tuple[int, int]

_threads_taken: list[int] = []  # the number of torch's threads, while they are ours


def blocks_of(count: int) -> list[Block]:
    """Return (first, last + 1) of the blocks of so many states."""
    return [(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK)]


def for_each_block(function: Callable[[int, Block], None], blocks: Sequence[Block]) -> None:
    """Call a function, which leaves the interpreter lock, with the index of each block and it."""
    threads = _threads_taken[-1] if _threads_taken else torch.get_num_threads()
    if threads == 1 or len(blocks) == 1:
        for index, block in enumerate(blocks):
            function(index, block)
    else:
        list(_pool(threads).map(function, range(len(blocks)), blocks))


@contextmanager
def threads_for_blocks() -> Iterator[None]:
    """Let blocks and evaluators have the threads that torch would use within its operations.

    Between two operations torch's threads spin, and would keep an evaluator's threads from the
    cores. Besides, what one thread computes is the same whatever their number.
    """
    threads = torch.get_num_threads()
    _threads_taken.append(_threads_taken[-1] if _threads_taken else threads)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _threads_taken.pop()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)

"""How many threads torch has while a policy is at work."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread_of_torch() -> Iterator[None]:
    """Leave the cores to the evaluator's threads, and to other processes of a training.

    Between two small operations torch's threads spin, and would keep others from the cores.
    Besides, what one thread computes is the same whatever their number.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

"""Number of threads of torch while a policy runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread_of_torch() -> Iterator[None]:
    """Run torch on one thread; the evaluator and other processes have the other cores.

    Threads of torch spin between small operations, and would occupy the cores. One thread also
    computes the same on any number of cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

"""The threads of the workers."""

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress

from placeto_execution.clock import Clock
from placeto_execution.halt import Halt
from placeto_execution.worker import Worker


class Crew:
    """A thread for each device, which stays for the next step: its memory is at hand then.

    Parameters
    ----------
    names
        Of the devices.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._threads: list[ThreadPoolExecutor] = []

    def work(self, workers: Sequence[Worker], clock: Clock, halt: Halt) -> None:
        """Let workers run a step; when this returns or raises, none of them works any more.

        Where something goes wrong, the threads end, too.
        """
        if not self._threads:
            self._threads = [
                ThreadPoolExecutor(1, thread_name_prefix=f"placeto {name}") for name in self._names
            ]
        at_work: list[Future[None]] = []
        try:
            with _garbage_left_alone():
                for worker, thread in zip(workers, self._threads, strict=True):
                    at_work.append(thread.submit(worker.work))
                for worker in workers:
                    worker.is_set_up.wait()
                clock.start()
                for worker in workers:
                    worker.may_start.set()
                wait(at_work)
        except BaseException as error:
            halt.call(error)
            self._end(workers, at_work)
            raise
        if halt.error is not None:
            self.close()
            raise halt.error

    def close(self) -> None:
        """End the threads."""
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.shutdown()

    def _end(self, workers: Sequence[Worker], at_work: Sequence[Future[None]]) -> None:
        """Wait for workers that were told to stop, however often that is interrupted."""
        for worker in workers:
            worker.may_start.set()
        while not all(future.done() for future in at_work):
            with suppress(KeyboardInterrupt):  # the first one is on its way up
                wait(at_work)
        self.close()


@contextmanager
def _garbage_left_alone() -> Iterator[None]:
    """Collect no garbage meanwhile: that would stop all workers at times of its own."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

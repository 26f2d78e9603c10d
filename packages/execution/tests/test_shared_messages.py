"""Messages in shared memory: order, waiting without a core, and cores that devices share."""

import errno
import multiprocessing
import os
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from placeto_execution.errors import ExecutionError
from placeto_execution.programs import Message
from placeto_execution.shared_messages import SharedMessages

NUM_MESSAGES, NUM_STEPS = 40, 3


def messages(count: int) -> list[Message]:
    return [Message(op=0, tensor=0, source=0, destination=1, link=0) for _ in range(count)]


def send(shared: SharedMessages, message_id: int, value: int, delay: float = 0.0) -> None:
    shared.put(message_id, [torch.full((1000,), value)])
    shared.announce(message_id, time.monotonic() + delay)


@pytest.mark.parametrize("share_cores", [False, True])
def test_all_of_each_message_is_there_in_whatever_order_they_are_taken(share_cores: bool) -> None:
    shared = SharedMessages(messages(NUM_MESSAGES), 2, share_cores=share_cores)
    steps = multiprocessing.get_context("fork").Semaphore(0)

    def source() -> None:
        for step in range(NUM_STEPS):
            steps.acquire()
            for message_id in range(NUM_MESSAGES):
                send(shared, message_id, NUM_MESSAGES * step + message_id)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=source, daemon=True)
    process.start()
    for step in range(NUM_STEPS):
        steps.release()
        for message_id in sorted(range(NUM_MESSAGES), key=lambda index: index * 7 % NUM_MESSAGES):
            buffer = torch.empty(1000, dtype=torch.int64)
            shared.wait(message_id)
            shared.take(message_id, [buffer])
            assert (buffer == NUM_MESSAGES * step + message_id).all()
    process.join()
    shared.close()


@pytest.mark.parametrize("delay", [0.0, 0.5])
def test_one_that_waits_long_sleeps(delay: float) -> None:
    """Be it for a message, or for a link that carries one."""
    shared = SharedMessages(messages(1), 2)
    sender = threading.Timer(0.5, send, (shared, 0, 1, delay))
    sender.start()
    began, began_to_work = time.monotonic(), time.thread_time()
    shared.wait(0)
    assert time.monotonic() - began >= 0.5 + delay - 0.01
    assert time.thread_time() - began_to_work < 0.1
    sender.join()
    shared.close()


def test_full_shared_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("multiprocessing.context.BaseContext.Semaphore", full)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1234))
    monkeypatch.setattr("mmap.PAGESIZE", 4096)
    expected = r"^/dev/shm: expected 8,192 bytes for semaphores .*, got 1,234 free; delete files"
    with pytest.raises(ExecutionError, match=expected):
        SharedMessages([Message(0, 0, 0, 1, 0), Message(1, 1, 1, 0, 0)], 2)

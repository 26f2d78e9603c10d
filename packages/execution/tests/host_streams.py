"""Streams that do at once what is issued, so that the interpreter of GPUs runs without one."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from placeto_execution import streams


@dataclass(frozen=True)
class HostMoment:
    time: float

    @property
    def has_come(self) -> bool:
        return time.monotonic() >= self.time

    def seconds(self) -> float:
        return self.time


class HostStream:
    """Has done what was issued at ``done_at``, if that is later."""

    done_at = 0.0

    def __init__(self, _name: str, _purpose: str) -> None:
        """Nothing."""

    def nothing(self, *_: Any) -> None:
        """Nothing: all is there, and all has come."""

    set_clock = enter = wait = keep = nothing

    def mark(self) -> HostMoment:
        return HostMoment(max(time.monotonic(), self.done_at))

    def staging(self, buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.empty_like(buffer) for buffer in buffers]


@contextmanager
def host_streams(new_stream: Any = HostStream) -> Iterator[pytest.MonkeyPatch]:
    """Let streams be others than those of GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "_Stream", new_stream)
        patch.setattr(streams.StreamedDevices, "_on_own_streams", lambda _: nullcontext())
        patch.setattr(streams.StreamedDevices, "_finish", lambda _: None)
        yield patch

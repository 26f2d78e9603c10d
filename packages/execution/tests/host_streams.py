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
        return True

    def seconds(self) -> float:
        return self.time


class HostStream:
    def __init__(self, _name: str, _purpose: str) -> None:
        """Nothing."""

    def set_clock(self) -> None:
        """Nothing."""

    def enter(self) -> None:
        """Nothing."""

    def mark(self) -> HostMoment:
        return HostMoment(time.monotonic())

    def wait(self, moment: HostMoment) -> None:
        """Nothing: it has come."""

    def keep(self, buffer: torch.Tensor) -> None:
        """Nothing."""

    def staging(self, buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.empty_like(each) for each in buffers]


@contextmanager
def host_streams(new_stream: Any = HostStream) -> Iterator[pytest.MonkeyPatch]:
    """Let streams be others than those of GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "_Stream", new_stream)
        patch.setattr(streams.StreamedDevices, "_on_own_streams", lambda _: nullcontext())
        patch.setattr(streams.StreamedDevices, "_finish", lambda _: None)
        yield patch

"""Automatic mixed precision of GPUs, on fake tensors that PyTorch takes for tensors of a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

GPU, FAKE = "cuda", "cpu"


@contextmanager
def autocast_for_gpus() -> Iterator[None]:
    """Let ``torch.autocast("cuda")`` apply to fake tensors.

    PyTorch looks at the device of a tensor to tell which autocast applies, and switches that of
    GPUs off where there is no GPU. Here one that begins inside is that of CPUs, with the dtype that
    it would have on GPUs. Products and convolutions have their inputs cast by both. What only that
    of GPUs computes in float32, such as softmax, layer normalisation and losses, has the dtype of
    its input.
    """
    begin = torch.autocast.__init__

    def begin_on_fake(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        *args: Any,
        **keywords: Any,
    ) -> None:
        if device_type == GPU:
            device_type, dtype = FAKE, dtype or torch.get_autocast_dtype(GPU)
        begin(self, device_type, dtype, *args, **keywords)

    with mock.patch.object(torch.autocast, "__init__", begin_on_fake):
        yield

"""The devices of `placeto-execution` as PyTorch has them."""

from collections.abc import Sequence

import torch

from placeto_capture.errors import CaptureError


def torch_devices(names: Sequence[str]) -> list[torch.device]:
    """Return the devices of some names; each ``"cpu:N"`` is a worker of the one CPU.

    Raises
    ------
    CaptureError
        When there is no such device.
    """
    return [_device(number, name) for number, name in enumerate(names)]


def _device(number: int, name: str) -> torch.device:
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or not index.isdecimal():
        raise CaptureError(f"devices[{number}]: expected cpu:NUMBER or cuda:NUMBER, got {name!r}")
    if kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if int(index) >= count:
        raise CaptureError(
            f"devices[{number}]: expected one of {count} CUDA devices that PyTorch finds here, "
            f"got {name!r}"
        )
    return torch.device(name)

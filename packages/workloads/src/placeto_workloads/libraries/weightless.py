"""Models whose weights have shapes but no memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

Model = TypeVar("Model", bound=nn.Module)


def built(make: Callable[[], Model], device: torch.device | str, seed: int) -> Model:
    """Build a model on a device.

    Parameters
    ----------
    make
        Builds it on the default device.
    device
        On the meta device its weights take no memory, however many there are; its buffers have
        their values, as steps may depend on them.
    seed
        Of the weights on any other device. The state of PyTorch's random numbers is left as it was.

    Examples
    --------
    >>> model = built(lambda: nn.Linear(100_000, 100_000), "meta", seed=0)
    >>> model.weight.device.type, model.weight.shape
    ('meta', torch.Size([100000, 100000]))
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if torch.device(device).type != "meta":
            return make().to(device)
        try:
            with _weights_on_meta():
                return make()
        except (MemoryError, RuntimeError) as error:
            if "can't allocate memory" not in str(error):
                raise
            with torch.device("meta"):  # one weight alone is too large to be made
                return make()


@contextmanager
def _weights_on_meta() -> Iterator[None]:
    """Move each weight as soon as a module gets it: what was made for it is unused memory yet."""
    moved: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # so that tied weights stay tied

    def move(_module: nn.Module, _name: str, weight: Any) -> Any:
        if type(weight) is not nn.Parameter or weight.is_meta:
            return None
        if id(weight) not in moved:
            there = nn.Parameter(weight.detach().to("meta"), requires_grad=weight.requires_grad)
            moved[id(weight)] = weight, there
        return moved[id(weight)][1]

    hook = register_module_parameter_registration_hook(move)
    try:
        yield
    finally:
        hook.remove()

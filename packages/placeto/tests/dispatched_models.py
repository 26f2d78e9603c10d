"""Models that accelerate has dispatched, on this machine and on GPUs that are not there."""

import warnings
from collections.abc import Mapping, Sequence

import accelerate
import torch
from accelerate.hooks import AlignDevicesHook, SequentialHook
from torch import nn
from torch._subclasses import FakeTensorMode

CPU = "cpu"
Target = int | str


def dispatch_on_cpu(model: nn.Module, modules: Mapping[str, Target]) -> None:
    """Let accelerate dispatch a model by a device map, with the CPU for each of its devices."""
    names = dict.fromkeys(modules, CPU)
    with warnings.catch_warnings():  # of weights that are directly in the model
        warnings.filterwarnings("ignore", "The following device_map keys do not match")
        accelerate.dispatch_model(model, names, main_device=CPU, force_hooks=True)


def forward_on_fake_gpus(
    model: nn.Module,
    modules: Mapping[str, Target],
    main_device: Target,
    inputs: Sequence[torch.Tensor] = (),
    keywords: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Run the forward pass of a dispatched model with fake tensors on fake GPUs.

    PyTorch then checks that each op finds all that it reads on one device; the backward pass runs
    where the forward pass did. Only accelerate moves tensors. The model is of no use afterwards.
    """
    moved: dict[torch.Tensor, torch.Tensor] = {}
    with FakeTensorMode() as mode, torch.no_grad():
        for name, module in model.named_modules():
            device = torch.device("cuda", int(_target(name, modules, main_device)))
            _move_own_tensors(module, device, moved)
            for hook in _hooks(module):
                hook.execution_device = device
        named = {name: mode.from_tensor(tensor) for name, tensor in (keywords or {}).items()}
        model(*[mode.from_tensor(tensor) for tensor in inputs], **named)


def _target(name: str, modules: Mapping[str, Target], main_device: Target) -> Target:
    """Return the device of the innermost module that is named, of those around a module."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return modules.get(name, main_device)


def _move_own_tensors(
    module: nn.Module, device: torch.device, moved: dict[torch.Tensor, torch.Tensor]
) -> None:
    """Put fakes in the place of what a module owns; weights that are tied stay so."""
    owned = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    for name, value in owned:
        if value not in moved:
            moved[value] = torch.empty(value.shape, dtype=value.dtype, device=device)
        if name in module._parameters:
            module._parameters[name] = nn.Parameter(moved[value], requires_grad=False)
        else:
            module._buffers[name] = moved[value]


def _hooks(module: nn.Module) -> list[AlignDevicesHook]:
    hook = getattr(module, "_hf_hook", None)
    hooks = hook.hooks if isinstance(hook, SequentialHook) else [hook]
    return [member for member in hooks if isinstance(member, AlignDevicesHook)]

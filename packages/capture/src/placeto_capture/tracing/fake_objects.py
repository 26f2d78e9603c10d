"""Lets a caller's modules, optimizers and other objects hold fake tensors for the time of a step.

They stay the same ones, so that closures, lists of weights and hooks work. Begin at `FakeObjects`.
"""

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from placeto_capture.errors import CaptureError, CaptureWarning
from placeto_capture.tracing.fake_memory import FakeMemory, is_plain

WRAPPERS = "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"
HOOKS = "_backward_hooks", "_post_accumulate_grad_hooks"
MAX_DEPTH = 4  # of tensors that have a name in an input: a cache has layers, which have tensors


class FakeObjects:
    """The objects that a step works with: modules by name, optimizers, others, and its inputs."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        changed_objects: Sequence[Any],
        inputs: Any,
        fake_mode: FakeTensorMode,
    ) -> None:
        for name, module in modules.items():
            for path, submodule in module.named_modules(prefix=name):
                _check(path or "model", submodule)
        resident = [named for name, module in modules.items() for named in _named(name, module)]
        self.memory = FakeMemory(resident, _tensors_in(inputs), fake_mode)
        self.names: dict[int, str] = {}
        for name, tensor in resident:
            if isinstance(tensor, nn.Parameter):
                self.names.setdefault(id(tensor), name)
        self.parameters = {name: t for name, t in resident if self.names.get(id(t)) == name}
        parameters = {id(tensor): tensor for tensor in self.parameters.values()}
        layers = [submodule for module in modules.values() for submodule in module.modules()]
        holders: list[Any] = [*optimizers, *changed_objects, *layers]
        # Copies have the same modules and weights in them, and buffers and inputs that are fake.
        self._memo = {
            **self.memory.fake_of,
            **{id(holder): holder for holder in holders},
            **parameters,
        }
        # A hook is removed from the dictionary that it was put into, which is the caller's.
        for layer in layers:
            hooks = [value for name, value in vars(layer).items() if "_hooks" in name]
            self._memo.update((id(value), value) for value in hooks)
        self._fake_mode = fake_mode
        self._held: dict[int, Any] = {}
        self._stack = ExitStack()
        self.optimizers = optimizers
        self.optimizers_with_state: set[int] = set()  # before the step, by identity
        for optimizer in optimizers:
            self._fake_state(optimizer)
        self.inputs = _copied("example_inputs", inputs, self._memo)
        self._contents = [
            (holder, _copied(type(holder).__name__, _contents(holder), self._memo))
            for holder in holders
        ]

    def hold(self, holder: Any) -> None:
        """Put back what is in an object that the step uses, if it was not given."""
        if id(holder) not in self._held:
            if isinstance(holder, torch.optim.Optimizer):
                self._fake_state(holder)
            self._memo[id(holder)] = holder
            self._put(holder, _copied(type(holder).__name__, _contents(holder), self._memo))

    def _put(self, holder: Any, contents: Any) -> None:
        self._held[id(holder)] = holder
        self._stack.callback(_put, holder, _contents(holder))
        _put(holder, contents)

    def _fake_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Let copies of what an optimizer keeps be fake tensors."""
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if id(weight) not in self.names and not isinstance(weight, FakeTensor):
                    raise CaptureError(
                        "optimizers: expected parameters of the modules, got an optimizer "
                        f"{type(optimizer).__name__} of another of shape {tuple(weight.shape)}"
                    )
        for _, tensor in tensors_in_state("", optimizer.state):
            check_state(tensor)
            if not isinstance(tensor, FakeTensor):
                self._memo[id(tensor)] = _fake_like(tensor, self._fake_mode)
                self.optimizers_with_state.add(id(optimizer))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the objects hold the fake tensors, and put back what they held."""
        with self._stack:
            for holder, contents in self._contents:
                self._put(holder, contents)
            fake_of = self.memory.fake_of
            for name, parameter in self.parameters.items():
                key = id(parameter)
                fake = fake_of[key]
                self._stack.enter_context(_swapped(name, parameter, fake))
                self._stack.callback(fake_of.update, {key: fake})
                self._stack.callback(fake_of.pop, id(fake))
                fake_of.update({key: parameter, id(fake): parameter})
            yield


def _check(path: str, module: nn.Module) -> None:
    """Refuse what cannot be captured, and warn of what is captured as something else."""
    kind = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError(f"{path}: expected a plain torch.nn.Module, got one with TorchScript")
    if kind.__name__ in WRAPPERS and kind.__module__.startswith("torch."):
        raise CaptureError(
            f"{path}: expected a module of one device, got {kind.__name__}; capture the module "
            "that it wraps, before it is wrapped"
        )
    if any(isinstance(value, torch.ScriptObject) for value in vars(module).values()):
        raise CaptureError(
            f"{path}: expected weights that are tensors, got {kind.__module__}.{kind.__name__}, "
            "which packs them; capture the model before it is quantized"
        )
    if kind.__module__.startswith("torch._dynamo") or module._compiled_call_impl is not None:
        warnings.warn(
            f"{path}: captured as what torch.compile gets, in single ops that it may fuse; to "
            "capture module._orig_mod does so without this warning",
            CaptureWarning,
            stacklevel=2,
        )


def _named(prefix: str, module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(prefix, remove_duplicate=False)
    yield from module.named_buffers(prefix, remove_duplicate=False)


def check_state(tensor: torch.Tensor) -> None:
    """Refuse a tensor in an optimizer's state whose bytes or ops are not those of its dtype."""
    if not is_plain(tensor):
        raise CaptureError(
            f"optimizer: expected one that keeps plain tensors, got one that keeps a "
            f"{type(tensor).__name__}, which computes in a way of its own; capture with "
            "torch.optim.SGD, Adam or AdamW in its place"
        )


def _fake_like(tensor: torch.Tensor, fake_mode: FakeTensorMode) -> torch.Tensor:
    """Return a fake tensor; that of a single number, such as the count of steps, has its value."""
    value = 1 if tensor.is_meta or tensor.numel() > 1 else tensor.sum().item()
    with fake_mode:
        if tensor.numel() == 1:
            return torch.tensor(value, dtype=tensor.dtype).view(tensor.shape)
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)


def _tensors_in(inputs: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors in inputs, also those in objects of any class, each once."""
    named: dict[int, tuple[str, torch.Tensor]] = {}
    for path, leaf in pytree.tree_flatten_with_path(inputs)[0]:
        for name, tensor in _tensors_inside(leaf, input_name(path), MAX_DEPTH, set()):
            named.setdefault(id(tensor), (name, tensor))
    return list(named.values())


def _tensors_inside(
    holder: Any, path: str, depth: int, visited: set[int]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in an object by paths, such as ``"input.cache.layers.0.keys"``."""
    if isinstance(holder, torch.Tensor):
        yield path, holder
    if depth < 0 or id(holder) in visited or isinstance(holder, torch.Tensor | nn.Module):
        return
    visited.add(id(holder))
    slots = (name for kind in type(holder).__mro__ for name in getattr(kind, "__slots__", ()))
    inner: Iterable[tuple[Any, Any]] = [
        *getattr(holder, "__dict__", {}).items(),
        *((name, getattr(holder, name)) for name in slots if hasattr(holder, name)),
    ]
    if isinstance(holder, (list, tuple)):
        inner = enumerate(holder)
    elif isinstance(holder, dict):
        inner = holder.items()
    for key, element in inner:
        yield from _tensors_inside(element, f"{path}.{key}", depth - 1, visited)


def tensors_in_state(name: str, state: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what an optimizer keeps for a weight, also in lists, such as ``"weight.exp_avg"``."""
    for path, leaf in pytree.tree_flatten_with_path(dict(state))[0]:
        if isinstance(leaf, torch.Tensor):
            yield ".".join([name, *map(_key, path)]), leaf


def input_name(path: Iterable[Any]) -> str:
    """Return the name of what is at a path in the inputs, such as ``"input.0"``."""
    return ".".join(["input", *map(_key, path)])


def _key(key: Any) -> str:
    names = (name for name in ("idx", "key", "name") if hasattr(key, name))
    return str(getattr(key, next(names, ""), key))


def _copied(name: str, value: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy that shares the tensors which are not in the memo.

    They may be large, or made by autograd. Leaves stay the same, so that their use is refused.
    """

    def shared(tensor: torch.Tensor, _memo: Any) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        return tensor if tensor.requires_grad and tensor.is_leaf else tensor.detach()

    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings(action="ignore", category=FutureWarning))
            for kind in (torch.Tensor, nn.Parameter):
                stack.enter_context(mock.patch.object(kind, "__deepcopy__", shared))
            return copy.deepcopy(value, memo)
    except Exception as error:
        raise CaptureError(
            f"{name}: expected one that copy.deepcopy can copy, got {type(error).__name__}: {error}"
        ) from error


def _contents(holder: Any) -> Any:
    return holder.copy() if isinstance(holder, (list, dict)) else vars(holder)


def _put(holder: Any, contents: Any) -> None:
    """Let an object have other attributes, or a list or dictionary other elements."""
    if isinstance(holder, list):
        holder[:] = contents
    elif isinstance(holder, dict):
        holder.clear()
        holder.update(contents)
    else:
        object.__setattr__(holder, "__dict__", contents)


@contextmanager
def _swapped(name: str, parameter: torch.Tensor, fake: torch.Tensor) -> Iterator[None]:
    """Let a parameter be a fake tensor, with the same attributes and hooks."""
    vars(fake).update(vars(parameter))
    hooks = {kind: getattr(parameter, kind) for kind in HOOKS}
    torch.clear_autocast_cache()
    try:
        _swap(parameter, fake)
    except RuntimeError as error:
        raise CaptureError(
            f"{name}: expected a parameter that PyTorch can swap for another tensor, got "
            f"{' '.join(str(error).split())}; capture a copy of the model"
        ) from error
    try:
        for kind, registered in hooks.items():
            if registered is not None:
                setattr(parameter, kind, copy.copy(registered))
        yield
    finally:
        torch.clear_autocast_cache()  # it refers to weights, which cannot be swapped then
        _swap(parameter, fake)
        for kind, registered in hooks.items():
            if getattr(parameter, kind) is not registered:
                setattr(parameter, kind, registered)


def _swap(first: Any, second: Any) -> None:
    torch._C._swap_tensor_impl(first, second)
    for name in ("__class__", "__dict__"):
        attribute = getattr(first, name)
        setattr(first, name, getattr(second, name))
        setattr(second, name, attribute)

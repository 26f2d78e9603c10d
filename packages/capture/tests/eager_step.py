"""The oracle: the same step as PyTorch runs it, on real tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from captured_models import Case
from placeto_capture.tracing.capture import OptimizerFactory
from placeto_capture.tracing.default_loss import default_loss


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Seeds each op that draws random numbers, and notes the storages that each op makes."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seed = seed
        self._drawn_in: list[torch.Tensor] = []  # states of the generator
        self.made: list[tuple[str, list[int]]] = []  # op, bytes of the storages that it makes
        self._known: dict[int, torch.UntypedStorage] = {}

    def know(self, tensors: list[torch.Tensor]) -> None:
        """Do not count the storages of these tensors."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._known[storage._cdata] = storage

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.know([leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_tensor(leaf)])
        if torch.Tag.nondeterministic_seeded in func.tags:
            result = self._drawn(func, args, kwargs or {})
        else:
            result = func(*args, **(kwargs or {}))
        fresh = []
        for tensor in filter(_is_tensor, pytree.tree_leaves(result)):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                self._known[storage._cdata] = storage
                fresh.append(storage.nbytes())
        if fresh:
            self.made.append((str(func.overloadpacket), fresh))
        return result

    def _drawn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Draw by a seed for each state of the generator; PyTorch sets it back to draw again."""
        state = torch.get_rng_state()
        known = [number for number, each in enumerate(self._drawn_in) if torch.equal(each, state)]
        if not known:
            self._drawn_in.append(state)
        torch.manual_seed(self.seed + (known or [len(self._drawn_in) - 1])[0])
        result = func(*args, **kwargs)
        torch.set_rng_state(state)
        torch.rand(())
        return result


class EagerTraining:
    """A model that has been trained for one step already, so that its optimizer has its state."""

    def __init__(self, case: Case, factory: OptimizerFactory) -> None:
        self.model, self.inputs = case.model, case.inputs
        self.optimizer = factory(list(self.model.parameters()))
        for group in self.optimizer.param_groups:
            group.update({name: False for name in ("foreach", "fused") if name in group})
        self.watch = Watch(seed=1)
        self.loss = torch.zeros(())
        self.step(seed=1)

    def step(self, seed: int) -> None:
        """Run a step; the n-th random draw is what an op draws after the seed ``seed + n``."""
        self.watch = Watch(seed)
        self.watch.know([*self.values().values()])
        with plain_kernels(), torch.random.fork_rng(devices=[]):
            self.optimizer.zero_grad()
            with self.watch:
                self.loss = default_loss(self.model(*self.inputs))
                self.loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()

    def values(self) -> dict[str, torch.Tensor]:
        """Return copies of weights, buffers and the optimizer's state, by name."""
        named = dict(self.model.named_parameters(remove_duplicate=False))
        values = {**named, **dict(self.model.named_buffers())}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    values[f"{name}.{key}"] = value
        return {name: value.detach().clone() for name, value in values.items()}

    def results(self) -> dict[str, torch.Tensor]:
        """Return the loss, the gradients, and the values after the step."""
        results = {"loss": self.loss.detach(), **self.values()}
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                results[f"{name}.grad"] = parameter.grad
        return results


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Let PyTorch run LSTMs and attention as single ops, as capture does."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)

"""The oracle: the same step as PyTorch runs it, on real tensors."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from captured_models import Case
from placeto_capture.tracing.default_loss import default_loss
from placeto_capture.tracing.step_spec import OptimizerFactory


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the storages that each op makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made_storages: list[tuple[str, list[int]]] = []  # bytes, by the op that makes them
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
        result = func(*args, **(kwargs or {}))
        fresh = []
        for tensor in filter(_is_tensor, pytree.tree_leaves(result)):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                self._known[storage._cdata] = storage
                fresh.append(storage.nbytes())
        if fresh:
            self.made_storages.append((str(func.overloadpacket), fresh))
        return result


class Draws:
    """Lets PyTorch draw the n-th random numbers of a step after the seed ``seed + n``.

    No mode of PyTorch is needed for that: under one, its ops are not quite those without it.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn_in: list[torch.Tensor] = []  # states of the generator

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Seed all functions that tests draw with."""
        with ExitStack() as stack:
            for holder, names in DRAWING.items():
                for name in names:
                    function = self._seeding(getattr(holder, name))
                    patch = mock.patch.object(holder, name, function, create=True)
                    stack.enter_context(patch)
            yield

    def _seeding(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **keywords: Any) -> Any:
            with torch.random.fork_rng(devices=[]):
                state = torch.get_rng_state()
                torch.manual_seed(self._seed + self._number(state))
                seeded = torch.get_rng_state()
                result = function(*args, **keywords)
                is_random = not torch.equal(torch.get_rng_state(), seeded)
            if is_random:
                UNSEEDED_RAND(())
            else:
                self._drawn_in.pop()
            return result

        return draw

    def _number(self, state: torch.Tensor) -> int:
        """Return the number of a draw; PyTorch sets the generator back to draw again."""
        self._drawn_in.append(state)
        return next(
            index for index, drawn in enumerate(self._drawn_in) if torch.equal(drawn, state)
        )


UNSEEDED_RAND = torch.rand
DRAWING: dict[Any, tuple[str, ...]] = {
    torch._VF: ("dropout", "dropout_", "lstm", "gru"),
    torch.nn.functional: ("scaled_dot_product_attention",),
    torch: ("bernoulli", "rand", "rand_like", "randn", "randn_like", "randperm", "randint"),
    torch.Tensor: ("bernoulli_", "normal_", "uniform_", "exponential_"),
}


class EagerTraining:
    """A model that has been trained for one step already, so that its optimizer has its state."""

    def __init__(self, case: Case, factory: OptimizerFactory) -> None:
        self.model, self.inputs = case.model, case.inputs
        self.optimizer = factory(list(self.model.parameters()))
        for group in self.optimizer.param_groups:
            group.update({name: False for name in ("foreach", "fused") if name in group})
        self.loss = torch.zeros(())
        self.step(seed=1)

    def step(self, seed: int) -> None:
        """Run a step; the n-th random draw is what an op draws after the seed ``seed + n``."""
        with Draws(seed).seeded():
            self._run()

    def watched_step(self) -> list[tuple[str, list[int]]]:
        """Run a step; return each op that makes storages, with their bytes."""
        watch = Watch()
        watch.know([*self.values().values()])
        self._run(watch)
        return watch.made_storages

    def _run(self, watch: Watch | None = None) -> None:
        with plain_kernels(), torch.random.fork_rng(devices=[]):
            self.optimizer.zero_grad()
            for tensor in filter(_is_tensor, pytree.tree_leaves(self.inputs)):
                tensor.grad = None
            with watch or nullcontext():
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
                results[f"{name}.grad"] = parameter.grad.clone()
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

"""Bytes and launches of each optimizer's update, beside those of PyTorch on the meta device."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from placeto_capture import CaptureError, CaptureWarning, capture
from placeto_capture.tracing.devices import Target
from placeto_graphs import OpGraph, Phase

optim = torch.optim
ROWS, COLUMNS = 64, 32
aten = torch.ops.aten
# Functions that do not read what they write.
OVERWRITTEN = {aten.copy_, aten._foreach_copy_, aten.fill_, aten.index_put_, aten.zero_}
ALLOCATED = {aten.empty_like, aten.new_empty, aten.empty_strided, aten.empty}

Factory = Callable[..., torch.optim.Optimizer]


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what runs on the meta device, and the bytes of all tensors that ops read and write.

    Numbers that PyTorch keeps on the host, such as counts of steps, are tensors of the CPU. Calls
    of functions of lists, one after the other, count as one launch: all weights share them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches = self.num_bytes = 0
        self._is_in_lists = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            return 1.0
        outputs = func(*args, **kwargs)
        packet = func.overloadpacket
        if packet in ALLOCATED:
            return outputs
        written: dict[int, torch.Tensor] = {}
        read: dict[int, torch.Tensor] = {}
        for argument, value in zip(func._schema.arguments, (*args, *kwargs.values()), strict=False):
            tensors = {id(x): x for x in tree_leaves(value) if isinstance(x, torch.Tensor)}
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written:
                written |= tensors
            if not (is_written and packet in OVERWRITTEN):
                read |= tensors
        new = {id(x): x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor)}
        storages = {x.untyped_storage()._cdata for x in read.values()}
        new = {key: x for key, x in new.items() if x.untyped_storage()._cdata not in storages}
        if new or written:
            touched = [*read.values(), *{**written, **new}.values()]
            self.num_bytes += sum(x.numel() * x.itemsize for x in touched)
            if any(x.is_meta for x in touched):
                is_of_list = func._opname.startswith("_foreach_")
                self.launches += not (is_of_list and self._is_in_lists)
                self._is_in_lists = is_of_list
        return outputs


def work_in_pytorch(factory: Factory) -> tuple[float, int]:
    """Return the bytes for each number of a weight, and the launches, of an update in PyTorch."""
    weight = nn.Parameter(torch.empty(ROWS, COLUMNS, device="meta"))
    optimizer = factory([weight])
    kernels = Kernels()
    for counted in (Kernels(), kernels):  # the first step makes the state
        weight.grad = torch.empty_like(weight)
        with counted:
            optimizer.step()
    return kernels.num_bytes / weight.numel(), kernels.launches


def captured_updates(factory: Factory, target: Target = "gpu") -> tuple[OpGraph, Any]:
    model = nn.Linear(COLUMNS, ROWS, bias=False)
    graph = capture(model, torch.ones(3, COLUMNS), optimizer=factory, target=target)
    is_update = (graph.phases == Phase.UPDATE) & (graph.bytes_accessed > 0)
    return graph, np.flatnonzero(is_update)


OPTIMIZERS: dict[str, Factory] = {
    "SGD": partial(optim.SGD, lr=0.1),
    "SGD with momentum": partial(optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    **{
        name: getattr(optim, name)
        for name in (
            *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam"),
            *("RAdam", "RMSprop", "Rprop"),
        )
    },
    "AdamW with all moments": partial(optim.AdamW, amsgrad=True),
    "centered RMSprop": partial(optim.RMSprop, centered=True, momentum=0.9),
}
# Those that may be fused, with the number of tensors of their state.
FUSED = {"SGD": 0, "SGD with momentum": 1, "Adagrad": 1, "Adam": 2, "AdamW": 2}
FUSED |= {"AdamW with all moments": 3}
BY_DEFAULT_ONE_BY_ONE = {"Adafactor"}
# A number of the host that is copied to the GPU is an op of its own here.
COPIED_NUMBERS = {("ASGD", True): 1}


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_moves_and_launches_what_it_does_in_pytorch(name: str, foreach: bool) -> None:
    factory = partial(OPTIMIZERS[name], foreach=foreach)
    bytes_per_number, launches = work_in_pytorch(factory)
    graph, updates = captured_updates(factory)
    total = graph.bytes_accessed[updates].sum() / (ROWS * COLUMNS)
    assert total == pytest.approx(bytes_per_number, abs=0.1)  # but for numbers of the state
    assert len(updates) == launches + COPIED_NUMBERS.get((name, foreach), 0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_by_default_those_of_pytorch_for_a_target(name: str) -> None:
    is_listed = name not in BY_DEFAULT_ONE_BY_ONE
    defaults: dict[Target, bool] = {"gpu": is_listed, "cpu": False}
    for target, foreach in defaults.items():
        by_default, _ = captured_updates(OPTIMIZERS[name], target)
        explicit, _ = captured_updates(partial(OPTIMIZERS[name], foreach=foreach), target)
        assert by_default == explicit


@pytest.mark.parametrize(("name", "num_states"), FUSED.items())
def test_a_fused_update_is_one_pass_in_one_launch(name: str, num_states: int) -> None:
    graph, updates = captured_updates(partial(OPTIMIZERS[name], fused=True))
    assert len(updates) == 1
    read, written = 2 + num_states, 1 + num_states  # the gradient is read alone
    expected = pytest.approx(4 * (read + written), abs=0.1)
    assert graph.bytes_accessed[updates].sum() / (ROWS * COLUMNS) == expected
    assert graph.workspace_bytes.sum() == 0


# Per number of float32: what each function of `torch._foreach` reads and writes, added up by hand.
@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("SGD", 12),  # add
        ("SGD with momentum", 12 + 8 + 12 + 12),  # decay; mul, add; add
        ("Adam", 12 + 8 + 12 + 8 + 8 + 8 + 16),  # lerp; mul, addcmul; sqrt, div, add; addcdiv
        ("AdamW", 8 + 72),  # decay, and as Adam
    ],
)
def test_default_updates_of_a_gpu_move_what_lists_of_tensors_do(name: str, num_bytes: int) -> None:
    graph, updates = captured_updates(OPTIMIZERS[name])
    total = graph.bytes_accessed[updates].sum() / (ROWS * COLUMNS)
    assert total == pytest.approx(num_bytes, abs=0.1)
    assert [graph.op_types[op] for op in updates] in (["placeto.update"], ["aten.add_"])


class Lars(torch.optim.Optimizer):
    """Each weight changes by its gradient, which is made as large as it if both have a norm."""

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__(weights, {})

    @torch.no_grad()
    def step(self, _closure: None = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            norm, norm_of_gradient = weight.norm(), weight.grad.norm()
            ratio = norm / norm_of_gradient if norm > 0 and norm_of_gradient > 0 else 1.0
            weight.sub_(weight.grad * ratio)


def test_norms_in_an_optimizers_step_are_known_to_be_positive() -> None:
    graph, updates = captured_updates(Lars)
    kinds = [graph.op_types[op] for op in updates]
    assert kinds.count("aten.linalg_vector_norm") == 2
    assert kinds[-3:] == ["aten.div", "aten.mul", "aten.sub_"]


class Clips(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update weights by gradients whose norm is at most 10."""
        for weight in self.param_groups[0]["params"]:
            if weight.grad.norm() > 10:
                weight.grad.mul_(10 / weight.grad.norm())
        return super().step(closure)


def test_a_decision_by_a_norm_is_made_with_a_warning() -> None:
    decides = r"^optimizer: captured as if norms were 1, .* \(line \d+ of test_capture_optimizers"
    with pytest.warns(CaptureWarning, match=decides):
        graph, updates = captured_updates(Clips)
    assert graph.op_types[updates[0]] == "aten.linalg_vector_norm"
    assert "aten.mul_" not in graph.op_types


class KeepsPairs(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        """Update weights, and keep something of a class of its own for each."""
        for weight in self.param_groups[0]["params"]:
            zeros = torch.zeros(3)
            pair: Any = TwoTensor(zeros, zeros)  # type: ignore[no-untyped-call]
            self.state[weight].setdefault("pair", pair).add_(1)
        return super().step(closure)


def test_state_of_another_class_is_refused_wherever_it_was_made() -> None:
    message = "^optimizer: expected one that keeps plain tensors, got one that keeps a TwoT.*Adam"
    with pytest.raises(CaptureError, match=message):
        captured_updates(KeepsPairs)
    model, batch = nn.Linear(4, 3), torch.ones(2, 4)
    optimizer = KeepsPairs(model.parameters())
    optimizer.step()
    with pytest.raises(CaptureError, match=message):
        capture(model, batch, optimizer=optimizer)


class Decides(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        """Update weights whose gradient is not too large."""
        weights = self.param_groups[0]["params"]
        if all(weight.grad.abs().max() < 1 for weight in weights):
            return super().step(closure)
        return None


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (optim.LBFGS, r"optimizer: expected .* each step, got LBFGS, .*; capture one evaluation"),
        (
            Decides,
            r"optimizer: .* asks for the value of a tensor, .*Adam and AdamW can be captured",
        ),
        (optim.SparseAdam, r"optimizer: .* does not support dense gradients, .*Adam and AdamW can"),
    ],
)
def test_optimizers_that_depend_on_values_are_refused(factory: Factory, message: str) -> None:
    with pytest.raises(CaptureError, match=f"^{message}") as error:
        captured_updates(factory)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:.*captured as if norms were 1")
def test_adafactor_of_transformers_is_captured() -> None:
    transformers = pytest.importorskip("transformers")
    own_rate = {"lr": 0.1, "relative_step": False, "scale_parameter": False}
    for keywords in ({}, {"beta1": 0.9}, own_rate):
        graph, updates = captured_updates(partial(transformers.Adafactor, **keywords))
        weight = graph.op_names.index("weight")
        assert {graph.colocation[op] for op in updates} == {graph.colocation[weight]}
        of_state = ROWS + COLUMNS + ROWS * COLUMNS * ("beta1" in keywords) + 1
        assert graph.parameter_bytes[weight] == 4 * (ROWS * COLUMNS + of_state)

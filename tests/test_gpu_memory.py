"""The peak memory of a step on a GPU: beside fake tensors of one, and casts done by hand."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fake_gpu import CudnnLayouts, fake_gpu, on_gpu, train
from gpu_models import LIBRARY, WRITTEN, Made, library_model
from live_storages import LiveStorages, peak_of_graph
from placeto_capture import capture

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries, and of ops that look dead


def peak_on_gpu(made: Made, autocast: torch.dtype | None) -> int:
    """Return the most bytes of fake tensors of a GPU during a step."""
    model, inputs, loss_fn = made
    gc.collect()
    gc.disable()
    try:
        with fake_gpu():
            model, inputs = on_gpu(model, inputs)
            weights = [*model.parameters(), *model.buffers()]
            live = LiveStorages([*weights, *pytree.tree_leaves(inputs)])
            with CudnnLayouts(), live:  # type: ignore[no-untyped-call]
                _held = train(model, inputs, loss_fn, autocast)
    finally:
        gc.enable()
    return live.peak_bytes


# What differs by more: temporaries of a scan, and those of shifted windows.
PARTS_OFF = {"mamba": 0.1, "swin": 0.03}


def check_peak(made: Made, autocast: torch.dtype, part_off: float = 0.02) -> None:
    model, inputs, loss_fn = made
    graph = capture(model, inputs, loss_fn=loss_fn, optimizer=torch.optim.SGD, autocast=autocast)
    expected = peak_on_gpu(made, None if autocast == torch.float32 else autocast)
    assert peak_of_graph(graph) == pytest.approx(expected, rel=part_off)


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", WRITTEN)
def test_peak_memory_is_that_of_fake_tensors_of_a_gpu(name: str, autocast: torch.dtype) -> None:
    check_peak(WRITTEN[name](), autocast)


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", LIBRARY)
def test_peak_memory_of_a_library_is_that_of_fake_tensors_of_a_gpu(
    name: str, autocast: torch.dtype
) -> None:
    pytest.importorskip("transformers")
    check_peak(library_model(name), autocast, PARTS_OFF.get(name, 0.02))


IN_BFLOAT16 = {
    *(F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose2d, F.conv_transpose3d, F.prelu),
    *(torch.bmm, torch.einsum, torch.matmul, Tensor.matmul),
}
IN_FLOAT32 = {
    *(F.group_norm, F.layer_norm, F.interpolate, torch.exp, torch.cumsum, torch.softmax),
    *(Tensor.softmax, Tensor.sum),
}


class CastsWrittenOut(TorchFunctionMode):
    """Casts arguments as a GPU does in an autocast, and drops numbers as it does, on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self._narrow_weights: dict[int, Tensor] = {}  # each is cast once

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return torch.native_dropout(args[0], args[1] if len(args) > 1 else kwargs["p"], True)[0]
        if func in IN_BFLOAT16:
            args, kwargs = pytree.tree_map_only(Tensor, self._narrow, (args, kwargs))
        elif func in IN_FLOAT32:
            args, kwargs = pytree.tree_map_only(
                Tensor, lambda t: t.float() if t.is_floating_point() else t, (args, kwargs)
            )
        return func(*args, **kwargs)

    def _narrow(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            return tensor.to(torch.bfloat16)
        if id(tensor) not in self._narrow_weights:
            self._narrow_weights[id(tensor)] = tensor.to(torch.bfloat16)
        return self._narrow_weights[id(tensor)]


def peak_of_casts(made: Made) -> int:
    """Return the most bytes of tensors of a CPU during a step with casts written out."""
    model, inputs, loss_fn = made
    assert isinstance(inputs, tuple)
    model.train()
    gc.collect()
    gc.disable()
    try:
        live = LiveStorages([*model.parameters(), *model.buffers(), *inputs])
        with live:
            with CastsWrittenOut():
                outputs = model(*inputs)
                loss = loss_fn(outputs)
            loss.backward()  # type: ignore[no-untyped-call]
    finally:
        gc.enable()
    return live.peak_bytes


FUSED = {"conformer", "shared keys", "shifted windows"}  # attention, which is another op on a CPU


@pytest.mark.parametrize("name", [name for name in WRITTEN if name not in FUSED])
def test_peak_memory_in_autocast_is_that_of_casts_written_out(name: str) -> None:
    model, inputs, loss_fn = WRITTEN[name]()
    graph = capture(
        model, inputs, loss_fn=loss_fn, optimizer=torch.optim.SGD, autocast=torch.bfloat16
    )
    expected = peak_of_casts((model, inputs, loss_fn))
    assert peak_of_graph(graph) == pytest.approx(expected, rel=0.02)

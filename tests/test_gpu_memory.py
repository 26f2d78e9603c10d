"""The peak memory of a step on a GPU: beside fake tensors of one."""

import gc

import pytest
import torch
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

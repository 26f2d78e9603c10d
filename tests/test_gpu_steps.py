"""Steps for GPUs: their ops, dtypes and shapes are those of PyTorch's fake tensors of a GPU."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fake_gpu import Made, described, ops_on_gpu
from gpu_models import LIBRARY, WRITTEN, Inputs, library_model
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.step_spec import StepSpec
from placeto_capture.tracing.trace import views_in
from placeto_graphs import Phase

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries, and of ops that look dead


def ops_captured(
    model: nn.Module, inputs: Inputs, loss_fn: Callable[[Any], Tensor], autocast: torch.dtype
) -> tuple[list[Made], Counter[Made]]:
    """Return what a captured step runs forward, in order, and backward, in any order."""
    ops: dict[int, list[Made]] = {Phase.FORWARD: [], Phase.BACKWARD: [], Phase.UPDATE: []}
    for call in trace_step(
        StepSpec(model, inputs, loss_fn, torch.optim.SGD, autocast=autocast)
    ).calls:
        if call.function is not None:
            arguments = {view.storage for view in views_in((call.arguments, call.keywords))}
            made = [(v.dtype, v.size) for v in views_in(call.outputs) if v.storage not in arguments]
            ops[call.phase].append(described(call.op_type, made))
    return ops[Phase.FORWARD], Counter(ops[Phase.BACKWARD])


def narrow(dtype: torch.dtype) -> Callable[[nn.Module, Inputs], tuple[nn.Module, Inputs]]:
    def convert(model: nn.Module, inputs: Inputs) -> tuple[nn.Module, Inputs]:
        return model.to(dtype), tree_map_only(
            Tensor,
            lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor,
            inputs,
        )

    return convert


def channels_last(model: nn.Module, inputs: Inputs) -> tuple[nn.Module, Inputs]:
    def last(tensor: Tensor) -> Tensor:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        layout = formats.get(tensor.dim(), torch.contiguous_format)
        return tensor.contiguous(memory_format=layout)

    for weight in model.parameters():
        weight.data = last(weight.data)
    return model, tree_map_only(Tensor, last, inputs)


VARIANTS: dict[str, tuple[Any, torch.dtype]] = {
    "bfloat16": (lambda *step: step, torch.bfloat16),
    "float16": (lambda *step: step, torch.float16),
    "float32": (lambda *step: step, torch.float32),
    "half": (narrow(torch.float16), torch.float32),
    "narrow": (narrow(torch.bfloat16), torch.float32),
    "channels last": (channels_last, torch.bfloat16),
}


def check_step(made: Any, variant: str) -> None:
    convert, autocast = VARIANTS[variant]
    model, inputs, loss_fn = made
    converted_model, converted_inputs = convert(model, inputs)
    forward, backward = ops_on_gpu(
        converted_model,
        converted_inputs,
        loss_fn,
        None if autocast == torch.float32 else autocast,
    )
    captured_forward, captured_backward = ops_captured(
        converted_model, converted_inputs, loss_fn, autocast
    )
    assert without_casts(captured_forward) == without_casts(forward)
    assert Counter(captured_forward) == Counter(forward)
    assert captured_backward == backward
    assert len(forward) > 3
    assert len(backward) > 3


def without_casts(ops: list[Made]) -> list[Made]:
    """Return all ops but casts, as those of the arguments of one function have no order."""
    return [op for op in ops if op[0] != "aten._to_copy"]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_step_in_autocast_runs_what_a_gpu_runs(name: str) -> None:
    check_step(WRITTEN[name](), "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "bfloat16"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_step_in_any_dtype_and_layout_runs_what_a_gpu_runs(name: str, variant: str) -> None:
    if name in {"diffusion", "spectrum", "relative attention"} and variant in {"half", "narrow"}:
        pytest.skip("computes in float32 what a narrow layer takes")
    if name == "video" and variant == "channels last":
        pytest.skip("gradients of filters of three dimensions are copied on a CPU")
    check_step(WRITTEN[name](), variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["bfloat16", "float16", "float32", "channels last"])
@pytest.mark.parametrize("name", LIBRARY)
def test_a_step_of_a_library_runs_what_a_gpu_runs(name: str, variant: str) -> None:
    pytest.importorskip("transformers")
    if name == "efficientnet" and variant == "channels last":
        pytest.skip("gradients of two filters of channels are copied on a CPU")
    check_step(library_model(name), variant)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])
def test_attention_that_is_written_out_runs_what_a_gpu_runs(name: str) -> None:
    pytest.importorskip("transformers")
    made = library_model(name)
    made[0].set_attn_implementation("eager")  # type: ignore[operator]
    check_step(made, "bfloat16")

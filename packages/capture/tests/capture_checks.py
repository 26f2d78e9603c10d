"""What has to hold for the capture of any model that is small enough to run."""

import copy
import random
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from captured_models import Case, case
from eager_step import EagerTraining, plain_kernels
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.functions import ALLOCATIONS
from placeto_capture.tracing.op_graph import op_graph_of
from placeto_capture.tracing.step_spec import OptimizerFactory, StepSpec
from placeto_capture.tracing.trace import Trace
from placeto_graphs import OpGraph
from replays import random_order, replay

SEED = 17


@dataclass(frozen=True)
class Comparison:
    """A training step as captured, and as PyTorch runs it."""

    trace: Trace
    graph: OpGraph
    before: dict[str, torch.Tensor]  # weights, buffers and optimizer state, by name
    after: dict[str, torch.Tensor]  # the same, the loss and the gradients
    made_storages: list[tuple[str, list[int]]]  # each op that makes storages, with their bytes
    resident_bytes: int  # of weights, buffers and optimizer state


def compared(
    example: Case,
    optimizer: OptimizerFactory = torch.optim.Adam,
    mask_fraction: float | None = None,
) -> Comparison:
    """Capture a step and run it."""
    options: Any = {"optimizer": optimizer, "target": "cpu", "mask_fraction": mask_fraction}
    trace = trace_step(StepSpec(example.model, example.inputs, **options))
    eager = EagerTraining(example, optimizer)
    initial = eager.values()
    eager.step(SEED)
    results = eager.results()
    state = [value for values in eager.optimizer.state.values() for value in values.values()]
    resident = (*example.model.parameters(), *example.model.buffers(), *state)
    return Comparison(
        trace=trace,
        graph=op_graph_of(trace),
        before=initial,
        after=results,
        made_storages=eager.watched_step(),
        resident_bytes=sum(value.nbytes for value in resident if isinstance(value, torch.Tensor)),
    )


@cache
def comparison(name: str) -> Comparison:
    """Compare one of the small models, once for all tests."""
    return compared(case(name))


def check_replay(step: Comparison, num_orders: int = 2) -> None:
    """Check what a replay gives, in the order of the capture and in random ones."""
    orders = [random_order(step.graph, seed) for seed in range(num_orders)]
    for order in (None, *orders):
        with plain_kernels():
            results = replay(step.trace, step.before, order=order, seed=SEED)
        assert results.keys() == step.after.keys()
        for name, value in step.after.items():
            torch.testing.assert_close(results[name], value, msg=partial(named, name))


def check_tensors(step: Comparison) -> None:
    """Check the bytes of the storages that each op makes."""
    made_storages = []
    calls = [single_call for call in step.trace.calls for single_call in call.single_calls]
    for call in calls:
        storages = dict.fromkeys(ref.storage for ref in call.outputs if ref is not None)
        sizes = [step.trace.storage_bytes[s] for s in storages if s in call.creates]
        if sizes and call.op_type not in ALLOCATIONS and not call.op_type.endswith("_"):
            made_storages.append((call.op_type, sizes))
    assert made_storages == [entry for entry in step.made_storages if entry[0] not in ALLOCATIONS]


def check_parameter_bytes(step: Comparison) -> None:
    """Check what stays in memory."""
    assert step.graph.parameter_bytes.sum() == step.resident_bytes
    resident = [op_type in ("parameter", "buffer") for op_type in step.graph.op_types]
    assert (step.graph.parameter_bytes > 0).tolist() == resident


def named(name: str, message: str) -> str:
    """Return the message of a comparison with the name of what is compared."""
    return f"{name}: {message}"


def fingerprint(model: nn.Module) -> Any:
    """Return all that a model holds, as values that can be compared."""
    contents: list[Any] = [torch.get_rng_state().tolist(), random.getstate()]
    for path, module in model.named_modules():
        contents.append((path, module.training))
        for key, value in sorted(vars(module).items()):
            if isinstance(value, dict):
                contents += [(key, *_described(name, item)) for name, item in value.items()]
            else:
                contents.append((key, *_described("", value)))
    return contents


def _described(name: Any, value: Any) -> tuple[Any, ...]:
    if isinstance(value, torch.Tensor):
        gradient = value.grad.tolist() if value.is_leaf and value.grad is not None else None
        return name, id(value), type(value), value.requires_grad, value.tolist(), gradient
    if isinstance(value, (list, tuple, str, int, float)):
        return name, copy.copy(value)
    return name, id(value)

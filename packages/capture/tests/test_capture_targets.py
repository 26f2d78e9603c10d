"""The kernels of the device that a step is for, and updates as one op."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from capture_checks import check_replay, compared
from captured_models import Case, Net
from placeto_capture import capture
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.devices import TARGETS, Target
from placeto_capture.tracing.step_spec import StepSpec
from replays import replay


def attention(dropout: float = 0.0) -> nn.Module:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        query, key, value = net.project(x).chunk(3, dim=-1)
        attend = functional.scaled_dot_product_attention
        return attend(query, key, value, is_causal=True, dropout_p=dropout)

    return Net(forward, project=nn.Linear(8, 24))


ATTENDED = (torch.linspace(-1, 1, 2 * 3 * 5 * 8).reshape(2, 3, 5, 8),)


def biased_attention(*, masked: bool = False) -> nn.Module:
    """Return attention with a learned term for each place, or with dropout and a mask of places."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        query, key, value = net.project(x).chunk(3, dim=-1)
        mask, dropout = (~net.mask, 0.25) if masked else (net.bias, 0.0)
        return functional.scaled_dot_product_attention(query, key, value, mask, dropout)

    bias, mask = nn.Parameter(torch.randn(1, 1, 5, 5)), torch.eye(5, dtype=torch.bool)
    return Net(forward, project=nn.Linear(8, 24), bias=bias, mask=mask)


def wide_attention() -> nn.Module:
    """Return attention with queries and keys that are wider than values, and more keys."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        query, key, value = net.project(x).split((12, 12, 8), dim=-1)
        return functional.scaled_dot_product_attention(query[:, :, :3], key, value)

    return Net(forward, project=nn.Linear(8, 2 * 12 + 8))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("num_queries", "pairs"), [(5, 15), (3, 6), (1, 1)])
def test_a_causal_kernel_computes_half_of_the_flops_that_torch_counts(
    target: Target, num_queries: int, pairs: int
) -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        query, key, value = net.project(x).chunk(3, dim=-1)
        attend = functional.scaled_dot_product_attention
        return attend(query[:, :, :num_queries], key, value, is_causal=True)

    graph = capture(Net(forward, project=nn.Linear(8, 24)), ATTENDED, target=target)
    attends = [op for op, kind in enumerate(graph.op_types) if "dot_product" in kind]
    assert graph.flops[attends].tolist() == [6 * n * num_queries * 5 * 8 for n in (4, 10)]
    assert graph.computed_part[attends].tolist() == [pairs / (num_queries * 5)] * 2
    assert np.delete(graph.computed_part, attends).tolist() == [1] * (graph.num_ops - 2)


# Two products of 5 x 8 and 8 x 5 numbers for each of 6; backward, five with them done again.
IN_ONE_OP = [6 * 4 * 5 * 5 * 8, 6 * 10 * 5 * 5 * 8]


@pytest.mark.parametrize(
    ("make", "target", "flops"),
    [
        (attention, "gpu", IN_ONE_OP),
        (attention, "cpu", IN_ONE_OP),
        (lambda: attention(dropout=0.5), "gpu", IN_ONE_OP),
        (lambda: attention(dropout=0.5), "cpu", []),
        (biased_attention, "gpu", IN_ONE_OP),
        (lambda: biased_attention(masked=True), "gpu", IN_ONE_OP),
        # Scores of 3 queries and 5 keys of 12, and values of 8; backward, scores three times.
        (wide_attention, "gpu", [6 * 2 * 3 * 5 * (12 + 8), 6 * 2 * 3 * 5 * (3 * 12 + 2 * 8)]),
        (wide_attention, "cpu", []),
    ],
)
def test_attention_is_one_op_forward_and_one_backward(
    make: Callable[[], nn.Module], target: Target, flops: list[int]
) -> None:
    attend = functional.scaled_dot_product_attention
    graph = capture(make(), ATTENDED, target=target)
    assert functional.scaled_dot_product_attention is attend
    attends = [op for op, kind in enumerate(graph.op_types) if "dot_product" in kind]
    assert graph.phases[attends].tolist() == [0, 1][: len(flops)]
    assert graph.flops[attends].tolist() == flops
    assert any("softmax" in kind for kind in graph.op_types) == (not flops)
    assert graph.op_types.count("aten.where") <= 1  # a mask is made once


def test_attention_keeps_sums_for_a_backward_pass_alone() -> None:
    for mode, of_sums in (("training", [2 * 3 * 32 * 4]), ("inference", [0])):  # blocks of 32 rows
        graph = capture(wide_attention(), ATTENDED, mode=mode)
        (op, *_) = (op for op, kind in enumerate(graph.op_types) if "dot_product" in kind)
        num_bytes = graph.tensor_bytes[graph.tensor_producer == op].tolist()
        assert num_bytes == [2 * 3 * 3 * 8 * 4, *of_sums, 8, 8]  # and where it draws random numbers


def test_attention_gives_what_pytorch_gives_on_either_target() -> None:
    check_replay(compared(Case(attention(dropout=0.5), ATTENDED)))
    check_on_gpu(biased_attention(), ATTENDED)
    check_on_gpu(wide_attention(), ATTENDED)


def normalised() -> nn.Module:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = functional.rms_norm(net.layers(x), (5, 8)).exp()
        return result

    return Net(forward, layers=nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8)))


def test_rms_norm_is_one_op_forward_and_one_backward_on_a_gpu() -> None:
    on_gpu, on_cpu = (capture(normalised(), ATTENDED, target=target) for target in TARGETS)
    norms = [kind for kind in on_gpu.op_types if "norm" in kind]
    assert norms == ["aten._fused_rms_norm"] * 2 + ["aten._fused_rms_norm_backward"] * 2
    assert "aten.rsqrt" not in on_gpu.op_types
    assert on_cpu.op_types.count("aten.rsqrt") == 2
    check_on_gpu(normalised(), ATTENDED)


def check_on_gpu(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Check that the step for a GPU gives on a CPU what PyTorch gives there."""
    results = replay(trace_step(StepSpec(model, inputs, optimizer=torch.optim.SGD)), {})
    loss = model(*inputs).mean()
    loss.backward()
    torch.testing.assert_close(results["loss"], loss.detach())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(results[f"{name}.grad"], weight.grad)


@pytest.mark.parametrize("in_place", [False, True])
def test_dropout_is_one_op_on_a_gpu(in_place: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3, inplace=in_place), nn.Linear(8, 1))
    inputs = torch.ones(64, 8)
    dropout = functional.dropout
    on_gpu, on_cpu = (trace_step(StepSpec(model, inputs, target=target)) for target in TARGETS)
    assert functional.dropout is dropout
    drops = [call.op_type for call in on_gpu.calls if "dropout" in call.op_type]
    expected = [] if in_place else ["aten.native_dropout", "aten.native_dropout_backward"]
    assert drops == expected
    assert not any("dropout" in call.op_type for call in on_cpu.calls)


def test_what_is_dropped_is_dropped_in_the_backward_pass_too() -> None:
    layer = nn.Linear(4, 1, bias=False)
    nn.init.ones_(layer.weight)
    model = nn.Sequential(layer, nn.Dropout(0.5))
    inputs = torch.eye(4).repeat(8, 1)
    trace = trace_step(StepSpec(model, inputs, lambda y: y.sum(), torch.optim.SGD))
    results = replay(trace, {}, seed=4)
    num_kept = results["loss"].item() / 2  # what stays counts twice
    assert 0 < num_kept < 32
    assert results["0.weight.grad"].sum().item() == pytest.approx(2 * num_kept)


def test_a_fused_update_moves_what_is_there_before_and_after_it_once() -> None:
    optimizer = partial(torch.optim.Adam, fused=True)
    graph = capture(nn.Linear(3, 5), torch.ones(2, 3), optimizer=optimizer)
    moved = dict(zip(graph.op_names, graph.bytes_accessed, strict=True))
    # Gradient, weights, two moments and a count of steps are read, all but the first are written.
    assert moved["weight/placeto.update"] == 4 * (7 * 15 + 2)
    assert moved["bias/placeto.update"] == 4 * (7 * 5 + 2)


def test_an_optimizer_with_its_own_products_stays_in_its_ops() -> None:
    rows, columns, rounds = 3, 4, 5
    model = nn.Linear(columns, rows, bias=False)
    graph = capture(model, torch.ones(2, columns), optimizer=torch.optim.Muon)
    updates = np.flatnonzero(graph.phases == 2)
    kinds = [graph.op_types[op] for op in updates]
    assert "placeto.update" not in kinds
    products = [op for op in updates if graph.op_types[op] in ("aten.mm", "aten.addmm")]
    # In each round a matrix times itself, that times itself, and that times the matrix.
    of_round = [2 * rows * rows * columns, 2 * rows**3, 2 * rows * rows * columns]
    assert graph.flops[products].tolist() == of_round * rounds
    assert {graph.dtype[op] for op in products} == {"bfloat16"}
    weight = graph.op_names.index("weight")
    assert (graph.colocation[updates] == graph.colocation[weight]).all()


def test_updates_that_come_between_each_other_stay_single_ops() -> None:
    class Alternating(torch.optim.Optimizer):
        """Each weight is changed by what the other one was just changed to."""

        def __init__(self, weights: list[torch.Tensor]) -> None:
            super().__init__(weights, {})

        @torch.no_grad()
        def step(self, _closure: None = None) -> None:  # type: ignore[override]
            first, second = self.param_groups[0]["params"]
            for _ in range(2):
                first.sub_(first.grad).sub_(second)
                second.sub_(second.grad).sub_(first)

    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    step = compared(Case(model, (torch.ones(2, 3),)), lambda weights: Alternating(list(weights)))
    assert not any(call.merged_calls for call in step.trace.calls)
    check_replay(step)

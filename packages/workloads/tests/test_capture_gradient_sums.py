"""Gradients of weights that many ops read, summed in one op."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from capture_checks import SEED
from captured_models import CASES
from captured_models import case
from eager_step import EagerTraining
from eager_step import plain_kernels
from placeto_graphs import OpGraph
from placeto_graphs import Phase
from placeto_workloads import WorkloadError
from placeto_workloads import capture
from placeto_workloads import load
from placeto_workloads.capture.gradient_sums import ADD_N
from placeto_workloads.capture.gradient_sums import with_sums_at_once
from placeto_workloads.capture.op_graph import op_graph_of
from placeto_workloads.capture.replay import replay
from placeto_workloads.capture.step import trace_step
from placeto_workloads.costs.memory import gradient_term_bytes
from placeto_workloads.costs.memory import peak_bytes
from topological_orders import random_order

STEPS = 5
UNITS = 8
BATCH = 4


class Recurrence(nn.Module):
    """Five steps with one weight, and one that is read once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(UNITS, UNITS))
        self.once = nn.Linear(UNITS, UNITS, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for _ in range(STEPS):
            values = torch.tanh(values @ self.weight)
        total: torch.Tensor = self.once(values).sum()
        return total


def both() -> tuple[OpGraph, OpGraph]:
    model, batch = Recurrence(), torch.ones(BATCH, UNITS)
    return capture(model, batch), capture(model, batch, gradient_sums="at-once")


def test_one_sum_takes_the_place_of_all_additions() -> None:
    chain, at_once = both()
    missing = Counter(chain.op_types) - Counter(at_once.op_types)
    assert missing == {"aten.add": STEPS - 1}
    assert Counter(at_once.op_types) - Counter(chain.op_types) == {"placeto.add_n": 1}
    op = at_once.op_types.index("placeto.add_n")
    terms = at_once.inputs_of_op[op]
    assert at_once.tensor_bytes[terms].tolist() == [4 * UNITS**2] * STEPS
    producers = at_once.tensor_producer[terms]
    assert {at_once.op_types[producer] for producer in producers} == {"aten.mm"}
    assert len(set(producers.tolist())) == STEPS
    assert at_once.phases[op] == Phase.BACKWARD
    assert at_once.flops[op] == (STEPS - 1) * UNITS**2
    assert at_once.bytes_accessed[op] == (STEPS + 1) * 4 * UNITS**2
    # It belongs to the weight, as the update does, and only the update reads it.
    assert at_once.colocation[op] == at_once.colocation[at_once.op_names.index("weight")] >= 0
    (result,) = np.flatnonzero(at_once.tensor_producer == op)
    readers = at_once.edges[at_once.edges[:, 0] == result, 1]
    assert (at_once.phases[readers] == Phase.UPDATE).all()


def test_the_work_is_that_of_the_additions_and_all_terms_are_held() -> None:
    chain, at_once = both()
    assert at_once.flops.sum() == chain.flops.sum()
    assert gradient_term_bytes(at_once) == gradient_term_bytes(chain)
    assert at_once.parameter_bytes.sum() == chain.parameter_bytes.sum()
    others = [i for i, kind in enumerate(chain.op_types) if kind != "aten.add"]
    same = [i for i, kind in enumerate(at_once.op_types) if kind != "placeto.add_n"]
    for field in ("op_names", "scopes", "op_types"):
        before, after = getattr(chain, field), getattr(at_once, field)
        assert [before[i] for i in others] == [after[i] for i in same]
    assert chain.flops[others].tolist() == at_once.flops[same].tolist()


@pytest.mark.parametrize("name", CASES)
def test_a_replayed_step_gives_what_pytorch_gives(name: str) -> None:
    example = case(name)
    chain = trace_step(example.model, example.inputs, None, torch.optim.Adam, "training")
    trace = with_sums_at_once(chain)
    eager = EagerTraining(example, torch.optim.Adam)
    before = eager.values()
    eager.step(SEED)
    for order in (None, random_order(op_graph_of(trace), seed=0)):
        with plain_kernels():
            results = replay(trace, before, order=order, seed=SEED)
        assert results.keys() == eager.results().keys()
        for key, value in eager.results().items():
            if key == "loss" or key.endswith(".grad"):
                torch.testing.assert_close(results[key], value, rtol=1e-4, atol=1e-5)


def test_some_of_these_steps_have_sums() -> None:
    def sums(name: str) -> int:
        example = case(name)
        trace = trace_step(example.model, example.inputs, None, None, "training")
        return sum(call.function is ADD_N for call in with_sums_at_once(trace).calls)

    assert sum(map(sums, CASES)) > 5


def test_gradients_of_activations_stay_as_they_are() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(UNITS, UNITS)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            values = self.first(values)
            return (values.sin() + values.cos() * values.exp() + values.tanh()).sum()

    batch = torch.ones(BATCH, UNITS)
    assert capture(Branches(), batch, gradient_sums="at-once") == capture(Branches(), batch)


def test_a_term_that_something_else_reads_stays_what_it_is() -> None:
    class Shared(nn.Module):
        """The gradient of the inner sum is one of both weights."""

        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = (nn.Parameter(torch.randn(UNITS)) for _ in range(2))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            both = self.left + self.right
            outer = (both * values).sum() + both.sin().sum() + both.exp().sum()
            return outer + (self.left * values).sum() + self.left.cos().sum()

    model, values = Shared(), torch.ones(UNITS)
    trace = with_sums_at_once(trace_step(model, values, None, torch.optim.SGD, "training"))
    expected = torch.autograd.grad(model(values), [model.left, model.right])
    found = replay(trace, dict(model.named_parameters()))
    for name, gradient in zip(("left", "right"), expected, strict=True):
        torch.testing.assert_close(found[f"{name}.grad"], gradient)


def test_an_unknown_way_to_sum_is_named() -> None:
    message = "gradient_sums: expected one of as-they-come, at-once, got 'never'"
    with pytest.raises(WorkloadError, match=message):
        capture(nn.Linear(1, 1), torch.ones(1, 1), gradient_sums="never")  # type: ignore[arg-type]


@pytest.mark.slow
def test_translation_holds_all_terms_of_a_gradient(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))
    sized = partial(load, steps=8, batch_size=2, units=64, vocabulary_size=20)
    chain, at_once = sized("nmt-2"), sized("nmt-2-at-once")
    assert at_once.flops.sum() == chain.flops.sum()
    assert gradient_term_bytes(at_once) == gradient_term_bytes(chain) > 0
    assert at_once.num_ops < chain.num_ops
    assert peak_bytes(at_once) > peak_bytes(chain)

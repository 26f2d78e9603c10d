"""Each op of a captured graph runs for real."""

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import replays
from captured_models import case
from eager_step import EagerTraining
from placeto_capture import CaptureError, capture, profile
from placeto_capture.profiling import profiler
from placeto_capture.profiling.profiler import seconds_of
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.replay import Memory


@pytest.mark.parametrize("name", ["residual network", "LSTM", "tied weights"])
def test_every_op_that_computes_has_a_time(name: str) -> None:
    example = case(name)
    graph = capture(example.model, example.inputs)
    seconds = profile(example.model, example.inputs, "cpu", warmup=0, repeats=1)
    resting = ("parameter", "buffer", "input", "placeto.barrier")
    computes = [op_type not in resting for op_type in graph.op_types]
    assert (seconds > 0).tolist() == computes
    assert replace(graph, measured_time={"cpu": seconds}).measured_time["cpu"].sum() > 0


def test_a_model_without_values_gets_some() -> None:
    example = case("residual network")
    inputs = tuple(tensor.to("meta") for tensor in example.inputs)
    seconds = profile(example.model.to("meta"), inputs, warmup=0, repeats=1)
    assert len(seconds) == capture(example.model, inputs).num_ops


def test_repeating_an_op_does_not_change_what_the_next_ones_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Profile a step whose results are kept, and compare them with the eager ones."""
    example = case("writes in pieces")
    trace = trace_step(example.model, example.inputs, None, torch.optim.Adam, "training")
    eager = EagerTraining(example, torch.optim.Adam)
    before = eager.values()
    eager.step(seed=0)
    memories: list[Memory] = []
    wanted = trace.results | {
        name: ref
        for source in trace.placeholders
        for name, ref in (source.tensors | source.state).items()
    }

    def keeping(trace: Any, device: Any, _: Any) -> Memory:
        def value_of(source: Any, name: str, _ref: Any) -> torch.Tensor:
            value: torch.Tensor = before.get(name, source.values.get(name))
            return value.detach()

        kept = [ref.storage for ref in wanted.values()]
        memories.append(Memory(trace, device, value_of, kept))
        return memories[0]

    monkeypatch.setattr(profiler, "Memory", keeping)
    profiler.measured_times(trace, torch.device("cpu"), warmup=1, repeats=3, seed=0)
    for name, expected in eager.results().items():
        torch.testing.assert_close(memories[0].tensor(wanted[name]), expected)


class Chain(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for _ in range(self.length):
            inputs = inputs * 2
        return inputs


def test_tensors_are_freed_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_step(Chain(20), torch.ones(1000), None, None, "inference")
    held = []

    class Counting(Memory):
        def finish(self, call: Any) -> None:
            super().finish(call)
            held.append(sum(owner.untyped_storage().nbytes() for owner in self._owner.values()))

    monkeypatch.setattr(replays, "Memory", Counting)
    results = replays.replay(trace, {})
    assert held == [4000] * 20
    assert results["output.0"][0] == 2**20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "abacus"}, "device: expected one that torch can use, got 'abacus': "),
        ({"device": "meta"}, "device: expected one that computes, got 'meta'"),
        ({"repeats": 0}, "repeats: expected at least 1 after at least 0 to warm up, got 0 and 2"),
        ({"warmup": -1}, "repeats: expected at least 1 after at least 0 to warm up, got 7 and -1"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptureError, match=f"^{message}"):
        profile(nn.Linear(3, 2), torch.ones(1, 3), **options)


def test_an_op_that_fails_is_named_with_its_module() -> None:
    model = nn.Sequential(nn.Embedding(3, 2))
    with pytest.raises(CaptureError, match=r"^0: aten\.embedding\.default on cpu: "):
        profile(model, torch.tensor([7]), mode="inference")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_its_work_counts_and_not_what_was_begun_before() -> None:
    device = torch.device("cuda:0")
    factor = torch.ones(4096, 4096, device=device)

    def run() -> None:
        for _ in range(50):
            torch.mm(factor, factor)

    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    begun = time.perf_counter() - start
    torch.cuda.synchronize()
    done = time.perf_counter() - start
    assert begun < done / 2  # else it would be all the same
    run()
    assert seconds_of(run, device) == pytest.approx(done, rel=0.2)

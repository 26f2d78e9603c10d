"""Capture leaves everything as it was, and says what it cannot follow."""

import collections
import functools
import multiprocessing
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from capture_checks import fingerprint
from captured_models import CASES, Net, case
from placeto_capture import CaptureError, capture, capture_function


class Selfish(nn.Module):
    """Changes itself whenever it is called."""

    total: torch.Tensor

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("total", torch.zeros(()))
        self.fails = fails
        self.calls = 0
        self.seen: list[torch.Tensor] = []
        self.last = self.layer.weight * 2  # autograd made it: it cannot be copied

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.total = self.total + 1
        self.last = self.layer(inputs)
        self.seen.append(self.last)
        self.train(not self.training)
        torch.manual_seed(0)
        random.seed(0)
        if self.fails:
            raise ArithmeticError("too much")
        return self.last + torch.rand(2)


@pytest.mark.parametrize("name", CASES)
def test_the_model_stays_as_it_was(name: str) -> None:
    example = case(name)
    for parameter in example.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    initial = fingerprint(example.model)
    for mode in ("training", "inference"):
        capture(example.model, example.inputs, mode=mode)
        assert fingerprint(example.model) == initial


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_that_changes_itself_stays_as_it_was(fails: bool) -> None:
    model = Selfish(fails)
    initial = fingerprint(model)
    if fails:
        with pytest.raises(CaptureError, match=WITH_LINE.format("too much")):
            capture(model, torch.ones(1, 3))
    else:
        capture(model, torch.ones(1, 3))
    assert fingerprint(model) == initial
    assert model.calls == 0


KEPT: dict[str, Any] = {}
COUNT = 0


@functools.lru_cache
def positions(count: int) -> torch.Tensor:
    return torch.arange(count).float()


class Losses:
    """A loss that keeps what it was called with."""

    largest: float | None = None
    outputs_of_calls: ClassVar[collections.deque[Any]] = collections.deque(maxlen=3)

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None

    def __call__(self, outputs: torch.Tensor) -> torch.Tensor:
        Losses.largest = Losses.newest = 1.0  # type: ignore[attr-defined]
        self.outputs_of_calls.append(outputs)
        self.last = outputs
        return outputs.sum()


class Keeping(nn.Linear):
    """Removes a hook when it is called, and counts."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.calls = {"of a hook": 0}
        self.handle = self.register_forward_hook(self.hook)

    def hook(self, *_: Any) -> None:
        self.calls["of a hook"] += 1
        self.handle.remove()


@dataclass(slots=True)
class Record:
    """An object of the caller's own without a dictionary."""

    losses: list[torch.Tensor]
    newest: torch.Tensor = field(init=False)


class LargerRecord(Record):
    """An object with slots and a dictionary."""


class Cache(dict[str, torch.Tensor]):
    """A dictionary of the caller's own, with an attribute."""

    num_writes = 0


class Recent(collections.OrderedDict[str, int]):
    """A container of the caller's own that has an order."""


class StandIn:
    """An object that answers for another one, as proxies of libraries do."""

    __dict__ = 3  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return StandIn()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("outside of a context")


CACHE, RECENT, STAND_IN = Cache(), Recent(first=1, last=2), StandIn()


def test_what_a_step_changes_around_it_is_as_before() -> None:
    model, loss_of = Keeping(), Losses()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    records, history = [Record([]), LargerRecord([])], list[torch.Tensor]()
    lists = [record.losses for record in records]
    steps = 0

    def step(inputs: torch.Tensor, *, count: dict[str, int] = {}) -> None:  # noqa: B006 (on purpose)
        nonlocal steps
        global COUNT, FOUND  # noqa: PLW0603 (as users do)
        COUNT += 1
        steps = count["steps"] = steps + 1
        KEPT["inputs"] = [inputs]
        np.random.rand()  # noqa: NPY002 (the global state)
        FOUND = CACHE["outputs"] = model(inputs + positions(4))  # type: ignore[name-defined]
        CACHE.num_writes += 1
        RECENT.move_to_end("first")
        assert STAND_IN.of_a_library is not STAND_IN
        loss = loss_of(CACHE["outputs"])
        for record in records:
            record.newest = loss
            record.losses.append(loss)
            record.losses = [loss]
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        history.append(loss)

    np.random.seed(7)  # noqa: NPY002
    capture_function(step, model, optimizer, example_inputs=torch.ones(3, 4))
    assert np.random.rand() == np.random.RandomState(7).rand()  # noqa: NPY002
    assert (COUNT, steps, history, step.__kwdefaults__, KEPT) == (0, 0, [], {"count": {}}, {})
    assert (schedule.last_epoch, optimizer.param_groups[0]["lr"]) == (0, 0.1)
    assert (loss_of.last, loss_of.largest, list(loss_of.outputs_of_calls)) == (None, None, [])
    assert positions(4).tolist() == [0.0, 1.0, 2.0, 3.0]
    assert (len(model._forward_hooks), model.calls) == (1, {"of a hook": 0})
    assert (CACHE, CACHE.num_writes, vars(CACHE)) == ({}, 0, {})
    assert [*RECENT] == ["first", "last"]
    assert "FOUND" not in globals()
    assert not hasattr(Losses, "newest")
    for record, losses in zip(records, lists, strict=True):
        assert record.losses is losses
        assert not losses
        assert not hasattr(record, "newest")


def test_settings_of_torch_stay_as_they_were() -> None:
    settings: tuple[Callable[[], Any], ...] = (
        *(torch._C._get_mkldnn_enabled, torch.backends.mha.get_fastpath_enabled),
        *(torch._C._get_flash_sdp_enabled, torch._C._get_math_sdp_enabled),
        *(torch.is_grad_enabled, torch.get_default_device),
    )
    initial = [setting() for setting in settings]
    with pytest.raises(CaptureError):
        capture(nn.Linear(3, 2), torch.ones(1, 4))
    assert [setting() for setting in settings] == initial


def test_gradients_that_were_begun_before_a_capture_end_after_it() -> None:
    layer, rows = nn.Linear(3, 2), torch.ones(4, 3)
    with torch.autocast("cpu", torch.bfloat16):  # it keeps casts of weights
        first = layer(rows).sum()
        capture(layer, rows)
        second = layer(rows).sum()
    (first + second).backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[8.0] * 3] * 2


def test_captures_of_several_threads_leave_nothing_behind() -> None:
    first_is_in, second_was_begun, first_is_out = (threading.Event() for _ in range(3))

    def first(outputs: torch.Tensor) -> torch.Tensor:
        first_is_in.set()
        second_was_begun.wait(0.3)
        return outputs.sum()

    def second(outputs: torch.Tensor) -> torch.Tensor:
        second_was_begun.set()
        first_is_out.wait(5)
        return outputs.sum()

    def run(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
        capture(nn.Linear(2, 2), torch.ones(2, 2), loss_fn=loss)

    dropout, apply = nn.functional.dropout, nn.Module._apply
    threads = [threading.Thread(target=run, args=(loss,)) for loss in (first, second)]
    threads[0].start()
    first_is_in.wait(5)
    threads[1].start()
    threads[0].join()
    first_is_out.set()
    threads[1].join()
    assert (nn.functional.dropout, nn.Module._apply) == (dropout, apply)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_is_forked_during_a_capture_can_capture() -> None:
    is_in = threading.Event()

    def slow_loss(outputs: torch.Tensor) -> torch.Tensor:
        is_in.set()
        time.sleep(0.3)
        return outputs.sum()

    def capture_in_child() -> None:
        capture(nn.Linear(2, 2), torch.ones(2, 2))

    run = functools.partial(capture, nn.Linear(2, 2), torch.ones(2, 2), loss_fn=slow_loss)
    thread = threading.Thread(target=run)
    thread.start()
    is_in.wait(20)
    child = multiprocessing.get_context("fork").Process(target=capture_in_child)
    child.start()
    child.join(20)
    child.kill()
    thread.join()
    assert child.exitcode == 0


WITH_LINE = r"^model: ArithmeticError: {} \(line \d+ of test_capture_isolation\.py\)$"
VALUE = r"asks for the value of a tensor, as \.item\(\), bool\(\), int\(\) or an if on a tensor do"
SHAPE = "the shape of what aten.nonzero gives depends on the values of a tensor"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda layer, x: layer(x) * x.sum().item(), rf"0: aten\._local_scalar_dense {VALUE}"),
        (lambda layer, x: layer(x[x[:, 0].nonzero()[0]]), rf"0: {SHAPE}"),
        (lambda layer, x: layer(x[:, :2]), r"0\.layer: RuntimeError: .*\[1, 2\] X \[3, 2\]"),
        (lambda layer, x: layer(x) + x.numpy(), r"0: \.numpy\(\) asks for the values"),
        (lambda layer, x: layer(x) + {1: x}[0], "0: KeyError: 0"),
    ],
)
def test_what_cannot_be_followed_is_named_with_its_module_and_line(
    function: Callable[[nn.Module, torch.Tensor], torch.Tensor], message: str
) -> None:
    model = nn.Sequential(Net(lambda net, x: function(net.layer, x), layer=nn.Linear(3, 2)))
    initial = fingerprint(model)
    with pytest.raises(CaptureError, match=f"^{message}") as error:
        capture(model, torch.ones(1, 3))
    assert re.search(r" \(line \d+ of test_capture_isolation\.py\)$", str(error.value))
    assert "\n" not in str(error.value)
    assert fingerprint(model) == initial


LINEAR, SGD = nn.Linear(3, 2), torch.optim.SGD([nn.Parameter(torch.ones(()))], lr=0.1)
SPARSE = {"model": nn.Embedding(5, 3, sparse=True), "example_inputs": torch.tensor([0])}
WHOLE = {"model": nn.Flatten(), "example_inputs": torch.tensor([[0]])}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": 3}, "model: expected a torch.nn.Module, got int"),
        ({"model": nn.LazyLinear(3)}, "weight: expected a parameter with a shape, .*; call the"),
        ({"example_inputs": 3}, "example_inputs: expected a tensor, a tuple or a mapping, got int"),
        ({"mode": "eval"}, "mode: expected one of training, inference, got 'eval'"),
        ({"updates": "later"}, "updates: expected one of after-backward, as-ready, got 'later'"),
        ({"target": "tpu"}, "target: expected one of gpu, cpu, got 'tpu'"),
        ({"mask_fraction": 0.0}, "mask_fraction: expected a number above 0 and up to 1, or None"),
        ({"autocast": torch.int8}, "autocast: expected one of torch.float16, .*, got torch.int8"),
        ({"experts_per_token": 0}, "experts_per_token: expected at least 1, got 0"),
        ({"parameter_bytes": {"bias": 1}}, "parameter_bytes: expected mode 'inference'"),
        ({"loss_fn": lambda y: y}, r"loss_fn: expected .* scalar tensor, got shape \(1, 2\)"),
        ({"loss_fn": lambda y: y.sum().detach()}, "loss_fn: expected a loss that depends on"),
        ({"loss_fn": lambda y: y @ y}, "loss_fn: RuntimeError: "),
        ({"loss_fn": lambda y: y.sum() * LINEAR.bias.sum()}, "loss_fn: expected tensors that"),
        ({"optimizer": lambda _: 3}, "optimizer: expected a function that gives .*, got .* int"),
        (SPARSE, r".* got one of layout torch.sparse_coo; .*sparse=False"),
        (WHOLE | {"optimizer": lambda _: SGD}, "loss_fn: expected one, as the model gives no"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    arguments = {"model": nn.Linear(3, 2), "example_inputs": torch.ones(1, 3), **options}
    with pytest.raises(CaptureError, match=f"^({message})") as error:
        capture(**arguments)
    assert "\n" not in str(error.value)


# Caches, as of keys and values: what their tensors are called, and what is left of them.


def test_what_is_in_an_object_is_named_by_its_path() -> None:
    class Reads(nn.Module):
        def forward(self, cache: SimpleNamespace) -> torch.Tensor:
            total: torch.Tensor = cache.layers[1].keys + cache.shared + cache.slots.keys
            return total

    class Slots:
        __slots__ = ("keys",)

    layers = [SimpleNamespace(keys=torch.ones(2)) for _ in range(2)]
    cache = SimpleNamespace(layers=layers, shared=torch.ones(2), slots=Slots())
    cache.slots.keys = torch.ones(2)
    graph = capture(Reads(), (cache,), mode="inference")
    paths = "layers.0.keys", "layers.1.keys", "shared", "slots.keys"
    assert graph.op_names[:4] == tuple(f"input.0.{path}" for path in paths)


def test_a_caller_gets_a_cache_back_as_it_was() -> None:
    cache = nx.DiGraph()  # an object of another library, as a cache of transformers is
    cache.layers = [SimpleNamespace(keys=None, seen=0)]
    layer = nn.Linear(4, 4)

    def step(rows: torch.Tensor) -> torch.Tensor:
        (cached, *_) = cache.layers
        new = layer(rows)
        cached.keys = new if cached.keys is None else torch.cat([cached.keys, new])
        cached.seen += 1
        cache.layers.append(SimpleNamespace(keys=new))
        cache.values = new
        total: torch.Tensor = cached.keys.sum()
        return total

    for keys in (None, torch.ones(2, 4)):
        cache.layers[0].keys = keys
        capture_function(step, layer, example_inputs=(torch.ones(3, 4),))
        (cached,) = cache.layers
        assert cached.keys is keys
        assert cached.seen == 0
        assert not hasattr(cache, "values")
        assert not isinstance(cached.keys, FakeTensor)

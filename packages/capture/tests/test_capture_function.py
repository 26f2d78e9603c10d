"""Steps of any kind: `capture_function` records what a training step does, as PyTorch runs it."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from capture_checks import fingerprint, named
from placeto_capture import CaptureError, capture, capture_function
from placeto_capture.tracing.capture import trace_function
from placeto_capture.tracing.op_graph import op_graph_of
from placeto_capture.tracing.step_spec import TracingOptions
from placeto_capture.tracing.trace import Trace
from placeto_graphs import Phase
from replays import random_order, replay

ON_CPU = TracingOptions(target="cpu")


@dataclass
class Loop:
    """A training loop: what it has, and a step of it."""

    modules: dict[str, nn.Module]
    optimizers: list[torch.optim.Optimizer]
    step: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    changed_objects: list[Any] = field(default_factory=list)

    def values(self) -> dict[str, torch.Tensor]:
        """Return copies of weights, buffers and the optimizers' state, by name."""
        values: dict[str, torch.Tensor] = {}
        for name, module in self.modules.items():
            values |= dict(module.named_parameters(name)) | dict(module.named_buffers(name))
        for weight, parameter in list(values.items()):
            if parameter.grad is not None:
                values[f"{weight}.grad"] = parameter.grad
            for optimizer in self.optimizers:
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor):
                        values[f"{weight}.{key}"] = value
        return {name: value.detach().clone() for name, value in values.items()}

    def trace(self) -> Trace:
        """Return what is recorded of a step."""
        return trace_function(
            self.step, self.modules, self.optimizers, self.inputs, self.changed_objects, ON_CPU
        )


def layers(*sizes: int) -> nn.Sequential:
    """Return a perceptron."""
    return nn.Sequential(
        *(layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.Tanh()))
    )


def gan() -> Loop:
    """Return a loop of two networks with an optimizer each, of which one steps more often."""
    generator, critic = layers(3, 5, 4), layers(4, 5, 1)
    of_generator = torch.optim.Adam(generator.parameters(), lr=0.1, betas=(0.5, 0.9))
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=0.1)

    def step(real: torch.Tensor, noise: torch.Tensor) -> None:
        for _ in range(3):
            of_critic.zero_grad()
            fake = generator(noise)
            (critic(fake.detach()).mean() - critic(real).mean()).backward()
            of_critic.step()
        of_generator.zero_grad()
        (-critic(generator(noise)).mean()).backward()
        of_generator.step()

    modules: dict[str, nn.Module] = {"generator": generator, "critic": critic}
    inputs = torch.randn(6, 4), torch.randn(6, 3)
    return Loop(modules, [of_critic, of_generator], step, inputs)


def penalized() -> Loop:
    """Return a loop whose loss has the gradient of the network by its input in it."""
    critic = layers(4, 5, 1)
    optimizer = torch.optim.Adam(critic.parameters())

    def step(real: torch.Tensor) -> None:
        optimizer.zero_grad()
        real = real.clone().requires_grad_()
        (slope,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
        (slope.norm(dim=1) - 1).square().mean().backward()
        optimizer.step()

    return Loop({"critic": critic}, [optimizer], step, (torch.randn(6, 4),))


def scaled_and_clipped() -> Loop:
    """Return a loop with a gradient scaler, and norms that are clipped."""
    model = layers(4, 5, 3)
    weights = list(model.parameters())  # a list that the loop keeps, as many do
    optimizer = torch.optim.AdamW(weights, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.zeros(()))  # which makes its tensors

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(weights, 0.01)
        scaler.step(optimizer)
        scaler.update()
        return norm

    return Loop({"": model}, [optimizer], step, (torch.randn(6, 4),), [scaler])


def accumulated() -> Loop:
    """Return a loop that adds up the gradients of two batches, and clips their values."""
    model = nn.Sequential(layers(4, 5), nn.BatchNorm1d(5), layers(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses: list[torch.Tensor] = []

    def step(*batches: torch.Tensor) -> None:
        for batch in batches:
            scores = model(batch)
            target = torch.zeros(len(batch), dtype=torch.long)
            loss = functional.cross_entropy(scores, target) / len(batches)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss)
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()

    return Loop({"": model}, [optimizer], step, torch.randn(2, 6, 4).unbind(), [losses])


def in_groups() -> Loop:
    """Return a loop with groups of parameters, a schedule, and averages of the weights."""
    model, average = layers(4, 5, 3), layers(4, 5, 3).requires_grad_(False)
    optimizer = torch.optim.SGD(
        [
            {"params": [w for w in model.parameters() if w.dim() > 1], "weight_decay": 0.5},
            {"params": [w for w in model.parameters() if w.dim() == 1], "momentum": 0.9},
        ],
        lr=0.1,
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.25)

    modules: dict[str, nn.Module] = {"model": model, "average": average}
    return Loop(modules, [optimizer], step, (torch.randn(6, 4),), [schedule])


def with_closure() -> Loop:
    """Return a loop in which the optimizer calls the loss."""
    model = layers(4, 2)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)

    def step(batch: torch.Tensor) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(batch).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)

    return Loop({"": model}, [optimizer], step, (torch.randn(6, 4),))


LOOPS: dict[str, Callable[[], Loop]] = {
    "GAN": gan,
    "gradient penalty": penalized,
    "scaler and clipping": scaled_and_clipped,
    "accumulation": accumulated,
    "groups and averages": in_groups,
    "closure": with_closure,
}


def loop(name: str) -> Loop:
    """Return a loop after its first step, in which optimizers make their state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(name))
        train_loop = LOOPS[name]()
    train_loop.step(*train_loop.inputs)
    return train_loop


def state_of(train_loop: Loop) -> str:
    """Return all that a loop holds, as a text that can be compared."""
    holders = (*train_loop.optimizers, *train_loop.changed_objects)
    contents = [
        *(fingerprint(module) for module in train_loop.modules.values()),
        *([*map(id, holder)] if isinstance(holder, list) else vars(holder) for holder in holders),
    ]
    return str(torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.tolist(), contents))


@pytest.mark.parametrize("name", LOOPS)
def test_a_step_of_a_loop_is_what_pytorch_runs_and_everything_is_as_it_was(name: str) -> None:
    train_loop = loop(name)
    initial, state = train_loop.values(), state_of(train_loop)
    trace = train_loop.trace()
    assert state_of(train_loop) == state
    train_loop.step(*train_loop.inputs)
    for order in (None, random_order(op_graph_of(trace), seed=0)):
        results = replay(trace, initial, order=order)
        for key, value in train_loop.values().items():
            torch.testing.assert_close(results[key], value, msg=partial(named, key))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GAN", "forward backward update " * 4),
        ("gradient penalty", "forward backward update"),
        ("scaler and clipping", "forward backward update"),
        ("accumulation", "forward backward forward backward update"),
        ("groups and averages", "forward backward update"),
        ("closure", "forward backward update"),
    ],
)
def test_phases_follow_the_calls_of_backward_and_step(name: str, expected: str) -> None:
    phases = [phase for phase, _ in groupby(call.phase for call in loop(name).trace().calls)]
    assert phases == [Phase[phase.upper()] for phase in expected.split()]


@pytest.mark.parametrize(
    ("clear", "op_type"), [(None, "buffer"), (False, "buffer"), (True, "input")]
)
def test_gradients_of_the_step_before_are_with_their_weights(
    clear: bool | None, op_type: str
) -> None:
    model = layers(4, 5, 3)
    optimizer = torch.optim.SGD(model.parameters())

    def step(batch: torch.Tensor) -> None:
        loss = model(batch).mean()
        if clear is not None:
            optimizer.zero_grad(set_to_none=clear)
        loss.backward()
        optimizer.step()

    train_loop = Loop({"": model}, [optimizer], step, (torch.ones(6, 4),))
    graph = op_graph_of(train_loop.trace())
    gradients = [op for op, name in enumerate(graph.op_names) if name.endswith(".grad")]
    assert [graph.op_types[op] for op in gradients] == [op_type] * 4
    for op in gradients:
        weight = graph.op_names.index(graph.op_names[op].removesuffix(".grad"))
        assert graph.colocation[op] == graph.colocation[weight] >= 0
        num_bytes = graph.parameter_bytes[weight] if op_type == "buffer" else 0
        assert graph.parameter_bytes[op] == num_bytes


def test_what_clips_and_scales_is_where_its_weight_is() -> None:
    train_loop = loop("scaler and clipping")
    graph = capture_function(
        train_loop.step,
        train_loop.modules,
        train_loop.optimizers,
        example_inputs=train_loop.inputs,
        changed_objects=train_loop.changed_objects,
    )
    of_weight = graph.op_names.index("0.weight")
    is_joined = graph.colocation == graph.colocation[of_weight]
    types = [kind for kind, joined in zip(graph.op_types, is_joined, strict=True) if joined]
    assert types == [
        "parameter",
        "placeto.barrier",
        "aten._amp_foreach_non_finite_check_and_unscale_",
        "aten.linalg_vector_norm",
        "aten.mul_",
        "placeto.update",
    ]


def test_an_optimizer_of_the_model_is_taken_with_its_state() -> None:
    model, batch = layers(3, 4, 2), torch.ones(5, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, amsgrad=True, fused=True)
    fresh = capture(model, batch, optimizer=optimizer)
    assert not optimizer.state
    model(batch).sum().backward()
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    used = capture(model, batch, optimizer=optimizer)
    assert str(optimizer.state_dict()) == str(state)
    for graph in (fresh, used):
        weights = 3 * 4 + 4 + 4 * 2 + 2
        assert graph.parameter_bytes.sum() == 4 * (4 * weights + 4)  # and four counts of steps
        assert graph.op_types.count("placeto.update") == 4


def test_the_state_of_an_optimizer_that_does_not_step_is_there() -> None:
    model, batch = nn.Linear(3, 2), torch.ones(5, 3)
    stepped, fresh = torch.optim.Adam([model.weight]), torch.optim.Adam([model.bias])
    model(batch).sum().backward()
    stepped.step()
    graph = capture_function(
        lambda rows: model(rows).sum().backward(), model, [stepped, fresh], example_inputs=batch
    )
    sizes = dict(zip(graph.op_names, graph.parameter_bytes.tolist(), strict=True))
    assert sizes["weight"] == 3 * (4 * 6) + 4  # and the count of steps
    assert sizes["bias"] == 4 * 2


MODEL, OTHER = layers(3, 2), layers(3, 2)


def train(optimizer: torch.optim.Optimizer) -> Callable[..., None]:
    def step(batch: torch.Tensor) -> None:
        MODEL(batch).sum().backward()
        optimizer.step()

    return step


TRAIN_OTHER = train(torch.optim.SGD(OTHER.parameters()))


def call_other(batch: torch.Tensor) -> None:
    OTHER(MODEL(batch)[:, :1].expand(-1, 3)).sum().backward()


@pytest.mark.parametrize(
    ("step", "modules", "optimizers", "message"),
    [
        (TRAIN_OTHER, MODEL, (), r"optimizers: expected par.*, got an optimizer SGD .* \(2, 3\)"),
        (call_other, MODEL, torch.optim.Adam(OTHER.parameters()), "optimizers: expected param"),
        (call_other, MODEL, (), r"step_fn: expected tensors that are inputs or parameters"),
        (call_other, [MODEL, 3], (), "modules: expected torch.nn.Modules, got int for 1"),
        (lambda x: MODEL(x).sum().item(), MODEL, (), r"step_fn: aten\._local_scalar_dense asks"),
        (lambda _: MODEL(3), MODEL, (), r"0: TypeError: "),
        (lambda _: 1 / 0, MODEL, (), r"step_fn: ZeroDivisionError: .* \(line"),
    ],
)
def test_what_is_wrong_is_named(
    step: Callable[..., Any],
    modules: nn.Module | Sequence[nn.Module],
    optimizers: torch.optim.Optimizer | tuple[()],
    message: str,
) -> None:
    with pytest.raises(CaptureError, match=f"^{message}") as error:
        capture_function(step, modules, optimizers, example_inputs=torch.ones(1, 3))
    assert "\n" not in str(error.value)

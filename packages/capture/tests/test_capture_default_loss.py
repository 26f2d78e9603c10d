"""What is trained when nobody says what the loss is."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from captured_models import Net
from placeto_capture import CaptureError, capture
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.step_spec import StepSpec
from replays import replay

Outputs = Callable[[Any, torch.Tensor], Any]
Loss = Callable[[Any], torch.Tensor]


def scaled(outputs: Outputs) -> nn.Module:
    """Return two layers and a scale, as in contrastive models, with outputs of a test's own."""

    def forward(net: Any, inputs: torch.Tensor) -> Any:
        return outputs(net, net.second(torch.tanh(net.first(inputs))) * net.scale.exp())

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = {"first": nn.Linear(4, 5), "second": nn.Linear(5, 2)}
    return Net(forward, **layers, scale=nn.Parameter(torch.tensor(0.3)))


class NamedOutput(NamedTuple):
    logits: torch.Tensor
    auxiliary: torch.Tensor
    loss: torch.Tensor


def square(logits: torch.Tensor) -> torch.Tensor:
    return logits.square().mean()


def scale_of(model: Any) -> Any:
    return model.scale.exp()


CLEAR: dict[str, tuple[Outputs, Loss]] = {
    "named in a mapping, behind another scalar": (
        lambda model, logits: {"scale": scale_of(model), "loss": square(logits), "logits": logits},
        lambda outputs: outputs["loss"],
    ),
    "named in an object that holds no tensors that PyTorch knows of": (
        lambda _, logits: SimpleNamespace(logits=logits, loss=square(logits)),
        lambda outputs: outputs.loss,
    ),
    "named in a tuple, behind another scalar": (
        lambda model, logits: NamedOutput(logits, scale_of(model), square(logits)),
        lambda outputs: outputs.loss,
    ),
    "named, and of a part of the network alone": (
        lambda model, logits: {"logits": logits, "loss": scale_of(model)},
        lambda outputs: outputs["loss"],
    ),
    "the one scalar, behind the scores that it is made of": (
        lambda _, logits: (logits, square(logits)),
        lambda outputs: outputs[1],
    ),
    "the one scalar, twice": (
        lambda _, logits: (loss := square(logits), [logits, loss]),
        lambda outputs: outputs[0],
    ),
    "the one scalar that gradients go through": (
        lambda _, logits: (logits.detach().max(), square(logits), logits),
        lambda outputs: outputs[1],
    ),
    "no scalar, but a name without a value": (
        lambda _, logits: {"loss": None, "logits": logits, "halves": logits[:, :1]},
        lambda outputs: outputs["logits"].mean() + outputs["halves"].mean(),
    ),
}


@pytest.mark.parametrize("name", CLEAR)
def test_the_loss_that_a_model_gives_is_trained(name: str) -> None:
    outputs, loss_of = CLEAR[name]
    model, inputs = scaled(outputs), torch.linspace(-1, 1, 12).reshape(3, 4)
    trace = trace_step(StepSpec(model, inputs, optimizer=torch.optim.SGD))
    results = replay(trace, {})
    loss = loss_of(model(inputs))
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(results["loss"], loss.detach())
    trained = {key: weight for key, weight in model.named_parameters() if weight.grad is not None}
    assert {key for key in results if key.endswith(".grad")} == {f"{key}.grad" for key in trained}
    for key, weight in trained.items():
        torch.testing.assert_close(results[f"{key}.grad"], weight.grad)


ONE_OF = r"and its one scalar depends on {} of the 5 weights that its outputs depend on"
UNCLEAR: dict[str, tuple[Outputs, str]] = {
    "a scale": (lambda model, logits: (scale_of(model), logits), ONE_OF.format(1)),
    "a scale that is a weight": (lambda model, logits: (model.scale, logits), ONE_OF.format(1)),
    "the loss of a part": (
        lambda model, logits: (model.first.weight.square().sum() + model.scale, logits),
        ONE_OF.format(2),
    ),
    "a scalar without gradient": (
        lambda _, logits: (logits, logits.detach().max()),
        ONE_OF.format(0),
    ),
    "two losses": (
        lambda _, logits: {"loss_of_boxes": square(logits), "loss_of_classes": logits.sum()},
        "and 2 scalars",
    ),
    "a scale beside the loss": (
        lambda model, logits: (scale_of(model), square(logits)),
        "and 2 scalars",
    ),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_where_it_is_unclear_which_output_is_the_loss_it_is_asked_for(name: str) -> None:
    outputs, message = UNCLEAR[name]
    expected = f"^loss_fn: expected one, as the model gives no output named loss, {message}$"
    with pytest.raises(CaptureError, match=expected):
        capture(scaled(outputs), torch.ones(3, 4))
    capture(scaled(outputs), torch.ones(3, 4), mode="inference")
    capture(scaled(outputs), torch.ones(3, 4), loss_fn=lambda _: torch.ones(1, requires_grad=True))

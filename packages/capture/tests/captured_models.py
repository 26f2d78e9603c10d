"""Small models that between them do all that capture has to follow."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from placeto_capture import capture
from placeto_graphs import OpGraph


@dataclass(frozen=True)
class Case:
    """A model and what it is called with."""

    model: nn.Module
    inputs: tuple[Any, ...]


class Net(nn.Module):
    """Modules, parameters, buffers and other tensors by name, and a function that uses them."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter) or name.startswith("kept"):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


class Function(Net):
    """A function as a module."""

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def forward_pass(function: Callable[..., Any], *inputs: torch.Tensor) -> OpGraph:
    """Capture a function."""
    return capture(Function(function), inputs, mode="inference")


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = self.relu(self.first_norm(self.first(image)))
        hidden = self.second_norm(self.second(hidden))
        hidden += image
        return F.relu_(hidden)


def unrolled(net: Any, sequence: torch.Tensor) -> torch.Tensor:
    """Use a cell of an LSTM with one set of weights for all steps."""
    state = None
    scores = []
    for inputs in sequence:
        state = net.cell(inputs, state)
        scores.append(net.classifier(state[0]))
    return torch.stack(scores)


class AttentionBlock(nn.Module):
    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(size, 2, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(size)
        self.feed_forward = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Dropout(dropout))

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        attended, _ = self.attention(sequence, sequence, sequence)
        hidden: torch.Tensor = self.feed_forward(self.norm(sequence + attended))
        return hidden


def tied_language_model(words: int, size: int) -> nn.Module:
    def forward(net: Any, inputs: torch.Tensor) -> torch.Tensor:
        scores = net.output(torch.tanh(net.embedding(inputs[:, :-1])))
        return F.cross_entropy(scores.flatten(0, 1), inputs[:, 1:].flatten())

    output, embedding = nn.Linear(size, words, bias=False), nn.Embedding(words, size)
    output.weight = embedding.weight
    return Net(forward, embedding=embedding, output=output)


def write_in_pieces(net: Any, steps: torch.Tensor) -> torch.Tensor:
    """Write an output step by step into one tensor, and keep a mean in a buffer."""
    outputs = torch.empty(len(steps), steps.shape[1], 3)
    for number, step in enumerate(steps):
        outputs[number] = net.layer(step) - net.mean
    net.mean.mul_(0.5).add_(outputs.detach().mean((0, 1)), alpha=0.5)
    result: torch.Tensor = outputs * net.mean
    return result


class Recomputed(nn.Module):
    def __init__(self, *, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.second = (
            nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Tanh(), nn.Linear(8, 4))
            for _ in range(2)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result = inputs
        for block in (self.first, self.second):
            if self.reentrant and not self.training:  # it warns that there are no gradients
                result = block(result)
            else:
                result = checkpoint(block, result, use_reentrant=self.reentrant)
        return result


def spectrum(net: Any, inputs: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.fft.rfft(net.layer(inputs))
    return (found.conj() * found).real + found.conj().imag


CASES: dict[str, Callable[[], Case]] = {
    "perceptron": lambda: Case(
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)), (torch.randn(5, 6),)
    ),
    "residual network": lambda: Case(
        nn.Sequential(
            nn.Conv2d(3, 4, 3),
            ResidualBlock(4),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 2),
        ),
        (torch.randn(2, 3, 10, 10),),
    ),
    "unrolled LSTM cell": lambda: Case(
        Net(unrolled, cell=nn.LSTMCell(4, 4), classifier=nn.Linear(4, 3)), (torch.randn(3, 2, 4),)
    ),
    "LSTM": lambda: Case(
        Net(lambda net, x: net.network(x)[0], network=nn.LSTM(4, 3, num_layers=2, dropout=0.3)),
        (torch.randn(3, 2, 4),),
    ),
    "attention block": lambda: Case(AttentionBlock(8, 0.25), (torch.randn(2, 5, 8),)),
    "tied weights": lambda: Case(tied_language_model(11, 6), (torch.randint(0, 11, (3, 5)),)),
    "writes in pieces": lambda: Case(
        Net(write_in_pieces, layer=nn.Linear(4, 3), mean=torch.zeros(3)), (torch.randn(3, 2, 4),)
    ),
    "recomputed": lambda: Case(Recomputed(), (torch.randn(3, 4),)),
    "recomputed in a pass of its own": lambda: Case(
        Recomputed(reentrant=True), (torch.randn(3, 4, requires_grad=True),)
    ),
    "spectrum": lambda: Case(Net(spectrum, layer=nn.Linear(8, 8)), (torch.randn(3, 8),)),
}


def case(name: str) -> Case:
    """Return a case; the same values each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(name))
        return CASES[name]()

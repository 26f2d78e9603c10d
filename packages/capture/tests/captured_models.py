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


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
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


class UnrolledCell(nn.Module):
    """An LSTM cell with one set of weights for all steps."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(size, size)
        self.classifier = nn.Linear(size, 3)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        state = None
        scores = []
        for inputs in sequence:
            state = self.cell(inputs, state)
            scores.append(self.classifier(state[0]))
        return torch.stack(scores)


class RecurrentNetwork(nn.Module):
    def __init__(self, network: nn.RNNBase) -> None:
        super().__init__()
        self.network = network

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.network(sequence)[0]
        return outputs


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


class TiedLanguageModel(nn.Module):
    def __init__(self, words: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, size)
        self.output = nn.Linear(size, words, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores = self.output(torch.tanh(self.embedding(words[:, :-1])))
        return F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())


class WritesInPieces(nn.Module):
    """Writes its output step by step into one tensor, and keeps a mean in a buffer."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        outputs = torch.empty(len(steps), steps.shape[1], 3)
        for number, step in enumerate(steps):
            outputs[number] = self.layer(step) - self.mean
        self.mean.mul_(0.5).add_(outputs.detach().mean((0, 1)), alpha=0.5)
        return outputs * self.mean


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


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        spectrum: torch.Tensor = torch.fft.rfft(self.layer(inputs))
        return (spectrum.conj() * spectrum).real + spectrum.conj().imag


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
    "unrolled LSTM cell": lambda: Case(UnrolledCell(4), (torch.randn(3, 2, 4),)),
    "LSTM": lambda: Case(
        RecurrentNetwork(nn.LSTM(4, 3, num_layers=2, dropout=0.3)), (torch.randn(3, 2, 4),)
    ),
    "attention block": lambda: Case(AttentionBlock(8, 0.25), (torch.randn(2, 5, 8),)),
    "tied weights": lambda: Case(TiedLanguageModel(11, 6), (torch.randint(0, 11, (3, 5)),)),
    "writes in pieces": lambda: Case(WritesInPieces(), (torch.randn(3, 2, 4),)),
    "recomputed": lambda: Case(Recomputed(), (torch.randn(3, 4),)),
    "recomputed in a pass of its own": lambda: Case(
        Recomputed(reentrant=True), (torch.randn(3, 4, requires_grad=True),)
    ),
    "spectrum": lambda: Case(Spectrum(), (torch.randn(3, 8),)),
}


def case(name: str) -> Case:
    """Return a case; the same values each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(name))
        return CASES[name]()

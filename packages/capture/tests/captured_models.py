"""Small models that between them do all that capture has to follow."""

from collections.abc import Callable
from copy import deepcopy
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

    def __init__(self, function: Callable[..., Any], **members: Any) -> None:
        super().__init__()
        self.function = function
        for name, member in members.items():
            if isinstance(member, nn.Module | nn.Parameter) or name.startswith("kept"):
                setattr(self, name, member)
            else:
                self.register_buffer(name, member)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


class Function(Net):
    """A function as a module."""

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def forward_pass(function: Callable[..., Any], *inputs: torch.Tensor) -> OpGraph:
    """Capture a function."""
    return capture(Function(function), inputs, mode="inference")


def residual_block(channels: int) -> nn.Module:
    def forward(net: Any, image: torch.Tensor) -> torch.Tensor:
        hidden = net.relu(net.norms[0](net.first(image)))
        hidden = net.norms[1](net.second(hidden))
        hidden += image
        return F.relu_(hidden)

    first, second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
    norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
    return Net(forward, first=first, second=second, norms=norms, relu=nn.ReLU(inplace=True))


def unrolled(net: Any, sequence: torch.Tensor) -> torch.Tensor:
    """Use a cell of an LSTM with one set of weights for all steps."""
    state = None
    scores = []
    for inputs in sequence:
        state = net.cell(inputs, state)
        scores.append(net.classifier(state[0]))
    return torch.stack(scores)


def attention_block(size: int, dropout: float) -> nn.Module:
    def forward(net: Any, sequence: torch.Tensor) -> Any:
        attended, _ = net.attention(sequence, sequence, sequence)
        return net.feed_forward(net.norm(sequence + attended))

    feed_forward = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Dropout(dropout))
    attention = nn.MultiheadAttention(size, 2, dropout=dropout, batch_first=True)
    return Net(forward, attention=attention, norm=nn.LayerNorm(size), feed_forward=feed_forward)


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
    for index, step in enumerate(steps):
        outputs[index] = net.layer(step) - net.mean
    net.mean.mul_(0.5).add_(outputs.detach().mean((0, 1)), alpha=0.5)
    result: torch.Tensor = outputs * net.mean
    return result


def recomputed(*, reentrant: bool = False) -> nn.Module:
    def forward(net: Any, inputs: torch.Tensor) -> Any:
        for block in net.blocks:
            if reentrant and not net.training:  # it warns that there are no gradients
                inputs = block(inputs)
            else:
                inputs = checkpoint(block, inputs, use_reentrant=reentrant)
        return inputs

    sizes = (nn.Linear(4, 8), nn.Dropout(), nn.Tanh(), nn.Linear(8, 4))
    return Net(
        forward, blocks=nn.ModuleList(nn.Sequential(*map(deepcopy, sizes)) for _ in range(2))
    )


def spectrum(net: Any, inputs: torch.Tensor) -> torch.Tensor:
    frequencies: torch.Tensor = torch.fft.rfft(net.layer(inputs))
    return (frequencies.conj() * frequencies).real + frequencies.conj().imag


CASES: dict[str, Callable[[], Case]] = {
    "perceptron": lambda: Case(
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)), (torch.randn(5, 6),)
    ),
    "residual network": lambda: Case(
        nn.Sequential(
            nn.Conv2d(3, 4, 3),
            residual_block(4),
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
    "attention block": lambda: Case(attention_block(8, 0.25), (torch.randn(2, 5, 8),)),
    "tied weights": lambda: Case(tied_language_model(11, 6), (torch.randint(0, 11, (3, 5)),)),
    "writes in pieces": lambda: Case(
        Net(write_in_pieces, layer=nn.Linear(4, 3), mean=torch.zeros(3)), (torch.randn(3, 2, 4),)
    ),
    "recomputed": lambda: Case(recomputed(), (torch.randn(3, 4),)),
    "recomputed in a pass of its own": lambda: Case(
        recomputed(reentrant=True), (torch.randn(3, 4, requires_grad=True),)
    ),
    "spectrum": lambda: Case(Net(spectrum, layer=nn.Linear(8, 8)), (torch.randn(3, 8),)),
}


def case(name: str) -> Case:
    """Return a case; the same values each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(name))
        return CASES[name]()

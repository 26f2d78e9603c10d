"""Small steps of all kinds, whose memory has to be right."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from captured_models import Net

Loss = Callable[[Any, Tensor], Tensor]
Optimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
Made = tuple[nn.Module, tuple[Tensor, ...], Tensor]  # a model, its inputs, what they should give


def squares(outputs: Tensor, target: Tensor) -> Tensor:
    """Return the mean square in three ops."""
    return (outputs - target).square().mean()


def classification(outputs: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy where the largest number of a row of the target is right."""
    return F.cross_entropy(outputs.flatten(0, -2), target.flatten(0, -2).argmax(-1))


@dataclass(frozen=True)
class MemoryStep:
    """A step, made anew each time.

    Attributes
    ----------
    make
        Makes the model and its batch.
    loss, optimizer, is_training
        What is done with it.
    within
        How far off the simulated peak may be, as a fraction; more than that of most for a reason.
    """

    make: Callable[[], Made]
    loss: Loss = squares
    optimizer: Optimizer = torch.optim.Adam
    is_training: bool = True
    within: float = 0.001


def perceptron(*sizes: int, rows: int, activation: Callable[[], nn.Module] = nn.ReLU) -> Made:
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers), (torch.randn(rows, sizes[0]),), torch.randn(rows, sizes[-1])


def block(norm: Callable[[int], nn.Module] = nn.LayerNorm) -> nn.Module:
    """Return a block of a network with a residual connection."""

    def forward(net: Any, inputs: Tensor) -> Any:
        return inputs + net.down(F.gelu(net.up(net.norm(inputs))))

    return Net(forward, norm=norm(64), up=nn.Linear(64, 256), down=nn.Linear(256, 64))


def in_a_row(layers: Iterable[nn.Module], reentrant: bool | None) -> nn.Module:
    """Return layers, of which each may compute its activations again."""

    def forward(net: Any, hidden: Tensor) -> Tensor:
        for layer in net.layers:
            if reentrant is None:
                hidden = layer(hidden)
            else:
                hidden = checkpoint(layer, hidden, use_reentrant=reentrant)
        return hidden

    return Net(forward, layers=nn.ModuleList(layers))


def blocks(reentrant: bool | None = None, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> Made:
    model = in_a_row([block(norm) for _ in range(6)], reentrant)
    inputs = torch.randn(1024, 64, requires_grad=reentrant is True)
    return model, (inputs,), torch.randn(1024, 64)


def attention(dropout: float | None, reentrant: bool | None = None) -> Made:
    """Return attention of 4 heads, fused or written out with dropout of its weights."""

    def forward(net: Any, inputs: Tensor) -> Tensor:
        query, key, value = (
            head_inputs.view(4, 128, 4, 16).transpose(1, 2)
            for head_inputs in net.project(inputs).chunk(3, -1)
        )
        if dropout is None:
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-2, -1) / 4
            attended = F.dropout(scores.softmax(-1), dropout, net.training) @ value
        result: Tensor = inputs + net.out(attended.transpose(1, 2).reshape(4, 128, 64))
        return result

    layers = (Net(forward, project=nn.Linear(64, 192), out=nn.Linear(64, 64)) for _ in range(3))
    inputs = torch.randn(4, 128, 64)
    model = in_a_row([nn.Sequential(layer, block()) for layer in layers], reentrant)
    return model, (inputs,), torch.randn_like(inputs)


class ConvBlock(nn.Module):
    """Two convolutions with batch normalisation, and a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.first(images)
        hidden = self.first_norm(hidden)
        hidden = F.relu(hidden)
        hidden = self.second(hidden)
        hidden = self.second_norm(hidden)
        hidden += images
        return F.relu(hidden)


class ConvBlockOfVariables(ConvBlock):
    """The same with variables that hold what nothing reads any more."""

    def forward(self, images: Tensor) -> Tensor:
        first = F.relu(self.first_norm(self.first(images)))
        second = self.second_norm(self.second(first))
        return F.relu(second + images)


def convolutions(frozen: bool = False, block: type[ConvBlock] = ConvBlock) -> Made:
    body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *(block(16) for _ in range(3)))
    if frozen:
        body.requires_grad_(False)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    images = torch.randn(8, 3, 32, 32)
    return nn.Sequential(body, head), (images,), torch.randint(10, (8,))


def language_model(words: int, rows: int, tied: bool) -> Made:
    """Words to scores of words, with one matrix for both or two."""
    layers = nn.Embedding(words, 64), block(), nn.Linear(64, words, bias=False)
    if tied:
        layers[2].weight = layers[0].weight
    batch = torch.randint(words, (2, rows))
    return nn.Sequential(*layers), (batch[0],), batch[1]


def recurrent() -> Made:
    def forward(net: Any, steps: Tensor) -> Tensor:
        hidden = cell = torch.zeros(128, 64)
        outputs = []
        for step in steps:
            hidden, cell = net.cell(step, (hidden, cell))
            outputs.append(net.out(hidden))
        return torch.stack(outputs)

    steps = torch.randn(2, 12, 128, 64)
    return Net(forward, cell=nn.LSTMCell(64, 64), out=nn.Linear(64, 64)), (steps[0],), steps[1]


def autocast() -> Made:
    def forward(net: Any, inputs: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            result = net.model(inputs)
        return result.float()

    model, inputs, target = blocks()
    return Net(forward, model=model), inputs, target


def accumulating() -> Made:
    """Quarters of a batch, one after the other, whose gradients add up in the weights."""
    model, inputs, target = perceptron(256, 512, 256, rows=64)
    net = Net(lambda net, batch: torch.cat([net.model(x) for x in batch.chunk(4)]), model=model)
    return net, inputs, target


def rows_of_layers(frozen: bool = False) -> Made:
    """The first rows of what each layer makes, taken before or after the next one reads it."""

    def forward(net: Any, hidden: Tensor) -> Any:
        rows = []
        for index, layer in enumerate(net.layers):
            if index % 2:
                rows.append(hidden[:, 0])
                hidden = layer(hidden)
            else:
                hidden = layer(hidden)
                rows.append(hidden[:, 0])
        return net.head(torch.stack(rows, 1))

    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(10)).requires_grad_(not frozen)
    model = Net(forward, layers=layers, head=nn.Linear(64, 8))
    return model, (torch.randn(32, 64, 64),), torch.randn(32, 10, 8)


def two_heads() -> Made:
    def forward(net: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = net.body(inputs)
        return net.small(hidden), net.large(hidden)

    large, inputs, target = perceptron(*[64] * 7, rows=1024)
    return (
        Net(forward, body=nn.Linear(64, 64), small=nn.Linear(64, 64), large=large),
        inputs,
        target,
    )


def loss_of_one(outputs: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return classification(outputs[0], target)


def clipped(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Return AdamW that clips gradients before each step, as training loops do."""
    weights = list(parameters)
    optimizer = torch.optim.AdamW(weights)

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(weights, 1.0, foreach=False)

    optimizer.register_step_pre_hook(clip)
    return optimizer


SGD = partial(torch.optim.SGD, lr=0.1)
# Of which each is tried with and without foreach.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("Adadelta", "Adagrad", "Adamax", "AdamW", "NAdam", "RAdam", "Rprop")},
    "Adam": {"weight_decay": 0.1, "amsgrad": True},
    "RMSprop": {"centered": True, "momentum": 0.9},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}


def update(name: str, **options: bool) -> MemoryStep:
    optimizer = partial(getattr(torch.optim, name), **OPTIMIZERS[name], **options)
    return MemoryStep(lambda: perceptron(*[256] * 5, rows=8), optimizer=optimizer)


def in_groups(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Return AdamW with a learning rate for each pair of weights."""
    weights = list(parameters)
    pairs = [{"params": weights[i : i + 2], "lr": 0.1 / (i + 1)} for i in range(0, len(weights), 2)]
    return torch.optim.AdamW(pairs, foreach=True)


def two_dtypes() -> Made:
    wide, narrow = nn.Linear(256, 256).double(), nn.Linear(256, 256)
    model = Net(lambda _, inputs: narrow(wide(inputs.double()).float()), wide=wide, narrow=narrow)
    return model, (torch.randn(8, 256),), torch.randn(8, 256)


UPDATES = {
    "groups, foreach": MemoryStep(lambda: perceptron(*[256] * 9, rows=8), optimizer=in_groups),
    "two dtypes, foreach": MemoryStep(
        two_dtypes, optimizer=partial(torch.optim.AdamW, foreach=True)
    ),
    **{f"{name}, foreach": update(name, foreach=True) for name in OPTIMIZERS},
    **{f"{name}, one by one": update(name, foreach=False) for name in OPTIMIZERS},
    **{f"{name}, fused": update(name, fused=True) for name in ("Adam", "AdamW", "SGD")},
}
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "activations": nn.ReLU,
    "activations in place": partial(nn.ReLU, True),
    "SiLU": nn.SiLU,
    "Mish": nn.Mish,
    "dropout": lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.1)),
}
STEPS = {
    "weights, Adam": MemoryStep(lambda: perceptron(512, 768, 512, rows=8)),
    # What is changed in place, here a gradient, is counted twice meanwhile.
    "weights, clipped AdamW": MemoryStep(
        lambda: perceptron(512, 512, 512, 512, rows=8), optimizer=clipped, within=0.1
    ),
    "squares in one op": MemoryStep(lambda: perceptron(64, 1024, rows=1024), F.mse_loss),
    "binary cross-entropy": MemoryStep(
        lambda: perceptron(64, 1024, rows=1024),
        lambda scores, target: F.binary_cross_entropy(scores.sigmoid(), target.sigmoid()),
    ),
    **{
        name: MemoryStep(partial(perceptron, *[64] * 9, rows=2048, activation=kind), classification)
        for name, kind in ACTIVATIONS.items()
    },
    "residual blocks": MemoryStep(blocks),
    "checkpointing": MemoryStep(lambda: blocks(reentrant=False)),
    "reentrant checkpointing": MemoryStep(lambda: blocks(reentrant=True)),
    "torch's RMSNorm": MemoryStep(lambda: blocks(norm=nn.RMSNorm)),
    "inference": MemoryStep(blocks, is_training=False),
    "inference of convolutions": MemoryStep(convolutions, is_training=False),
    "inference with variables": MemoryStep(
        lambda: convolutions(block=ConvBlockOfVariables), is_training=False
    ),
    "attention": MemoryStep(lambda: attention(None)),
    "attention with dropout": MemoryStep(lambda: attention(0.1)),
    "checkpointed attention": MemoryStep(lambda: attention(0.1, reentrant=False)),
    "convolutions": MemoryStep(convolutions, F.cross_entropy),
    "frozen convolutions": MemoryStep(lambda: convolutions(frozen=True), F.cross_entropy),
    "embeddings": MemoryStep(lambda: language_model(8_000, 64, tied=False), F.cross_entropy),
    "tied embeddings": MemoryStep(lambda: language_model(8_000, 64, tied=True), F.cross_entropy),
    "LSTM": MemoryStep(recurrent, classification),
    "autocast": MemoryStep(autocast),
    # In a queue, a part of the batch begins to go backward before the one before it is done.
    "accumulation": MemoryStep(accumulating, within=0.1),
    "rows of each layer": MemoryStep(rows_of_layers),
    "rows of frozen layers": MemoryStep(lambda: rows_of_layers(frozen=True)),
    "inference of rows": MemoryStep(rows_of_layers, is_training=False),
    "output that the loss leaves out": MemoryStep(two_heads, loss_of_one),
    **UPDATES,
}

"""Programs in files, whole and spoilt."""

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn


class SmallAttention(nn.Module):
    """A block of a transformer, and a buffer that its step reads."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.norm = nn.LayerNorm(8)
        self.register_buffer("scale", torch.tensor([0.5]))

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(words)
        for layer in self.layers:
            scores = torch.matmul(layer(hidden), hidden.transpose(1, 2)) * self.scale
            weights = torch.softmax(scores.masked_fill(mask, -1e4), dim=-1)
            hidden = self.norm(hidden + torch.matmul(weights, hidden))
        return nn.functional.gelu(hidden)


def attention() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    words = torch.randint(20, (2, 5))
    return SmallAttention(), (words, torch.ones(5, 5).triu(1).bool())


def convolutions(*, training: bool = True) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4) if training else nn.Identity(),
        nn.ReLU(inplace=training),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64, 5),
    )
    return model.train(training), (torch.randn(2, 3, 8, 8),)


def exported(path: Path, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Path:
    """Write a model as an exported program."""
    torch.export.save(torch.export.export(model, inputs), path)
    return path


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "sprung")


def trap(path: Path) -> bytes:
    """Return a pickle that writes a file when it is loaded."""
    return pickle.dumps(Trap(path))

"""Programs in files, whole and spoilt."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from captured_models import Net


def attention() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a block of a transformer, and a buffer that its step reads."""

    def forward(net: Any, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = net.embedding(words)
        for layer in net.layers:
            scores = torch.matmul(layer(hidden), hidden.transpose(1, 2)) * net.scale
            weights = torch.softmax(scores.masked_fill(mask, -1e4), dim=-1)
            hidden = net.norm(hidden + torch.matmul(weights, hidden))
        return nn.functional.gelu(hidden)

    layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
    modules = {"embedding": nn.Embedding(20, 8), "layers": layers, "norm": nn.LayerNorm(8)}
    model = Net(forward, **modules, scale=torch.tensor([0.5]))
    return model, (torch.randint(20, (2, 5)), torch.ones(5, 5).triu(1).bool())


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


def dropped_attention() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return attention between normalised words, which a GPU computes in one op each."""

    def forward(net: Any, words: torch.Tensor) -> torch.Tensor:
        query, key, value = net.project(net.norm(words)).unsqueeze(1).chunk(3, -1)
        attend = nn.functional.scaled_dot_product_attention
        return attend(query, key, value, dropout_p=0.25, scale=0.5)

    model = Net(forward, norm=nn.RMSNorm(8), project=nn.Linear(8, 24))
    return model, (torch.randn(2, 5, 8),)


def exported(path: Path, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Path:
    """Write a model as an exported program."""
    torch.export.save(torch.export.export(model, inputs), path)
    return path


def of_a_gpu(path: Path, *, autocast: bool = False) -> Path:
    """Rewrite an exported program to be one that was exported on a GPU, where autocast is on."""
    members = _members(path.read_bytes())
    for name, content in members.items():
        if name.endswith(".json"):
            on_gpu = content.replace(
                b'{"type": "cpu", "index": null}', b'{"type": "cuda", "index": 0}'
            )
            off, on = (b'"kind": 1}, {"name": "", "arg": {"as_bool": ' + b for b in (b"f", b"t"))
            rewritten = on_gpu.replace(off + b"alse", on + b"rue", 1) if autocast else on_gpu
            members[name] = rewritten
        elif name.endswith("sample_inputs/model.pt"):
            inputs = _members(content)
            for key, value in inputs.items():
                if key.endswith("data.pkl"):  # a text of three letters, and one of six
                    inputs[key] = value.replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0")
            members[name] = _archive(inputs)
    path.write_bytes(_archive(members))
    return path


def _members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _archive(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "sprung")


def trap(path: Path) -> bytes:
    """Return a pickle that writes a file when it is loaded."""
    return pickle.dumps(Trap(path))

"""Stand-ins for timm and torchvision, with one small network."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn


class Network(nn.Module):
    """A model as libraries of images make it."""

    def __init__(self, num_classes: int = 10, width: int = 4) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.default_cfg = {"input_size": (3, 16, 16)}
        self.layer = nn.Conv2d(3, width, 3)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.layer(images).mean((2, 3)))
        return scores


def make_network(weights: None = None, *, pretrained: bool = False, **settings: Any) -> Network:
    assert weights is None
    assert not pretrained
    return Network(**{"num_classes": 1000, **settings})


def make_detector() -> None:
    raise AssertionError


make_network.__module__ = "torchvision.models.resnet"
make_detector.__module__ = "torchvision.models.detection.retina"
MAKERS: dict[str, Callable[..., Any]] = {"resnet50": make_network, "retinanet": make_detector}


TIMM: Any = SimpleNamespace(
    is_model=lambda name: name == "resnet50",
    list_models=lambda: ["resnet50", "vgg16"],
    create_model=lambda name, **settings: MAKERS[name](**settings),
)


VISION: Any = SimpleNamespace(list_models=lambda: list(MAKERS), get_model_builder=MAKERS.get)


def replace_image_libraries(patch: pytest.MonkeyPatch) -> None:
    """Let imports of timm and torchvision give the stand-ins."""
    patch.setitem(sys.modules, "timm", TIMM)
    for name in ("torchvision", "torchvision.models"):
        patch.setitem(sys.modules, name, VISION)

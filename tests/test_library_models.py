"""Models of other libraries: what is asked of the library, and what is said when it refuses."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from placeto import capture_step
from placeto_workloads import LIBRARIES, WorkloadError, library_step


class Network(nn.Module):
    """What libraries of image models make."""

    def __init__(self, num_classes: int = 10, width: int = 4) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.default_cfg = {"input_size": (3, 16, 16)}
        self.layer = nn.Conv2d(3, width, 3)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.layer(images).mean((2, 3)))
        return scores


def fake_timm() -> ModuleType:
    library = ModuleType("timm")

    def create_model(name: str, *, pretrained: bool, **settings: Any) -> Network:
        assert name == "resnet50"
        assert not pretrained
        return Network(**settings)

    library.__dict__.update(
        is_model=lambda name: name == "resnet50",
        list_models=lambda: ["resnet50", "vgg16"],
        create_model=create_model,
    )
    return library


def fake_torchvision() -> ModuleType:
    def maker(weights: None, **settings: Any) -> Network:
        assert weights is None
        return Network(**{"num_classes": 1000, **settings})

    maker.__module__ = "torchvision.models.resnet"

    def detector() -> None:
        raise AssertionError

    detector.__module__ = "torchvision.models.detection.retina"
    makers: dict[str, Callable[..., Any]] = {"resnet50": maker, "retinanet": detector}
    library = ModuleType("torchvision.models")
    library.__dict__.update(list_models=lambda: list(makers), get_model_builder=makers.get)
    return library


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", fake_timm())
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", fake_torchvision())


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(("library", "side"), [("timm", 16), ("torchvision", 224)])
def test_a_model_of_images_sorts_them_into_its_classes(library: str, side: int) -> None:
    step = library_step(f"{library}:resnet50", batch_size=3, num_classes=7, width=5)
    assert [tuple(images.shape) for images in step.example_inputs] == [(3, 3, side, side)]
    assert all(weight.is_meta for weight in step.model.parameters())
    graph = capture_step(step)
    assert "aten.nll_loss_forward" in graph.op_types
    on_cpu = library_step(f"{library}:resnet50", batch_size=3, device="cpu", seed=1)
    assert on_cpu.loss_fn is not None
    scores = on_cpu.model(*on_cpu.example_inputs)
    loss = on_cpu.loss_fn(scores)
    assert loss == on_cpu.loss_fn({"out": scores})
    assert on_cpu.loss_fn((scores, scores)).item() == pytest.approx(1.4 * loss.item())


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_what_a_library_of_images_does_not_know_is_named(library: str) -> None:
    with pytest.raises(WorkloadError, match=rf"^{library}:resnet5: .* such as resnet50.*, got"):
        library_step(f"{library}:resnet5")
    with pytest.raises(WorkloadError, match=r"TypeError: .*'depth'"):
        library_step(f"{library}:resnet50", depth=3)
    with pytest.raises(WorkloadError, match=r"^batch_size: expected at least 1, got 0$"):
        library_step(f"{library}:resnet50", batch_size=0)


@pytest.mark.usefixtures("fakes")
def test_no_weights_are_loaded() -> None:
    for source, setting in (
        ("timm:resnet50", {"pretrained": True}),
        ("timm:resnet50", {"checkpoint_path": "weights.pth"}),
        ("torchvision:resnet50", {"weights": "DEFAULT"}),
    ):
        with pytest.raises(WorkloadError, match="expected no weights to load"):
            library_step(source, **setting)


@pytest.mark.usefixtures("fakes")
def test_detectors_are_refused() -> None:
    with pytest.raises(WorkloadError, match="got a detector"):
        library_step("torchvision:retinanet")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_missing_library_is_named_with_its_extra(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.models", None)
    with pytest.raises(WorkloadError) as caught:
        library_step(f"{library}:anything")
    assert str(caught.value).endswith(f"pip install 'placeto-workloads[{library}]'")


def test_a_library_that_cannot_be_imported_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator\\nmissing')")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WorkloadError, match=r"^timm: .*got RuntimeError: operator missing$"):
        library_step("timm:resnet50")


def test_transformers_that_are_not_known_are_named() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(WorkloadError, match=r"known model_type, such as .*\bgpt2\b.*, got 'gpt3'$"):
        library_step("transformers:gpt3")
    with pytest.raises(WorkloadError, match=r"of gpt2, such as n_layer\b.*, got 'n_leyer'"):
        library_step("transformers:gpt2", n_leyer=3)
    with pytest.raises(WorkloadError, match=r"^task: expected one of .*causal-lm.*, got 'x'$"):
        library_step("transformers:gpt2", task="x")


@pytest.mark.filterwarnings("ignore")  # of the library
def test_a_configuration_that_the_library_refuses_is_said_in_its_words() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(WorkloadError, match=r"n_layer.*expected int, got str"):
        library_step("transformers:gpt2", n_layer="many")
    with pytest.raises(WorkloadError, match=r"^transformers:gpt2: ValueError: .*divisible"):
        library_step("transformers:gpt2", n_embd=15, n_head=4)


@pytest.mark.filterwarnings("ignore")
def test_inputs_that_do_not_fit_are_named() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(
        WorkloadError, match=r"^sequence_length: expected from 1 to 1024 .*gpt2, got 1025$"
    ):
        library_step("transformers:gpt2", sequence_length=1025)
    for setting in ({"sequence_length": 0}, {"batch_size": 0}):
        with pytest.raises(WorkloadError, match=r"expected .*1.*, got 0$"):
            library_step("transformers:gpt2", **setting)


@pytest.mark.filterwarnings("ignore")
def test_a_configuration_comes_from_a_file_without_what_would_run(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    config = {
        "model_type": "gpt2",
        "n_layer": 3,
        "n_embd": 8,
        "n_head": 2,
        "vocab_size": 30,
        "architectures": ["GPT2ForSequenceClassification"],
        "auto_map": {"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"},
        "attn_implementation": "someone/attention",
        "_attn_implementation": "someone/attention",
        "quantization_config": {"quant_method": "evil"},
    }
    path.write_text(json.dumps(config))
    model: Any = library_step(f"transformers:{path}", n_embd=16, sequence_length=4).model
    assert (model.config.n_layer, model.config.n_embd) == (3, 16)
    assert type(model).__name__ == "GPT2LMHeadModel"
    assert not (tmp_path / "sprung").exists()


@pytest.mark.filterwarnings("ignore")
def test_nor_within_a_part_of_a_configuration(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    part = {**sizes, "num_hidden_layers": 1, "vocab_size": 600, "max_position_embeddings": 8}
    bad = {"_attn_implementation": "someone/attention", "auto_map": {"AutoModel": "evil.Model"}}
    vision = {**sizes, "num_hidden_layers": 1, "image_size": 8, "patch_size": 4, **bad}
    config = {"model_type": "clip", "text_config": {**part, **bad}, "vision_config": vision}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    model: Any = library_step(f"transformers:{path}", batch_size=2).model
    for made in (model.config.text_config, model.config.vision_config):
        assert made.hidden_size == 16
        assert made._attn_implementation in {"eager", "sdpa"}
        assert not hasattr(made, "auto_map")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected JSON"),
        ("[1]", "expected a mapping, got list"),
        ("{}", "got None"),
        ('{"model_type": ["gpt2"]}', r"got \['gpt2'\]"),
        ('{"model_type": "gpt2", "n_layer": "x"}', "expected int, got str"),
    ],
)
def test_a_wrong_configuration_is_refused(tmp_path: Path, content: str, message: str) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(WorkloadError, match=message):
        library_step(f"transformers:{tmp_path / 'config.json'}")
    with pytest.raises(WorkloadError, match=r"none\.json: No such file"):
        library_step(f"transformers:{tmp_path / 'none.json'}")


def test_the_hub_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    constants = pytest.importorskip("huggingface_hub.constants")
    seen = []

    def from_config(_config: object) -> nn.Module:
        seen.append(constants.HF_HUB_OFFLINE)
        raise ValueError("enough")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_config", from_config)
    with pytest.raises(WorkloadError, match=r"^transformers:gpt2: ValueError: enough$"):
        library_step("transformers:gpt2")
    assert seen == [True]
    assert constants.HF_HUB_OFFLINE is False

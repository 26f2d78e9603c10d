"""Models of other libraries: classes, inputs, labels, and errors that name a remedy."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import constants
from torch import nn

from image_libraries import replace_image_libraries
from placeto_workloads import LIBRARIES, WorkloadError, library_step
from small_transformers import DECODER, DETECTOR, MORE, SMALL, WIDTHS

SMALL_GPT2 = {"model_type": "gpt2", **SMALL["gpt2"]}
TINY = {**WIDTHS, "num_hidden_layers": 1, "image_size": 8, "patch_size": 4}


@pytest.fixture
def image_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_image_libraries(monkeypatch)


@pytest.mark.usefixtures("image_libraries")
@pytest.mark.parametrize(("library", "side"), [("timm", 16), ("torchvision", 224)])
def test_a_model_of_images_sorts_them_into_its_classes(library: str, side: int) -> None:
    step = library_step(f"{library}:resnet50", batch_size=3, num_classes=7, width=5)
    assert [tuple(images.shape) for images in step.example_inputs] == [(3, 3, side, side)]
    assert all(weight.is_meta for weight in step.model.parameters())
    on_cpu = library_step(f"{library}:resnet50", batch_size=3, num_classes=7, device="cpu", seed=1)
    assert on_cpu.loss_fn is not None
    scores = on_cpu.model(*on_cpu.example_inputs)
    loss = on_cpu.loss_fn(scores)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        torch.randn(3, 3, side, side)
        labels = torch.randint(7, (3,))
    assert loss == nn.functional.cross_entropy(scores, labels)
    assert loss == on_cpu.loss_fn({"out": scores})
    assert on_cpu.loss_fn((scores, scores)).item() == pytest.approx(1.4 * loss.item())


@pytest.mark.usefixtures("image_libraries")
@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        ("torchvision:resnet5", {}, r"^torchvision:resnet5: .* such as resnet50.*, got"),
        ("timm:resnet50", {"depth": 3}, r"TypeError: .*'depth'"),
        ("timm:resnet50", {"pretrained": True}, "expected no weights to load"),
        ("torchvision:retinanet", {}, "got a detector"),
    ],
)
def test_models_of_images_that_are_not_made_are_refused(
    source: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        library_step(source, **settings)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_missing_library_is_named_with_its_extra(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.models", None)
    with pytest.raises(WorkloadError) as caught:
        library_step(f"{library}:anything")
    assert str(caught.value).endswith(f"pip install 'placeto-workloads[{library}]'")


def of(architecture: str) -> dict[str, Any]:
    """Return the setting of a class."""
    return {"architectures": [architecture]}


NOT_DOWNLOADED = r".*or the path of a config.json, as nothing is downloaded"


@pytest.mark.filterwarnings("ignore")  # of the library
@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gpt3", {}, r"known model_type, such as .*\bgpt2\b.*, got 'gpt3'$"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", {}, f"such as qwen2_5_vl,{NOT_DOWNLOADED}"),
        ("gpt2", {"n_leyer": 3}, r"setting of gpt2, such as n_layer\b.*, got 'n_leyer'"),
        ("gpt2", {"n_embd": 15, "n_head": 4}, r"^transformers:gpt2: ValueError: .*divisible"),
        ("gpt2", {"sequence_length": 1025}, r"at most 1024 tokens, as .*gpt2 is 1024, got 1025;"),
        # 16 rows, of which tokens take those behind that of padding, the second one.
        ("roberta", {**MORE["roberta"], "sequence_length": 15}, "at most 14 .*_embeddings=17 allo"),
        ("esm", {}, "settings that its configuration leaves open, such as .*vocab_size"),
        ("siglip2", {"vision_config": TINY, "text_config": TINY}, "Siglip2Model, .*patial_shapes"),
        ("gpt2", of("BertModel"), "gpt2, got BertModel, which is one of bert$"),
        ("t5", {**SMALL["t5"], **of("T5ForSequenceClassification")}, "values, got T5ForS.*, which"),
        ("videomae", {**TINY, **of("VideoMAEForPreTraining")}, r"got Vid\w+, .* bool_masked_pos$"),
    ],
)
def test_transformers_that_are_not_made_are_refused(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        library_step(f"transformers:{name}", **settings)


@pytest.mark.parametrize(
    ("name", "settings", "rows"),
    [
        ("qwen3_moe", {"head_dim": 128, "num_experts": 2}, 256),
        ("llama", {"rope_theta": 5e5}, 16),
        ("cohere2", {"sliding_window_pattern": 2}, 16),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_settings_that_only_code_reads_are_taken(
    name: str, settings: dict[str, Any], rows: int
) -> None:
    step = library_step(f"transformers:{name}", sequence_length=4, **DECODER, **settings)
    assert len(step.model.get_parameter("model.layers.0.self_attn.q_proj.weight")) == rows
    with pytest.raises(WorkloadError, match=r"expected a setting of gpt2.*, got"):
        library_step("transformers:gpt2", **settings)


def written(folder: Path, **config: Any) -> str:
    """The source of a configuration, in a file."""
    (folder / "config.json").write_text(json.dumps(config))
    return f"transformers:{folder / 'config.json'}"


@pytest.mark.filterwarnings("ignore")
def test_a_configuration_comes_from_a_file_without_what_would_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    names = "AutoModelForCausalLM", "AutoModel", "AutoConfig"
    bad = {
        **dict.fromkeys(("attn_implementation", "_attn_implementation"), "someone/attention"),
        "auto_map": dict.fromkeys(names, "evil.Model"),
    }
    source = written(tmp_path, **{**SMALL_GPT2, "n_layer": 3}, **bad)
    model: Any = library_step(source, n_embd=16, sequence_length=4).model
    assert (model.config.n_layer, model.config.n_embd) == (3, 16)
    assert type(model).__name__ == "GPT2LMHeadModel"
    text = {**WIDTHS, "num_hidden_layers": 1, "vocab_size": 600, "max_position_embeddings": 8}
    configs = {"text_config": {**text, **bad}, "vision_config": {**TINY, **bad}}
    clip: Any = library_step(written(tmp_path, model_type="clip", **configs), batch_size=2).model
    for config in (clip.config.text_config, clip.config.vision_config):
        assert config.hidden_size == WIDTHS["hidden_size"]
        assert config._attn_implementation in {"eager", "sdpa"}
        assert not hasattr(config, "auto_map")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("architecture", "model_type", "head"),
    [
        ("BertForSequenceClassification", "bert", "classifier"),
        ("BertForPreTraining", "bert", "cls.seq_relationship"),
        ("RobertaForSequenceClassification", "roberta", "classifier.out_proj"),
        ("GitForCausalLM", "git", "output"),
        ("LlamaForTokenClassification", "llama", "score"),
        ("Wav2Vec2ForCTC", "wav2vec2", "lm_head"),
        ("DeiTForMaskedImageModeling", "deit", "decoder.0"),
    ],
)
def test_a_model_is_of_the_class_that_its_configuration_names(
    tmp_path: Path, architecture: str, model_type: str, head: str
) -> None:
    """It has that head, and the loss that PyTorch makes of it: no mean of outputs."""
    config = {**SMALL, **MORE}[model_type]
    source = written(tmp_path, **config, model_type=model_type, architectures=[architecture])
    sizes = {} if "image_size" in config else {"sequence_length": 6}
    on_cpu = library_step(source, batch_size=2, device="cpu", **sizes)
    assert type(on_cpu.model).__name__ == architecture
    loss = on_cpu.model(**on_cpu.example_inputs).loss
    assert loss.dim() == 0
    assert loss.isfinite()
    loss.backward()
    weight = on_cpu.model.get_parameter(f"{head}.weight")
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0


@pytest.mark.filterwarnings("ignore")
def test_a_model_without_a_loss_of_its_own_is_built_as_well(tmp_path: Path) -> None:
    source = written(tmp_path, **SMALL["t5"], model_type="t5", architectures=["T5EncoderModel"])
    step = library_step(source, batch_size=2, sequence_length=6)
    assert type(step.model).__name__ == "T5EncoderModel"
    assert not any(path.startswith("decoder") for path, _ in step.model.named_modules())


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"num_labels": 1}, torch.float32),
        ({"num_labels": 3}, torch.int64),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, torch.float32),
        ({"num_labels": 3, "problem_type": "regression"}, torch.float32),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_labels_are_those_of_the_problem(settings: dict[str, Any], label: torch.dtype) -> None:
    named = {**of("BertForSequenceClassification"), **SMALL["bert"], **settings}
    step = library_step("transformers:bert", sequence_length=4, device="cpu", **named)
    assert step.example_inputs["labels"].dtype == label
    assert step.model(**step.example_inputs).loss.isfinite()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gpt2", {**SMALL["gpt2"], **of("MyGPT")}, r"called MyGPT, .*; GPT2LMHeadModel is built$"),
        ("mamba", SMALL["mamba"], "mamba: ops, bytes and time are too high"),
        ("detr", DETECTOR, "DetrForObjectDetection makes its own loss of labels, "),
    ],
)
def test_what_is_built_otherwise_is_said(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        library_step(f"transformers:{name}", **settings)


@pytest.mark.parametrize("within", [False, True])
def test_quantized_weights_are_refused(tmp_path: Path, within: bool) -> None:
    """They would be counted as 16 bits each, with gradients and an optimizer's state."""
    quantized = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    config = {"text_config": quantized} if within else quantized
    source = written(tmp_path, **SMALL_GPT2, **config)
    with pytest.raises(WorkloadError, match=r"expected no quantization_config, .*=null counts"):
        library_step(source, sequence_length=4)
    if not within:
        step = library_step(source, sequence_length=4, quantization_config=None)
        assert next(step.model.parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "expected JSON"), ("{}", "got None"), ('{"model_type": ["gpt2"]}', r"got \['gpt2'\]")],
)
def test_a_wrong_configuration_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(WorkloadError, match=message):
        library_step(f"transformers:{tmp_path / 'config.json'}")
    with pytest.raises(WorkloadError, match=r"none\.json: No such file"):
        library_step(f"transformers:{tmp_path / 'none.json'}")


def test_the_hub_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    offline_states = []

    def from_config(_config: object, **_settings: object) -> nn.Module:
        offline_states.append(constants.HF_HUB_OFFLINE)
        raise ValueError("enough")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(transformers.GPT2LMHeadModel, "_from_config", from_config)
    with pytest.raises(WorkloadError, match=r"^transformers:gpt2: ValueError: enough; if"):
        library_step("transformers:gpt2")
    assert offline_states == [True]
    assert constants.HF_HUB_OFFLINE is False

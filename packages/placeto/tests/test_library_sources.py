"""Models of libraries and files as sources: their graphs, and when these are captured again."""

import json
from pathlib import Path
from typing import Any

import pytest

from image_libraries import Network, replace_image_libraries
from placeto.problems.options import SourceOptions
from placeto.problems.sources import load_source
from placeto_capture import CaptureError
from placeto_workloads import WorkloadError
from small_transformers import SMALL
from weight_files import CONFIGS, MIXTRAL, write_gguf

SMALL_GPT2 = {"model_type": "gpt2", **SMALL["gpt2"]}


@pytest.fixture
def image_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))
    replace_image_libraries(monkeypatch)


@pytest.mark.usefixtures("image_libraries")
def test_a_graph_is_captured_once_unless_a_file_describes_its_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL_GPT2))
    choices = (
        ("timm:resnet50", SourceOptions({"batch_size": 3, "width": 2})),
        ("transformers:gpt2", SourceOptions(dict(SMALL["gpt2"]), mode="decode")),
        (f"transformers:{tmp_path}/config.json", SourceOptions({"batch_size": 3})),
        ("timm:resnet50", SourceOptions({"batch_size": 2, "width": 2})),
        ("torchvision:resnet50", SourceOptions({"batch_size": 3, "width": 2})),
        ("transformers:gpt2", SourceOptions(dict(SMALL["gpt2"]), mode="prefill")),
        ("transformers:someone/gpt2", SourceOptions(dict(SMALL["gpt2"]), mode="decode")),
        ("transformers:gpt2", SourceOptions(dict(SMALL["gpt2"]), mode="decode", context=9)),
    )
    captured = [load_source(*choice) for choice in choices[:3]]
    assert "aten.nll_loss_forward" in captured[0].graph.op_types

    def fail(*_: object, **_how: object) -> None:
        raise AssertionError("expected no capture")

    for module in ("models", "sources"):
        monkeypatch.setattr(f"placeto.problems.{module}.capture_step", fail)
    for choice, source in zip(choices[:2], captured, strict=False):
        again = load_source(*choice)
        assert (again.graph, again.name) == (source.graph, source.name)
    for choice in choices[2:]:
        with pytest.raises((AssertionError, WorkloadError), match=r"no capture|is downloaded"):
            load_source(*choice)
    monkeypatch.setattr("placeto.problems.sources.distributions", lambda **_: [])
    with pytest.raises(AssertionError, match="expected no capture"):
        load_source(*choices[1])


@pytest.mark.usefixtures("image_libraries")
def test_an_error_of_a_model_itself_names_it_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Network, "forward", lambda _self, _images, mask: mask)
    with pytest.raises(
        CaptureError, match=r"^timm:resnet50: .*'mask'.*; if it needs .* inputs, na"
    ):
        load_source("timm:resnet50")


@pytest.mark.filterwarnings("ignore:.*too high for a server")
@pytest.mark.parametrize("config", [CONFIGS["llama"], MIXTRAL], ids=["llama", "mixtral"])
def test_a_step_of_decoding_reads_the_bytes_of_the_file(
    config: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "small.gguf"
    written = write_gguf(path, "llama", config)
    source = load_source(str(path), SourceOptions(mode="decode", context=200))
    assert (source.name, source.graph.tokens) == ("small-decode", 1)
    graph = source.graph
    bytes_of_op = dict(zip(graph.op_names, graph.parameter_bytes.tolist(), strict=True))
    assert {name: bytes_of_op[name] for name in written} == written
    # Keys and values of 2 layers, 2 heads, 200 tokens of 64 / 4 numbers of 16 bits.
    caches = [count for name, count in bytes_of_op.items() if count and "past_key_values" in name]
    assert caches == [2 * 200 * 16 * 2] * 4
    read = dict(zip(graph.op_names, graph.bytes_accessed.tolist(), strict=True))
    weight = written["model.layers.1.self_attn.q_proj.weight"]
    # A product reads and writes vectors of 64 numbers of 16 bits, too.
    assert read["model.layers.1.self_attn.q_proj/aten.mm"] == weight + 2 * 64 * 2
    with pytest.raises(WorkloadError, match="context: expected at most 256 tokens"):
        load_source(str(path), SourceOptions(mode="decode", context=257))
    with pytest.raises(WorkloadError, match=r"weight_bits: expected none for .*small\.gguf, whose"):
        load_source(str(path), SourceOptions(mode="decode", weight_bits=4))
    with pytest.warns(UserWarning, match="a training step counts weights in the dtype"):
        load_source(str(path), SourceOptions({"batch_size": 1, "sequence_length": 4}))

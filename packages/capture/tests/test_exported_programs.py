"""Exported programs: what is captured of the file is what is captured of the module."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from placeto_capture import CaptureError, capture, program_step
from written_programs import Edit, attention, convolutions, edited, exported, rewritten, trap

MODELS = {"convolutions": convolutions, "attention": attention}
CODE = "__import__('pathlib').Path('sprung').write_text('sprung')"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return exported(tmp_path / "model.pt2", *convolutions())


@pytest.mark.parametrize("name", MODELS)
def test_a_program_is_captured_as_its_module_is(tmp_path: Path, name: str) -> None:
    model, inputs = MODELS[name]()
    path = exported(tmp_path / "model.pt2", model, inputs)
    assert capture(*program_step(path)) == capture(model, inputs)


def test_inputs_by_keyword_and_a_named_loss_are_kept(tmp_path: Path) -> None:
    class WithLoss(nn.Linear):
        def forward(self, *, rows: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
            scores = super().forward(rows)
            return {"scores": scores, "loss": scores.square().sum(), "size": scores.abs().max()}

    model, inputs = WithLoss(4, 2), {"rows": torch.ones(3, 4)}
    torch.export.save(torch.export.export(model, (), inputs), tmp_path / "model.pt2")
    assert capture(*program_step(tmp_path / "model.pt2")) == capture(model, inputs)


def test_what_runs_without_gradients_stays_so(tmp_path: Path) -> None:
    class Partly(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                scale = super().forward(rows).exp().mean()
            return super().forward(rows) * scale

    model, inputs = Partly(4, 2), (torch.ones(3, 4),)
    path = exported(tmp_path / "model.pt2", model, inputs)
    assert capture(*program_step(path)) == capture(model, inputs)


def test_a_batch_that_was_left_open_has_the_size_that_is_asked_for(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (torch.ones(3, 4),), dynamic_shapes=({0: batch},))
    path = tmp_path / "model.pt2"
    torch.export.save(program, path)
    for size in (3, 7):
        graph = capture(*program_step(path, batch_size=size))
        assert graph == capture(model, torch.ones(size, 4))


def test_a_fixed_batch_has_no_other_size(program: Path) -> None:
    with pytest.raises(CaptureError, match=r"^batch_size: expected none for .*fixed sizes$"):
        program_step(program, batch_size=3)


def test_weights_are_not_read(program: Path) -> None:
    expected = capture(*program_step(program))
    rewritten(program, {"data/weights/weight_0": lambda _: b""})
    assert capture(*program_step(program)) == expected


def test_nothing_is_unpickled(program: Path, tmp_path: Path) -> None:
    bait = trap(tmp_path / "sprung")

    def pickled(document: dict[str, Any]) -> None:
        for payload in document["config"].values():
            payload["use_pickle"] = True

    edited(program, pickled, member="data/weights/model_weights_config.json")
    spoilt = {f"data/weights/weight_{number}": lambda _: bait for number in range(9)}
    rewritten(program, {**spoilt, "data/sample_inputs/model.pt": lambda _: bait})
    # The file is as dangerous as it is meant to be.
    with suppress(Exception):
        torch.export.load(program)
    assert (tmp_path / "sprung").exists()
    (tmp_path / "sprung").unlink()
    model, inputs = convolutions()
    assert capture(*program_step(program)).op_types == capture(model, inputs).op_types
    assert not (tmp_path / "sprung").exists()


def _node(index: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda document: document["graph_module"]["graph"]["nodes"][index]


def _targeting(target: str) -> Edit:
    return lambda document: _node(0)(document).update(target=target)


def _with_argument(argument: dict[str, Any]) -> Edit:
    return lambda document: _node(0)(document)["inputs"].append({"name": "x", "arg": argument})


HOSTILE: dict[str, tuple[Edit, str]] = {
    "a function of Python": (_targeting("builtins.eval"), "expected an op of ATen"),
    "a function of torch": (_targeting("torch.hub.load"), "expected an op of ATen"),
    "an op of others": (_targeting("torch.ops.mine.op.default"), "expected an op of ATen"),
    "an attribute": (_targeting("torch.ops.aten.__class__.mro"), "expected an op of this version"),
    "an op on files": (_targeting("torch.ops.aten.from_file.default"), "takes a filename"),
    "an op that is none": (_targeting("torch.ops.aten.nothing.default"), "of this version"),
    "another operator": (_targeting("_operator.attrgetter"), "expected an op of ATen"),
    "an object": (
        _with_argument({"as_custom_obj": {"name": "x", "class_fqn": "y"}}),
        "got as_custom_obj",
    ),
    "no node": (lambda document: document["graph_module"]["graph"].pop("nodes"), "nodes"),
    "nodes of a wrong type": (
        lambda document: document["graph_module"]["graph"].update(nodes=3),
        "Expected `array`, got `int`",
    ),
    "another kind of input": (
        lambda document: document["graph_module"]["signature"]["input_specs"].append(
            {"token": {"arg": {"name": "x"}}}
        ),
        "expected inputs that are tensors, got token",
    ),
    "a name that is code": (
        lambda document: document["graph_module"]["signature"]["input_specs"][0][
            "parameter"
        ].update(parameter_name=CODE),
        "expected a name of a tensor",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_op_on_tensors_is_refused(
    program: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(program.parent)
    edit, message = HOSTILE[what]
    edited(program, edit)
    with pytest.raises(CaptureError) as caught:
        program_step(program)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(program))
    assert not Path("sprung").exists()


def test_expressions_of_sizes_are_not_evaluated(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(program.parent)

    def hostile(document: dict[str, Any]) -> None:
        for meta in document["graph_module"]["graph"]["tensor_values"].values():
            for size in meta["sizes"]:
                size["as_expr"] = {"expr_str": CODE, "hint": {"as_int": size.pop("as_int")}}

    edited(program, hostile)
    model, inputs = convolutions()
    assert capture(*program_step(program)) == capture(model, inputs)
    assert not Path("sprung").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04.", b"PK\x05\x06" + bytes(18)])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=r"model\.pt2: expected an (exported|archive)"):
        program_step(path)


def test_a_damaged_archive_is_refused_wherever_it_is_cut(program: Path) -> None:
    content = program.read_bytes()
    for size in range(0, len(content), len(content) // 40):
        program.write_bytes(content[:size])
        with pytest.raises(CaptureError):
            program_step(program)
    for place in range(0, len(content), len(content) // 60):
        program.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        with suppress(CaptureError):
            capture(*program_step(program))


def test_buffers_have_the_values_of_the_file(tmp_path: Path) -> None:
    model, inputs = attention()
    step = program_step(exported(tmp_path / "model.pt2", model, inputs))
    assert dict(step.model.named_buffers())["scale"].tolist() == [0.5]
    assert all(weight.is_meta for weight in step.model.parameters())

"""Exported programs: what is captured of the file is what is captured of the module."""

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

from captured_models import Net
from placeto_capture import CaptureError, capture, program_step
from written_programs import attention, convolutions, dropped_attention, exported, of_a_gpu, trap

MODELS = {
    "convolutions": convolutions,
    "attention": attention,
    "dropped attention": dropped_attention,
}


class Partly(nn.Module):
    """Layers with autocast and without gradients; one weight is frozen, one is tied."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, rows: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.first(rows)
        with torch.no_grad():
            factor = self.second(rows).exp().mean() * scale
        scores = self.second(hidden.float()) * factor * self.frozen
        return {"scores": scores, "loss": scores.square().sum(), "size": scores.abs().max()}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return exported(tmp_path / "model.pt2", *convolutions())


@pytest.mark.parametrize("target", ["gpu", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_a_program_is_captured_as_its_module_is(tmp_path: Path, name: str, target: Any) -> None:
    model, inputs = MODELS[name]()
    step = program_step(exported(tmp_path / "model.pt2", model, inputs), trust=True)
    for mode in ("training", "inference") if name == "attention" else ("training",):
        graph = capture(*step, target=target, mode=mode)
        assert graph == capture(model, inputs, target=target, mode=mode)


def test_what_is_cast_frozen_tied_or_without_gradients_stays_so(tmp_path: Path) -> None:
    model, rows, scale = Partly(), torch.ones(3, 4), torch.ones(())
    torch.export.save(torch.export.export(model, (rows,), {"scale": scale}), tmp_path / "model.pt2")
    graph = capture(*program_step(tmp_path / "model.pt2", trust=True))
    by_position = Net(lambda net, rows, scale: net.model(rows, scale=scale), model=model)
    expected = capture(by_position, (rows, scale))
    assert ("aten.addmm", "bfloat16") in zip(graph.op_types, graph.dtype, strict=True)
    assert sorted(graph.op_types) == sorted(expected.op_types)
    assert sorted(graph.parameter_bytes) == sorted(expected.parameter_bytes)
    assert graph.flops.sum() == expected.flops.sum()


@pytest.mark.parametrize("name", MODELS)
def test_what_was_exported_on_a_gpu_is_read_without_one(tmp_path: Path, name: str) -> None:
    model, inputs = MODELS[name]()
    path = of_a_gpu(exported(tmp_path / "model.pt2", model, inputs))
    load = torch.load
    assert capture(*program_step(path, trust=True)) == capture(model, inputs)
    assert torch.load is load


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_autocast_of_a_gpu_is_kept(tmp_path: Path) -> None:
    class Halved(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return super().forward(rows).relu()

    model, inputs = Halved(4, 2), (torch.ones(3, 4),)
    path = of_a_gpu(exported(tmp_path / "model.pt2", model, inputs), autocast=True)
    graph = capture(*program_step(path, trust=True))
    assert ("aten.addmm", "bfloat16") in zip(graph.op_types, graph.dtype, strict=True)
    assert sorted(graph.op_types) == sorted(capture(model, inputs).op_types)


class Chosen(nn.Linear):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        chosen = torch.cond(rows.sum() > 0, lambda x: x.tanh(), lambda x: x.cos(), (rows,))
        return super().forward(chosen)


class Picks(nn.Linear):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        scores = super().forward(rows)
        return scores[scores > 0]


class Repeats(nn.Linear):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        last: tuple[Any, torch.Tensor] = while_loop(  # type: ignore[no-untyped-call]
            lambda count, _: count < 3,
            lambda count, rows: (count + 1, super(Repeats, self).forward(rows)),
            (torch.tensor(0), rows),
        )
        return last[1]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Chosen, "asks for the value of a tensor"),
        (Picks, r"which part of the elements a mask picks( \(line \d+ of test_\w+\.py\))?$"),
        (Repeats, "^model: .* without torch's while_loop"),
    ],
)
def test_what_a_program_asks_for_in_vain_is_said_as_of_its_module(
    tmp_path: Path, kind: type[nn.Linear], message: str
) -> None:
    """Without the node that the interpreter of the program was at, and its advice."""
    model, inputs = kind(4, 4), (torch.ones(3, 4),)
    program = program_step(exported(tmp_path / "model.pt2", model, inputs), trust=True)
    for step in (program, (model, inputs)):
        with pytest.raises(CaptureError, match=message):
            capture(*step)


def test_nothing_is_loaded_without_trust(
    program: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with zipfile.ZipFile(program) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    bait = next(name for name in members if name.endswith("sample_inputs/model.pt"))
    with zipfile.ZipFile(program, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, trap(tmp_path / "sprung") if name == bait else content)
    with pytest.raises(CaptureError, match=r"^.*model\.pt2: .* run code .* --trust \(or trust="):
        program_step(program)
    assert not (tmp_path / "sprung").exists()
    with pytest.raises(CaptureError, match=r"program, got (?!.*warnings above)"):
        program_step(program, trust=True)
    assert (tmp_path / "sprung").exists()
    assert not caplog.records  # of PyTorch, with tracebacks


def test_other_sizes_are_refused(program: Path) -> None:
    with pytest.raises(CaptureError, match=r"^batch_size: expected no sizes for .*model\.pt2"):
        program_step(program, trust=True, batch_size=3)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04.", b"PK\x05\x06" + bytes(18)])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    one_sentence = r"model\.pt2: expected an exported program, got \w+: (.(?!\w\. ))+$"
    with pytest.raises(CaptureError, match=one_sentence):
        program_step(path, trust=True)
    with pytest.raises(FileNotFoundError):
        program_step(tmp_path / "none.pt2")

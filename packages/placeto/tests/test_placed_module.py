"""A module that is placed trains as it does in eager PyTorch, and says what goes wrong."""

import multiprocessing

import numpy as np
import pytest
import torch
from torch import nn

from placeto import PlacedModule, place_module
from placeto.errors import InputError
from placeto_capture import CaptureError
from placeto_execution import ExecutionError

WORKERS = ["cpu:0", "cpu:1"]
BATCH = (8, 3, 12, 12)


class Branches(nn.Module):
    """Two branches of convolutions, with batch normalisation, that are joined."""

    def __init__(self) -> None:
        super().__init__()
        # The gradient of a bias that a normalisation takes away is rounding alone, which Adam
        # scales up to whole steps: processors would differ in it.
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(3, 4, size, padding="same", bias=False), nn.BatchNorm2d(4), nn.ReLU()
            )
            for size in (1, 3)
        )
        self.last = nn.Linear(8, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([branch(images) for branch in self.branches], 1)
        logits: torch.Tensor = self.last(joined.mean((2, 3)))
        return logits


def branches() -> Branches:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Branches()


def batches(count: int) -> torch.Tensor:
    return torch.randn(count, *BATCH, generator=torch.Generator().manual_seed(8))


def mean_square(outputs: torch.Tensor) -> torch.Tensor:
    return (outputs - 1).square().mean()


def placed(model: nn.Module) -> PlacedModule:
    return place_module(model, batches(1)[0], mean_square, devices=WORKERS, seconds=0.2, quiet=True)


def test_a_hundred_steps_follow_eager_training() -> None:
    eager = branches()
    with placed(eager) as module:
        optimizer = torch.optim.Adam(eager.parameters(), foreach=False)
        for batch in batches(100):
            optimizer.zero_grad()
            loss = mean_square(eager(batch))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            assert module.step(batch) == pytest.approx(loss.item(), rel=1e-3)
        with pytest.raises(CaptureError, match=r"drop_last=True leaves out a smaller last batch"):
            module.step(batch[:5])
        expected = eager.eval()(batch[:5])
        torch.testing.assert_close(module(batch[:5]), expected, rtol=1e-3, atol=1e-4)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-3, atol=1e-5)


def test_updates_whose_numbers_depend_on_shapes_follow_a_schedule() -> None:
    eager = nn.Sequential(nn.Linear(6, 40, bias=False), nn.Tanh(), nn.Linear(40, 3, bias=False))
    example = batches(1)[0].reshape(-1, 6)
    trained_module = place_module(
        eager, example, mean_square, torch.optim.Muon, devices=WORKERS, seconds=0.1, quiet=True
    )
    optimizer = torch.optim.Muon(eager.parameters())
    with trained_module as module:
        schedules = [
            torch.optim.lr_scheduler.ExponentialLR(each_optimizer, 0.7)
            for each_optimizer in (optimizer, module.optimizer)
        ]
        for batch in batches(10):
            optimizer.zero_grad()
            loss = mean_square(eager(batch.reshape(-1, 6)))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()  # type: ignore[no-untyped-call]
            assert module.step(batch.reshape(-1, 6)) == pytest.approx(loss.item(), rel=1e-3)
            for schedule in schedules:
                schedule.step()
        for name, value in eager.state_dict().items():
            torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-3, atol=1e-5)


def test_another_placement_goes_on_with_the_weights_and_processes_end() -> None:
    first, second = batches(2)
    losses = []
    for placements in (("halves", "halves"), ("halves", "parity"), ("parity", "single")):
        with placed(branches()) as module:
            groups = np.arange(len(module.placement), dtype=np.int32)
            where = {
                "halves": groups * 2 // len(groups),
                "parity": groups % 2,
                "single": groups * 0,
            }
            for name in placements:
                module.placement = where[name]
                losses.append([module.step(batch) for batch in (first, second, first)])
                assert len(multiprocessing.active_children()) == 2
        assert not multiprocessing.active_children()
    assert losses[0] == losses[2] == losses[4]
    for other_losses in (losses[3], losses[5]):
        assert other_losses == pytest.approx(losses[1], rel=1e-6)
    assert losses[1] != losses[0]


def test_a_checkpoint_goes_on_where_it_was_made_and_is_there_after_the_end() -> None:
    first, second = batches(2)
    with placed(branches()) as module, placed(branches()) as restored:
        for _ in range(3):
            module.step(first)
        restored.load_checkpoint(module.checkpoint())
        # Adam asks for the number of the step: the second loss is of what it then did.
        assert [restored.step(second) for _ in range(3)] == [module.step(second) for _ in range(3)]
        checkpoint_within = module.checkpoint()
    checkpoint_after_end = module.checkpoint()
    assert checkpoint_within.keys() == checkpoint_after_end.keys()
    assert all(
        torch.equal(checkpoint_within[name], checkpoint_after_end[name])
        for name in checkpoint_within
    )
    assert not torch.equal(checkpoint_after_end["last.weight"], branches().last.weight)
    assert module.step(second) == restored.step(second)  # with new processes
    for open_module in (module, restored):
        open_module.close()


def test_after_an_op_that_failed_the_weights_are_not_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with placed(branches()) as module:
        batch = batches(1)[0]
        checkpoint = module.checkpoint()
        with monkeypatch.context() as broken:

            def fail(*_: object) -> None:
                raise RuntimeError("the device is gone")

            broken.setattr("placeto_capture.executable.traced_step.TracedDevice.free", fail)
            with pytest.raises(ExecutionError, match=r"on cpu:[01]: .*the device is gone$"):
                module.step(batch)
        with pytest.raises(CaptureError, match=r"^weights: expected those that a whole step"):
            module.step(batch)
        module.load_checkpoint(checkpoint)
        assert module.step(batch) == pytest.approx(mean_square(branches()(batch)).item())


def test_what_the_devices_are_has_to_be_said() -> None:
    with pytest.raises(InputError, match=r"^cluster: expected one with the kinds of cpu:0, cuda"):
        place_module(branches(), batches(1)[0], devices=["cpu:0", "cuda:0"])
    with pytest.raises(InputError, match=r"^cluster: expected 1 devices, as many as are real,"):
        place_module(branches(), batches(1)[0], devices=["cpu:0"], cluster="3xcpu")

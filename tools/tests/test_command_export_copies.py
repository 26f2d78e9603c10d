"""``placeto export --to torch`` of copies: the scripts of the page train as one device does."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from trained_copies import STEPS, batches, make_model

from command_runs import blocks, succeed
from exported_models import saved
from placeto_capture import capture
from placeto_graphs import (
    PlacementProblem,
    colocate,
    colocate_by_id,
    copied,
    parse_cluster,
    repeat_micro_batch_problem,
    sharded,
)

TRAINED = Path(__file__).with_name("trained_copies.py")
MICRO_BATCHES = 2
MINUTES = 300.0


@dataclass(frozen=True)
class Team:
    """Copies with parts of a batch of 16 samples, and the device of each stage of each copy."""

    samples: Sequence[int]
    devices: Sequence[Sequence[int]]
    shards: bool = False

    @property
    def problem(self) -> PlacementProblem:
        """The problem, in which ops are apart that can be."""
        micro_batches = MICRO_BATCHES if len(self.devices[0]) > 1 else 1
        problems = []
        for count in self.samples:
            graph = capture(make_model(), torch.zeros(count // micro_batches, 8), loss_fn=mean)
            cluster = parse_cluster(f"{sum(map(len, self.devices))}xv100")
            problem = PlacementProblem(
                graph=graph,
                cluster=cluster,
                compute_time=np.tile(1e-6 * graph.flops[:, None], (1, cluster.num_devices)),
                grouping=colocate(graph, [colocate_by_id]),
            )
            problems.append(repeat_micro_batch_problem(problem, micro_batches))
        return (sharded if self.shards else copied)(problems)

    def placement(self, problem: PlacementProblem) -> NDArray[np.int32]:
        """Return the first two layers of four on the first device of a copy, if it has two."""
        devices = []
        for name, scope in zip(problem.graph.op_names, problem.graph.scopes, strict=True):
            of_copy = self.devices[int(name.rpartition("#")[2])]
            is_late = scope in ("layers.2", "layers.3", "head", "loss")
            devices.append(of_copy[-1] if is_late else of_copy[0])
        return problem.placement_of_ops(np.array(devices, np.int32))


def mean(outputs: Tensor) -> Tensor:
    """Return a loss of the outputs alone."""
    return outputs.square().mean()


TEAMS = {
    "unequal": Team([8, 6, 2], [[2], [0], [1]]),
    "sharded": Team([12, 4], [[0], [1]], shards=True),
    "stages": Team([12, 4], [[0, 1], [2, 3]]),
    "sharded stages": Team([8, 8], [[0, 1], [2, 3]], shards=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TEAMS)
def test_copies_train_as_one_device_does(name: str, tmp_path: Path) -> None:
    team = TEAMS[name]
    problem = team.problem
    paths = saved(tmp_path, problem, team.placement(problem))
    text = succeed("export", *paths, "--to", "torch", "-o", tmp_path / "copies.py")
    assert ": as placed\n" in text
    has_stages = len(team.devices[0]) > 1
    scripts = blocks(Path("docs/training-copies.md"), "py")
    (tmp_path / "train.py").write_text(scripts[has_stages])
    (tmp_path / "my_model.py").write_text(TRAINED.read_text())
    processes = sum(map(len, team.devices))
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    run = subprocess.run(
        [sys.executable, *command, "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=MINUTES, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    results = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(processes)]
    losses, gradients = on_one_device()
    for step in range(STEPS):
        total = sum(result["losses"][step] for result in results if result["losses"])
        torch.testing.assert_close(total / 16, losses[step], rtol=1e-5, atol=1e-5)
        names = set()
        for result in results:
            of_step = result["gradients"][step]
            expected = {key: gradients[step][key] for key in of_step}
            torch.testing.assert_close(of_step, expected, rtol=1e-5, atol=1e-5)
            names |= of_step.keys()
        assert names == gradients[step].keys()


def on_one_device() -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Return the mean loss and the gradients of each step, of a plain loop."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, gradients = [], []
    for inputs, targets in batches:
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        losses.append(loss.detach())
        named = model.named_parameters()
        gradients.append(
            {name: weight.grad.clone() for name, weight in named if weight.grad is not None}
        )
        optimizer.step()
        optimizer.zero_grad()
    return losses, gradients

"""Training by several processes, which `torchrun` starts as a user would."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import training_script
from placeto_policy import PolicyError
from placeto_policy import Settings
from placeto_policy import Trainer
from placeto_policy import load_policy
from placeto_policy.workers import OneProcess
from scheduled_problems import ListSchedule
from scheduled_problems import heavy_chain
from scheduled_problems import two_chains

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    "OMP_NUM_THREADS": "1",
    # A process that aborts in compiled code then says where its threads were.
    "PYTHONFAULTHANDLER": "1",
}


def torchrun(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = [str(training_script.__file__), str(folder), *map(str, arguments)]
    return subprocess.run(
        command + script,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def check_finished(run: subprocess.CompletedProcess[str]) -> None:
    assert run.returncode == 0, f"after updates {run.stdout.split()}:\n{run.stderr}"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_policy(folder / training_script.CHECKPOINT).state_dict()


@pytest.mark.slow
def test_the_summed_gradient_is_that_of_all_episodes(tmp_path: Path) -> None:
    """One update: Adam's first average is a tenth of the gradient after clipping."""
    check_finished(torchrun(tmp_path, 1))
    evaluators = [ListSchedule(two_chains()), ListSchedule(heavy_chain())]
    alone = Trainer(evaluators, Settings(updates=1, workers=training_script.WORKERS), seed=7)
    alone.update()
    together = training_script.new_or_resumed(tmp_path, 1, OneProcess())
    for left, right in zip(
        alone.optimizer.state.values(), together.optimizer.state.values(), strict=True
    ):
        torch.testing.assert_close(left["exp_avg"], right["exp_avg"], rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_a_process_that_fails_ends_the_run_with_its_rank_and_error(tmp_path: Path) -> None:
    uninterrupted = tmp_path / "uninterrupted"
    uninterrupted.mkdir()
    check_finished(torchrun(uninterrupted, 6))

    failed = torchrun(tmp_path, 6, "fail-1")
    assert failed.returncode != 0
    assert "RuntimeError: the evaluator broke" in failed.stderr
    assert (
        "the run ended in another process: process 1: RuntimeError: the evaluator broke"
        in failed.stderr
    )
    made_before = [int(line) for line in failed.stdout.split()]
    assert made_before == list(range(1, len(made_before) + 1))
    assert 1 <= len(made_before) < 6

    resumed = torchrun(tmp_path, 6)
    check_finished(resumed)
    assert [int(line) for line in resumed.stdout.split()] == list(range(len(made_before) + 1, 7))
    expected = weights(uninterrupted)
    for name, tensor in weights(tmp_path).items():
        assert torch.equal(tensor, expected[name])


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    script = [sys.executable, str(training_script.__file__)]
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    for folder in (uninterrupted, killed):
        folder.mkdir()
    subprocess.run([*script, uninterrupted, "8"], env=ENVIRONMENT, check=True, timeout=300)
    with subprocess.Popen(
        [*script, killed, "8", "pause"], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        for _ in range(training_script.UPDATES_BEFORE_PAUSE):
            assert process.stdout.readline()
        process.kill()
    subprocess.run([*script, killed, "8"], env=ENVIRONMENT, check=True, timeout=300)
    expected = weights(uninterrupted)
    for name, tensor in weights(killed).items():
        assert torch.equal(tensor, expected[name])


def test_more_processes_than_workers_are_refused() -> None:
    class Nine(OneProcess):
        count = 9

    with pytest.raises(PolicyError, match="workers: expected at least one for each of 9 processes"):
        Trainer([ListSchedule(two_chains())], Settings(), processes=Nine())

"""Training by several processes, which `torchrun` starts as a user would."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch._C._distributed_c10d import HashStore

import training_script
from placeto_policy import (
    PlacementPolicy,
    PolicyError,
    Settings,
    Trainer,
    load_policy,
    save_training,
    workers,
)
from placeto_policy.workers import GlooProcesses, OneProcess
from scheduled_problems import ListSchedule, heavy_chain, two_chains

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    "OMP_NUM_THREADS": "1",
    # A process that aborts in compiled code then says where its threads were.
    "PYTHONFAULTHANDLER": "1",
}

Result = TypeVar("Result")
Failed = tuple[Path, subprocess.CompletedProcess[str]]


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


def check_equal(file: Path, other: Path) -> None:
    """Check that two checkpoints have the same weights, to the last bit."""
    left, right = (load_policy(each).state_dict() for each in (file, other))
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name])


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Failed:
    """Return the folder of a run in which a process failed, and what the run said."""
    folder = tmp_path_factory.mktemp("failed")
    return folder, torchrun(folder, 4, "fail-1")


@pytest.mark.slow
def test_the_summed_gradient_is_that_of_all_episodes(failed: Failed) -> None:
    """Adam's averages of the gradients after clipping show it."""
    together = training_script.new_or_resumed(failed[0], 4, OneProcess())
    evaluators = [ListSchedule(two_chains()), ListSchedule(heavy_chain())]
    alone = Trainer(evaluators, together.settings, seed=7)
    for _ in range(together.updates):
        alone.update()
    for left, right in zip(
        alone.optimizer.state.values(), together.optimizer.state.values(), strict=True
    ):
        torch.testing.assert_close(left["exp_avg"], right["exp_avg"], rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_a_process_that_fails_ends_the_run_with_its_rank_and_error(failed: Failed) -> None:
    _, run = failed
    assert run.returncode != 0
    assert "RuntimeError: the evaluator broke" in run.stderr
    assert (
        "the run ended in another process: process 1: RuntimeError: the evaluator broke"
        in run.stderr
    )
    made_before = [int(line) for line in run.stdout.split()]
    assert made_before == list(range(1, len(made_before) + 1))
    assert 2 <= len(made_before) < 4


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    for folder in (uninterrupted, killed):
        folder.mkdir()
    with subprocess.Popen(
        [sys.executable, str(training_script.__file__), killed, "5", "pause"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        for _ in range(training_script.UPDATES_BEFORE_PAUSE):
            assert process.stdout.readline()
        process.kill()
    for folder in (uninterrupted, killed):
        training_script.main(folder, 5)
    check_equal(*(each / training_script.CHECKPOINT for each in (killed, uninterrupted)))


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
def test_the_system_watches_all_connections_and_nothing_else() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        before = os.listdir(workers.DESCRIPTORS)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
        workers.give_up_silent_machines()
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for option, value in (
            (socket.TCP_KEEPIDLE, 10),
            (socket.TCP_KEEPINTVL, 5),
            (socket.TCP_KEEPCNT, 4),
            (socket.TCP_USER_TIMEOUT, 30_000),
        ):
            assert connection.getsockopt(socket.IPPROTO_TCP, option) == value
        assert os.listdir(workers.DESCRIPTORS) == before


def test_what_gloo_says_is_told_in_one_sentence() -> None:
    said = RuntimeError(
        "[/a/gloo/pair.cc:553] Connection closed by peer [10.0.0.2]:26022. This is typical. GLHF!"
    )
    assert workers.first_sentence(said) == "Connection closed by peer [10.0.0.2]:26022"


def test_the_first_process_leaves_when_the_others_have_read_why_the_run_ended() -> None:
    store = HashStore()
    first, second = (GlooProcesses(store, rank, 2) for rank in range(2))
    leaving = threading.Thread(target=first.leave)
    leaving.start()
    leaving.join(0.1)
    assert leaving.is_alive()
    second.leave()
    leaving.join(2)
    assert not leaving.is_alive()


def test_more_processes_than_workers_are_refused() -> None:
    class Nine(OneProcess):
        count = 9

    with pytest.raises(PolicyError, match="workers: expected at least one for each of 9 processes"):
        Trainer([ListSchedule(two_chains())], Settings(), processes=Nine())


class SideBySide(OneProcess):
    """Two processes that are threads of this one."""

    count = 2

    def __init__(self, rank: int, parts: list[Any], met: threading.Barrier) -> None:
        self.rank = rank
        self._parts = parts
        self._met = met

    def sum(self, values: torch.Tensor) -> None:
        values.copy_(sum(self._exchange(values.clone())))

    def gather(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate(self._exchange(rows))

    def share(self, content: bytes) -> bytes:
        first: bytes = self._exchange(content)[0]
        return first

    def _exchange(self, own: Any) -> list[Any]:
        self._parts[self.rank] = own
        self._met.wait(60)
        parts = list(self._parts)
        self._met.wait(60)
        return parts


def side_by_side(run: Callable[[SideBySide], Result]) -> list[Result]:
    """Return what each of two processes returns."""
    parts: list[Any] = [None, None]
    met = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda rank: run(SideBySide(rank, parts, met)), range(2)))


def test_processes_that_go_on_come_to_the_same_weights(tmp_path: Path) -> None:
    def trained(process: SideBySide) -> list[Trainer]:
        trainer = training_script.new_or_resumed(tmp_path, 4, process)
        trainer.update()
        save_training(trainer, tmp_path / training_script.CHECKPOINT)
        process.share(b"saved")
        resumed = training_script.new_or_resumed(tmp_path, 4, process)
        assert resumed.updates == 1
        for each in (trainer, resumed):
            each.update()
        return [trainer, resumed]

    states = [trainer.policy.state_dict() for pair in side_by_side(trained) for trainer in pair]
    for name, expected in states[0].items():
        assert all(torch.equal(state[name], expected) for state in states)


@pytest.mark.parametrize(
    ("trained_before", "seeds"), [([0, 1], [3, 3]), ([1, 0], [3, 3]), ([0, 0], [3, 4])]
)
def test_processes_with_different_trainings_refuse_to_go_on(
    trained_before: list[int], seeds: list[int]
) -> None:
    def go_on(process: SideBySide) -> str:
        settings = Settings(workers=2)
        policy = PlacementPolicy(2, settings, seed=seeds[process.rank])
        evaluators = [ListSchedule(two_chains())]
        trainer = Trainer(evaluators, settings, seed=7, policy=policy, processes=process)
        trainer.updates = trained_before[process.rank]
        with pytest.raises(PolicyError) as refused:
            trainer.update()
        return str(refused.value)

    said = side_by_side(go_on)
    assert (
        said
        == [
            "processes: expected the same training in all 2, got another seed, number of updates, "
            "policy, settings or graphs in process 1 than in process 0"
        ]
        * 2
    )

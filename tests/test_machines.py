"""Training on several machines, which are network namespaces: equal weights, and lost machines."""

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from command_runs import PATIENCE, build_profile, environment, start
from placeto_tools.benchmarks import lost_machines, machines_table
from placeto_tools.benchmarks.lost_machines import CUT_OFF, KILLED, KeptTraining, Loss
from placeto_tools.benchmarks.machines import (
    NAMESPACES,
    PREFIX,
    Machines,
    address_of,
    what_is_missing,
)
from placeto_tools.errors import RunError
from placeto_tools.training.run_folder import RunFolder

MISSING = what_is_missing()
needs_machines = pytest.mark.skipif(bool(MISSING), reason=MISSING)
DELAY = 2e-3  # seconds
UPDATES, CHECKPOINT_EVERY = 9, 3
# Not imported, because that would shorten the silence of this process.
SILENT_MACHINE = Path(__file__).resolve().with_name("silent_machine.py")


def namespaces_of(process: int) -> list[str]:
    return [path.name for path in NAMESPACES.glob(f"{PREFIX}-{process}-*")]


@needs_machines
@pytest.mark.slow
def test_two_machines_come_to_the_weights_of_one(tmp_path: Path) -> None:
    problem = build_profile(tmp_path)
    apart = machines_table.measure(problem, 2, 1, DELAY, updates=3)
    together = machines_table.measure(problem, 1, 2, 0.0, updates=3)
    alone = machines_table.measure(problem, 1, 1, 0.0, updates=3)
    machines_table.check_equal(apart, together, alone)
    assert apart.report.number_seconds > 2 * DELAY  # there and back
    assert namespaces_of(os.getpid()) == []
    apart.weights["scores.output.weight"][0] *= 1.0001
    with pytest.raises(RunError, match="expected those of one machine"):
        machines_table.check_equal(apart, together, alone)


@needs_machines
@pytest.mark.slow
def test_a_training_goes_on_when_a_killed_machine_is_back(tmp_path: Path) -> None:
    problem = build_profile(tmp_path)
    whole, lost = tmp_path / "whole", tmp_path / "lost"
    train = start("train", problem, f"--updates={UPDATES}", "--workers=2", "-o", whole)
    _, errors = train.communicate(timeout=PATIENCE)
    assert train.returncode == 0, errors
    with tempfile.TemporaryFile() as said, Machines(2) as machines:
        training = KeptTraining(
            machines, problem, lost, said, updates=UPDATES, checkpoint_every=CHECKPOINT_EVERY
        )
        training.keep_until(lambda: training.has(CHECKPOINT_EVERY))
        loss = training.lose(1, KILLED)
        training.keep_until(lambda: False)
    assert loss.updates <= CHECKPOINT_EVERY
    assert "it is 0 in parts" in lost_machines.check([loss], CHECKPOINT_EVERY, lost, whole)
    assert len(RunFolder(lost).log.read_text().splitlines()) == UPDATES
    tensors = load_file(RunFolder(lost).checkpoint)
    for changed in (tensors["policy.scores.output.weight"] * 1.0001, torch.tensor(math.nan)):
        tensors["policy.scores.output.weight"] = changed
        RunFolder(lost).checkpoint.write_bytes(save(tensors))
        with pytest.raises(RunError, match="checkpoint: expected that of no loss"):
            lost_machines.check([loss], CHECKPOINT_EVERY, lost, whole)


@needs_machines
@pytest.mark.slow
def test_a_machine_that_says_nothing_is_given_up() -> None:
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": address_of(0), "MASTER_PORT": "29400"}
    shared |= {"TORCHELASTIC_RUN_ID": "test", "GLOO_SOCKET_IFNAME": "link0"}
    with Machines(2) as machines:
        processes = [
            machines.start(
                number,
                [sys.executable, str(SILENT_MACHINE)],
                env=environment() | shared | {"RANK": str(number)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "2\n", process.communicate()
        machines.unplug(1)
        _, errors = processes[0].communicate(timeout=PATIENCE)
    assert "process 0: another process went away without a word: " in errors
    assert len([line for line in errors.splitlines() if "process 0" in line]) == 1


@needs_machines
@pytest.mark.slow
def test_ctrl_c_leaves_no_machines_behind() -> None:
    module = "placeto_tools.benchmarks.machines_table"
    process = subprocess.Popen(
        [sys.executable, "-m", module, "cifar10:3", "--updates=1000000"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    began = time.monotonic()
    while f"{PREFIX}-{process.pid}-0" not in namespaces_of(process.pid):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert errors == f"{module}: error: stopped\n"
    assert namespaces_of(process.pid) == []


@needs_machines
def test_ctrl_c_waits_for_the_ip_command_that_it_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__(command, **options)
            if command[1:3] == ["netns", "add"] and command[3].endswith("-switch"):
                signal.raise_signal(signal.SIGINT)  # before anyone has the process to wait for

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt), Machines(1):
        pass
    assert namespaces_of(os.getpid()) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@needs_machines
def test_machines_of_a_command_that_was_killed_are_removed_by_the_next() -> None:
    code = (
        "import os, signal; from placeto_tools.benchmarks.machines import Machines\n"
        "with Machines(1): os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", code], env=environment()) as process:
        process.wait(PATIENCE)
    assert len(namespaces_of(process.pid)) == 2
    with Machines(1):
        assert namespaces_of(process.pid) == []
        assert len(namespaces_of(os.getpid())) == 2
    assert namespaces_of(os.getpid()) == []


def test_what_is_missing_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    for main in (machines_table.main, lost_machines.main):
        with pytest.raises(SystemExit, match="1"):
            main([])
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith("expected the command ip (package iproute2), got none")
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    assert what_is_missing().endswith("expected to run as root, who may make them")


def test_losses_are_counted_and_too_large_ones_refused(tmp_path: Path) -> None:
    losses = [Loss(KILLED, 0, 1, 5.0), Loss(KILLED, 1, 4, 9.0), Loss(CUT_OFF, 1, 3, 7.0)]
    table = lost_machines.table_of([*losses, Loss(KILLED, 1, 2, 6.0)])
    assert [row[:5] for row in table.rows] == [
        ["killed", "the first", "1", "1.0", "1"],
        ["killed", "another", "2", "3.0", "4"],
        ["cut off", "another", "1", "3.0", "3"],
        ["all", "", "4", "2.5", "4"],
    ]
    with pytest.raises(RunError, match="at most 3 updates lost at once, got 4"):
        lost_machines.check(losses, 3, tmp_path, tmp_path)

"""Runs of the ``placeto`` command on small problems, in this process and in others."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
from click.testing import CliRunner
from click.testing import Result

from placeto_tools.main import placeto

# Pants gives folders relative to where tests begin, and tests go elsewhere.
sys.path[:] = [os.path.abspath(path) if path else path for path in sys.path]
# One cache for all tests of a process, so that each small model is captured once.
CACHE = tempfile.TemporaryDirectory(prefix="placeto-tests-")
SMALL_NMT = [
    "--batch-size=4",
    *("--set=steps=3", "--set=units=8", "--set=vocabulary_size=20", "--groups=8"),
]


def invoke(*arguments: object) -> Result:
    """Run a command in this process."""
    runner = CliRunner(env={"PLACETO_CACHE_DIR": CACHE.name})
    return runner.invoke(placeto, [str(argument) for argument in arguments], prog_name="placeto")


def succeed(*arguments: object) -> str:
    """Run a command that must succeed; return what it prints."""
    result = invoke(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "\x1b" not in result.output
    return result.stdout


def succeed_json(*arguments: object) -> Any:
    """Run a command with ``--json`` that must succeed; return what it prints, read."""
    return json.loads(succeed(*arguments, "--json"))


def fail(*arguments: object, code: int = 2) -> str:
    """Run a command that must fail with one line on standard error; return the line."""
    result = invoke(*arguments)
    assert result.exit_code == code, (result.output, result.exception)
    assert result.stdout == ""
    assert result.stderr.startswith("placeto: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def environment() -> dict[str, str]:
    """Return the environment of another process that sees the same packages."""
    return {
        **os.environ,
        "PLACETO_CACHE_DIR": CACHE.name,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
    }


def start(*arguments: object) -> "subprocess.Popen[str]":
    """Run a command in another process."""
    return subprocess.Popen(
        [sys.executable, "-m", "placeto_tools.main", *map(str, arguments)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def profile(num_layers: int = 10, parameter_bytes: int = 1000) -> str:
    """Return a profile in PipeDream's format, in which every third layer reads two others."""
    lines = [
        f"node{number} -- Linear({number}) -- forward_compute_time={1 + number % 3}, "
        f"backward_compute_time=2, activation_size={number}000000, "
        f"parameter_size={parameter_bytes}"
        for number in range(num_layers)
    ]
    lines += [f"\tnode{number - 1} -- node{number}" for number in range(1, num_layers)]
    lines += [f"\tnode{number - 2} -- node{number}" for number in range(2, num_layers, 3)]
    return "\n".join(lines)


def build_profile(folder: Path, num_layers: int = 10) -> Path:
    """Make a problem file of a profile on two V100s; return its path."""
    (folder / "graph.txt").write_text(profile(num_layers))
    problem = folder / "problem.json"
    succeed("build", folder / "graph.txt", "-o", problem)
    return problem


def check_picture(path: Path, width: int) -> None:
    """Check that a PNG has a width, and is not blank."""
    pixels = matplotlib.image.imread(path)
    assert pixels.shape[1] == width
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 10

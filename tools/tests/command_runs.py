"""Runs of the ``placeto`` command on small problems, in this process and in others."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner, Result
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from placeto_tools import screen
from placeto_tools.main import placeto

# Pants gives folders relative to where tests begin, and tests go elsewhere.
sys.path[:] = [os.path.abspath(path) if path else path for path in sys.path]
screen.SECONDS_UNTIL_FIRST_LINE = 600.0  # tests on a busy machine see the same lines
PATIENCE = 120.0  # seconds, for another process to get somewhere
# Not imported, because that changes the command.
PAUSED_COMMAND = Path(__file__).resolve().with_name("paused_command.py")
# What another run prints otherwise: seconds at the end of a line.
SECONDS = re.compile(r" \d+\.\d+( s)?$")
TRAINED, NUMBERS = "Placeto (default configuration)", re.compile(r"\d[\d.,]*")
PROGRAM = re.compile(r"^(?:\$ )?(?:\./pants run tools:placeto -- |placeto )")
SMALL_NMT = [
    "--batch-size=4",
    *("--set=steps=3", "--set=units=8", "--set=vocabulary_size=20", "--groups=8"),
]


def invoke(*arguments: object) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(placeto, list(map(str, arguments)), prog_name="placeto")


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
    """Run a command that must fail with one line on standard error; return the line.

    What takes long, as on a busy machine, has lines of its progress before it.
    """
    result = invoke(*arguments)
    assert result.exit_code == code, (result.output, result.exception)
    assert result.stdout == ""
    *progress, line = result.stderr.splitlines(keepends=True)
    assert all(progress_line.endswith(" ...\n") for progress_line in progress), result.stderr
    assert line.startswith("placeto: error: ")
    return line


def environment() -> dict[str, str]:
    """Return the environment of another process that sees the same packages."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
    }


class Paused(NamedTuple):
    """A command in another process, which waits where a test wants it to."""

    process: "subprocess.Popen[str]"
    folder: Path

    def send(self, signal_number: signal.Signals) -> tuple[str, str]:
        """Send a signal and let the process go on; return what it printed until its end."""
        self.process.send_signal(signal_number)
        (self.folder / "goes-on").touch()
        return self.process.communicate(timeout=PATIENCE)


def start_paused(folder: Path, updates: int, *arguments: object) -> Paused:
    """Run a command in another process until one of its trainings has made some updates."""
    folder.mkdir()
    variables = {"PLACETO_PAUSE_FOLDER": str(folder), "PLACETO_PAUSE_UPDATES": str(updates)}
    process = subprocess.Popen(
        [sys.executable, *map(str, (PAUSED_COMMAND, *arguments))],
        env=environment() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    began = time.monotonic()
    while not (folder / "waits").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.005)
    return Paused(process, folder)


def blocks(page: Path, language: str = "") -> list[str]:
    """Return the blocks of code of a page in a language."""
    fenced = re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [block for of, block in fenced if of == language]


def write_tables(page: Path) -> None:
    """Write each TOML file that a page shows; the first line of the block is the file's name."""
    for block in blocks(page, "toml"):
        named = re.match(r"# (\w+\.toml)\n", block)
        Path(named[1] if named else "unnamed.toml").write_text(block)


def comparable(lines: list[str]) -> list[str]:
    """Return lines without spaces between columns, seconds, and numbers of what was trained.

    A training ends elsewhere on a processor whose kernels round in another way.
    """
    rows = [SECONDS.sub(" SECONDS", " ".join(line.split())) for line in lines]
    return [NUMBERS.sub("NUMBER", row) if row.startswith(TRAINED) else row for row in rows]


def print_as_shown(page: Path) -> int:
    """Run each command of a page that shows what it prints, and return their number."""
    console = "".join(f"\n{block}" for block in blocks(page, "console")).replace("\\\n", " ")
    runs = [run.splitlines() for run in console.split("\n$ ") if PROGRAM.match(run)]
    for command, *lines in runs:
        result = invoke(*shlex.split(PROGRAM.sub("", command)))
        assert result.exit_code == 0, result.output
        assert lines
        printed = [*comparable(result.output.splitlines()), "..."]
        assert [line for line in comparable(lines) if line not in printed] == [], result.output
    return len(runs)


def profile(num_layers: int = 10, parameter_bytes: int = 1000) -> str:
    """Return a profile in PipeDream's format, in which every third layer reads two others."""
    lines = [
        f"node{layer} -- Linear({layer}) -- forward_compute_time={1 + layer % 3}, "
        f"backward_compute_time=2, activation_size={layer}000000, "
        f"parameter_size={parameter_bytes}"
        for layer in range(num_layers)
    ]
    lines += [f"\tnode{layer - 1} -- node{layer}" for layer in range(1, num_layers)]
    lines += [f"\tnode{layer - 2} -- node{layer}" for layer in range(2, num_layers, 3)]
    return "\n".join(lines)


def build_profile(folder: Path, num_layers: int = 10) -> Path:
    """Make a problem file of a profile on two V100s; return its path."""
    (folder / "graph.txt").write_text(profile(num_layers))
    problem = folder / "problem.json"
    succeed("build", folder / "graph.txt", "-o", problem)
    return problem


def _remember(figure: Figure, file: io.BytesIO, **options: Any) -> None:
    SAVE(figure, file, **options)
    DRAWN[file.getvalue()] = figure


# What the commands of this process have drawn, by the content of the files.
DRAWN: dict[bytes, Figure] = {}
SAVE = Figure.savefig
Figure.savefig = _remember  # type: ignore[method-assign, assignment]


def check_picture(path: Path, width: int) -> Figure:
    """Check that a command of this process drew a PNG, and that its axes show data; return it."""
    figure = DRAWN[path.read_bytes()]
    assert round(figure.get_figwidth() * figure.dpi) == width
    assert figure.axes
    for axes in figure.axes:
        points = np.concatenate(list(_points(axes)))
        assert np.isfinite(points).all()
        (low_x, high_x), (low_y, high_y) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
        is_inside = (points >= (low_x, low_y)) & (points <= (high_x, high_y))
        assert is_inside.all(axis=1).mean() > 0.5
    return figure


def _points(axes: Axes) -> Iterator[NDArray[np.float64]]:
    # Vertical and horizontal lines, and where a distribution begins, are at infinity or at a side.
    for line in axes.lines:
        points = np.asarray(line.get_xydata(), np.float64)
        if line.get_transform() == axes.transData:
            yield points[np.isfinite(points).all(axis=1)]
    for collection in axes.collections:
        if isinstance(collection, PathCollection):
            yield np.asarray(collection.get_offsets(), np.float64)
        else:
            yield from (np.asarray(path.vertices, np.float64) for path in collection.get_paths())


def write_module(folder: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> str:
    """Write a module into a folder, make that the current one, and return the module's name."""
    name = f"own_module_{re.sub(r'[^a-z0-9]', '', folder.name.lower())}"
    (folder / f"{name}.py").write_text(content)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    return name


def legend_of(figure: Figure) -> list[str]:
    """Return the texts of all legends of a picture."""
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    return [text.get_text() for legend in legends if legend for text in legend.get_texts()]

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from packaging.version import Version

import placeto_tools
from placeto_tools import commands
from placeto_tools.main import COMMANDS as COMMANDS_OF_MAIN
from placeto_tools.main import placeto

COMMANDS = [
    "models",
    "build",
    "inspect",
    "simulate",
    "explain",
    "diff",
    "export",
    "place",
    "train",
    "compare",
    "experiment",
    "bench",
    "plot",
]


def test_the_version_is_a_valid_one() -> None:
    assert str(Version(placeto_tools.__version__)) == placeto_tools.__version__


def test_the_command_prints_its_version() -> None:
    result = CliRunner().invoke(placeto, ["--version"], prog_name="placeto")
    assert result.output == f"placeto {placeto_tools.__version__}\n"
    assert result.exit_code == 0


def test_the_command_describes_itself() -> None:
    result = CliRunner().invoke(placeto, ["--help"], prog_name="placeto")
    assert result.output.startswith("Usage: placeto ")
    assert "devices" in result.output
    assert all(f"\n  {name} " in result.output for name in COMMANDS)
    assert result.exit_code == 0


def test_an_unknown_subcommand_is_named() -> None:
    result = CliRunner().invoke(placeto, ["no-such-thing"], prog_name="placeto")
    assert "no-such-thing" in result.output
    assert result.exit_code == 2


EXPERIMENTS = [
    "generalise",
    "traversal",
    "architectures",
    "hyperparameters",
    "rewards",
    "simulator-curves",
    "table1",
]
SUBCOMMANDS = [
    *(f"plot {name}" for name in ("placement", "timeline", "curves")),
    *(f"experiment {name}" for name in EXPERIMENTS),
]


@pytest.mark.parametrize("name", [*COMMANDS, *SUBCOMMANDS])
def test_every_command_has_an_example(name: str) -> None:
    result = CliRunner().invoke(placeto, [*name.split(), "--help"], prog_name="placeto")
    assert result.exit_code == 0
    assert any(
        line.strip().startswith(f"placeto {name}") for line in result.output.splitlines()[1:]
    )


def test_without_a_command_it_prints_its_help() -> None:
    alone, asked = (
        CliRunner().invoke(placeto, arguments, prog_name="placeto") for arguments in ([], ["-h"])
    )
    assert (alone.exit_code, alone.stderr) == (0, "")
    assert alone.stdout == asked.stdout


def test_each_commands_line_is_whole_and_that_of_the_command_itself() -> None:
    context = click.Context(placeto)
    text = CliRunner().invoke(placeto, [], prog_name="placeto").stdout
    words = " ".join(text.split())
    folder = Path(commands.__path__[0])
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert set(COMMANDS_OF_MAIN) == modules
    for name, line in COMMANDS_OF_MAIN.items():
        command = placeto.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(1000) == line
        assert f" {name} {line}" in words


def test_an_error_is_one_line() -> None:
    result = CliRunner().invoke(placeto, ["build"], prog_name="placeto")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("placeto: error: Missing ")


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["plase"], "place"),
        (["plot", "time-line"], "timeline"),
        (["experiment", "generalize"], "generalise"),
        (["place", "problem.json", "--placer=local_search", "-o", "a.json"], "local-search"),
        (["compare", "nmt-2", "--placers=heft,scotsch"], "scotch"),
        (["export", "a", "b", "--to=graph-ml"], "graphml"),
        (["train", "a", "--preset=papers"], "paper"),
        (["bench", "graph"], "graphs"),
    ],
)
def test_of_an_unknown_name_the_nearest_is_said_in_one_line(
    arguments: list[str], nearest: str
) -> None:
    result = CliRunner().invoke(placeto, arguments, prog_name="placeto")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert f"expected {nearest}, or another of " in result.stderr


def test_a_command_is_imported_only_when_it_is_asked_for() -> None:
    code = (
        "import sys; from placeto_tools.main import placeto\n"
        "placeto(sys.argv[1:], standalone_mode=False)\n"
        "print(*sorted(m.removeprefix(sys.argv[0]) for m in sys.modules if '.commands.' in m))"
    )
    for arguments, imported in (([], ""), (["models", "-h"], "placeto_tools.commands.models")):
        assert printed_by(code, *arguments).splitlines()[-1].strip() == imported


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_options_and_names(shell: str) -> None:
    source = {"_PLACETO_COMPLETE": f"{shell}_source"}
    assert "_PLACETO_COMPLETE" in CliRunner(env=source).invoke(placeto, prog_name="placeto").output
    typed = {
        "_PLACETO_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "placeto place --placer " + ("m-" if shell != "fish" else ""),
        "COMP_CWORD": "m-" if shell == "fish" else "3",
    }
    output = CliRunner(env=typed).invoke(placeto, prog_name="placeto").output
    assert all(name in output for name in ("m-topo", "m-etf", "m-sct"))
    assert "heft" not in output


def printed_by(code: str, *arguments: str) -> str:
    """Return what some code prints in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    return result.stdout


def test_nothing_slow_is_imported_before_it_is_needed() -> None:
    slow = {"torch", "matplotlib", "numba"}
    code = f"import sys, placeto_tools.main; print(sorted({slow} & {{*sys.modules}}))"
    assert printed_by(code) == "[]\n"

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from packaging.version import Version

import placeto_tools
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


def test_an_error_is_one_line() -> None:
    result = CliRunner().invoke(placeto, [], prog_name="placeto")
    assert (result.exit_code, result.stderr) == (2, "placeto: error: Missing command.\n")


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


def test_nothing_slow_is_imported_before_it_is_needed() -> None:
    slow = {"torch", "matplotlib", "numba"}
    code = f"import sys, placeto_tools.main; print(sorted({slow} & {{*sys.modules}}))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert result.stdout == "[]\n"

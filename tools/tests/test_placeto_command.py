"""The command as a whole: its help, its errors, its plug-ins."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import placeto_tools
from placeto_tools import commands
from placeto_tools.main import SECTIONS, placeto

COMMANDS = {name: line for lines in SECTIONS.values() for name, line in lines.items()}


def test_the_command_prints_its_version() -> None:
    result = CliRunner().invoke(placeto, ["--version"], prog_name="placeto")
    assert result.output == f"placeto {placeto_tools.__version__}\n"
    assert result.exit_code == 0


@pytest.mark.parametrize("name", [*COMMANDS, "plot placement", "plot timeline", "plot curves"])
def test_every_command_has_an_example(name: str) -> None:
    result = CliRunner().invoke(placeto, [*name.split(), "--help"], prog_name="placeto")
    assert result.exit_code == 0
    assert f"\n  placeto {name}" in result.output


@pytest.mark.parametrize("group", [[], ["plot"]])
def test_a_group_alone_prints_its_help(group: list[str]) -> None:
    alone = CliRunner().invoke(placeto, group, prog_name="placeto")
    with_option = CliRunner().invoke(placeto, [*group, "-h"], prog_name="placeto")
    assert (alone.exit_code, alone.stderr) == (0, "")
    assert alone.stdout == with_option.stdout
    assert ("Commands:" if group else "Place a model:") in alone.stdout


def test_the_environment_sets_defaults() -> None:
    for variable, value, arguments, line in [
        ("SECONDS", "x", [], "'x' is not a valid float"),
        ("SECONDS", "1", ["--placer=heft"], "--seconds: needs one of "),
        ("OBJECTIVE", "x", [], "expected one of lat"),
        ("SECONDS", "x", ["--seconds=0"], "Invalid value for '--seconds': 0.0 is not in"),
    ]:
        runner = CliRunner(env={f"PLACETO_PLACE_{variable}": value})
        result = runner.invoke(placeto, ["place", "a.json", "-o", "b.json", *arguments])
        assert (result.exit_code, line in result.stderr) == (2, True), result.stderr


def test_the_help_fits_a_screen_and_has_the_line_of_each_command() -> None:
    lines = CliRunner().invoke(placeto, [], prog_name="placeto").stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    words = " ".join(" ".join(lines).split())
    modules = {path.stem for path in Path(commands.__path__[0]).glob("*.py")} - {"__init__"}
    assert set(COMMANDS) == modules
    for name, line in COMMANDS.items():
        _, command, _ = placeto.resolve_command(click.Context(placeto), [name])
        assert command is not None
        assert command.get_short_help_str(1000) == line
        assert f" {name} {line}" in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build"], "placeto: error: Missing "),
        (["plase"], "Did you mean 'place'?"),
        (["plot", "time-line"], "Did you mean 'timeline'?"),
        (["models", "--jsn"], "Did you mean '--json'?"),
        (["place", "problem.json", "--placer=local_search", "-o", "a.json"], "local-search, or"),
        (["compare", "nmt-2", "--placers=heft,scotsch"], "expected scotch, or another of "),
        (["export", "a", "b", "--to=graph-ml"], "expected graphml, or another of "),
        (["train", "a", "--preset=papers"], "expected paper, or another of "),
    ],
)
def test_an_error_is_one_line_with_the_nearest_name(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(placeto, arguments, prog_name="placeto")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert message in result.stderr


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """Install a package that adds two commands, of which one cannot be imported."""
    (tmp_path / "a_plugin.py").write_text(
        "import click\n\n@click.command()\ndef hello():\n    click.echo('hello')\n"
    )
    described = tmp_path / "a_plugin-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: a-plugin\nVersion: 1.0\nSummary: Greets.\n"
    )
    (described / "entry_points.txt").write_text(
        "[placeto.commands]\nhello = a_plugin:hello\nbroken = no_such_module:broken\n"
        "models = a_plugin:hello\n"
    )
    return tmp_path


def test_other_packages_add_commands(plugins: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(plugins)!r})\n"
        "from placeto_tools.main import placeto; placeto(sys.argv[1:])"
    )
    text = printed_by(code, "--help")
    assert re.search(r"hello +Greets\.", text)
    assert text.count("\n  models ") == 1
    assert "List the registered models" in text
    assert printed_by(code, "hello") == "hello\n"
    failed = run_python(code, "broken")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == (
        "placeto: error: broken: expected a command that can be imported from "
        "no_such_module:broken, got ModuleNotFoundError: No module named 'no_such_module'\n"
    )


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


def run_python(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run some code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def printed_by(code: str, *arguments: str) -> str:
    """Return what some code prints in a process of its own."""
    result = run_python(code, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_nothing_slow_is_imported_before_it_is_needed() -> None:
    slow = {"torch", "matplotlib", "numba", "networkx", "numpy", "rich", "scipy"}
    code = (
        "import sys; from placeto_tools.main import placeto\n"
        f"placeto(['--help'], standalone_mode=False); print(sorted({slow} & {{*sys.modules}}))"
    )
    assert printed_by(code).endswith("\n[]\n")


def test_a_model_is_placed_without_pytorch_once_it_was_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))
    code = (
        "import sys; from placeto_tools.main import placeto\n"
        "placeto(sys.argv[1:], standalone_mode=False)\n"
        "print({'networkx', 'torch'} & {*sys.modules})"
    )
    sizes = ["--batch-size=2", "--set=steps=2", "--set=units=4", "--set=vocabulary_size=9"]
    imported = []
    for time in range(2):
        output = ["-o", str(tmp_path / f"{time}.json")]
        printed = printed_by(code, "place", "nmt-2", *sizes, "--max-evaluations", "1", *output)
        imported.append(printed.splitlines()[-1])
    assert ("torch" in imported[0], imported[1]) == (True, "set()")


def test_ctrl_c_is_no_traceback_while_the_command_is_imported() -> None:
    code = (
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'placeto_tools.main': os.kill(os.getpid(), 2)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from placeto_tools.__main__ import placeto; placeto()"
    )
    stopped = run_python(code)
    assert (stopped.returncode, stopped.stdout, stopped.stderr) == (-signal.SIGINT, "", "")


def test_matplotlib_says_nothing_of_a_home_that_it_cannot_write_to() -> None:
    code = "import os; os.environ['MPLCONFIGDIR'] = '/proc/no'; import placeto_tools.commands.plot"
    assert run_python(code).stderr == ""


def test_a_module_of_the_current_folder_does_not_hide_a_library(tmp_path: Path) -> None:
    (tmp_path / "networkx.py").write_text("raise SystemExit(9)")
    code = "import os, sys; sys.argv[0] = ''\n"
    code += "paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)\n"
    code += f"os.environ['PYTHONPATH'] = paths; os.chdir({str(tmp_path)!r})\n"
    code += "os.execv(sys.executable, [sys.executable, '-m', 'placeto_tools', *sys.argv[1:]])"
    assert "PROBLEM" in printed_by(code, "simulate", "--help")

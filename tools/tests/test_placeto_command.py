from click.testing import CliRunner
from packaging.version import Version

import placeto_tools
from placeto_tools.main import placeto


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
    assert result.exit_code == 0


def test_an_unknown_subcommand_is_named() -> None:
    result = CliRunner().invoke(placeto, ["no-such-thing"], prog_name="placeto")
    assert "no-such-thing" in result.output
    assert result.exit_code == 2

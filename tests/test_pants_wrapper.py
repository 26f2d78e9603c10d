"""`./pants` with stand-ins of uv, Pants and pip: what it installs, tells them, and refuses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = ("bash", "cp", "df", "dirname", "mkdir", "mktemp", "mv", "rm", "sed")
# A Python whose pip installs a uv that stands in, and otherwise the real one.
PYTHON = """#!{python}
import os, pathlib, sys
if "install" not in sys.argv:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
folder = pathlib.Path(sys.argv[sys.argv.index("--target") + 1], "bin")
folder.mkdir(parents=True)
(folder / "uv").symlink_to("{stand_ins}/installed-uv")
"""
UV = """#!{bash}
echo "$*" >> '{stand_ins}/log'
[ ! -e '{stand_ins}/no-index' ] || {{ echo 'no such package' >&2; exit 1; }}
mkdir -p "$UV_TOOL_DIR"/pantsbuild-pants/{{bin,lib/python3.9/site-packages/pex}}
cp '{stand_ins}/python-of-pants' "$UV_TOOL_DIR/pantsbuild-pants/bin/python"
"""
PYTHON_OF_PANTS = """#!{python}
import os, pathlib, sys
if sys.argv[1:3] == ["-m", "pex"]:
    sources = sys.argv[sys.argv.index("-D") + 1]
    pathlib.Path(sys.argv[-1]).write_text("of " + " ".join(sorted(os.listdir(sources))))
elif sys.argv[1:4] == ["-I", "-m", "pants"]:
    print("Pants was run with", *sys.argv[4:])
    for name, text in os.environ.items():
        print(name, text, sep="=")
else:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Sandbox:
    """A clone with the wrapper, an empty home, and a PATH that has nothing but stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.home, self.bin, self.stand_ins = (folder / name for name in ("home", "bin", "others"))
        for created in (self.home, self.bin, self.stand_ins, folder / "clone" / "pants-plugins"):
            created.mkdir(parents=True)
        self.cache, self.wrapper = self.home / ".cache" / "placeto", folder / "clone" / "pants"
        for name in ("pants", "pants-plugins/pip_settings.py"):
            shutil.copy(name, folder / "clone" / name)
        for name in COMMANDS:
            (self.bin / name).symlink_to(str(shutil.which(name)))
        for name, text in (("python3", PYTHON), ("python3.11", PYTHON), ("uv", UV)):
            self.add(self.bin / name, text)
        self.add(self.stand_ins / "installed-uv", UV)
        self.add(self.stand_ins / "python-of-pants", PYTHON_OF_PANTS)

    def add(self, path: Path, text: str) -> None:
        path.write_text(
            text.format(bash=shutil.which("bash"), python=sys.executable, stand_ins=self.stand_ins)
        )
        path.chmod(0o755)

    def run(self, *arguments: str, code: int = 0, **environment: str) -> list[str]:
        """Run the wrapper; return the lines that it, or what it ran, has printed."""
        usual = {name: text for name, text in os.environ.items() if name.startswith("LD_")}
        usual |= {"PATH": str(self.bin), "HOME": str(self.home), "PIP_CONFIG_FILE": os.devnull}
        command: list[str | Path] = [self.wrapper, *arguments]
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**usual, **environment}
        )
        assert result.returncode == code, result.stdout + result.stderr
        assert not list(self.cache.glob("unfinished.*"))
        return (result.stdout if code == 0 else result.stderr).splitlines()

    def installed(self) -> list[str]:
        """Return what uv was told to do."""
        return (self.stand_ins / "log").read_text().splitlines()


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def test_pants_and_its_pex_are_installed_once_by_a_uv_that_runs(sandbox: Sandbox) -> None:
    installed = ["--version", "--quiet tool install --python 3.9 pantsbuild.pants==2.17.1"]
    lines = sandbox.run("test", "::")
    assert lines[0] == "Pants was run with test ::"
    (pex,) = sandbox.cache.glob("*/*/pex")
    assert pex.read_text() == "of pex plain_pex.py"
    assert f"PANTS_PEX_CLI_URL_TEMPLATE=file://{pex}" in lines
    sandbox.run("lint")
    assert sandbox.installed() == installed
    pex.unlink()  # as after a run that was interrupted
    sandbox.add(sandbox.bin / "uv", "#!{bash}\nexit 127\n")  # then pip installs another
    assert sandbox.run("--version")[0] == "Pants was run with --version"
    assert sandbox.installed() == [*installed, installed[1]]
    sandbox.add(sandbox.bin / "pants", '#!{bash}\necho "the launcher was run with $*"\n')
    assert sandbox.run("test", "::") == ["the launcher was run with test ::"]


def test_what_pip_is_told_is_told_to_uv_and_to_pants(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://one.example/simple\nfind-links = /not/this\n"
        "[install]\nextra-index-url =\n  https://two.example/simple\n  file:///three\n"
    )
    lines = sandbox.run(
        "--version",
        PIP_CONFIG_FILE=str(tmp_path / "pip.conf"),
        PIP_FIND_LINKS="~/wheels https://four.example",
        PIP_CERT="/certificates.pem",
    )
    wheels = f"{sandbox.home}/wheels"
    extra_indexes = "https://two.example/simple file:///three"
    assert {
        "PANTS_CA_CERTS_PATH=/certificates.pem",
        f"PANTS_PYTHON_REPOS_FIND_LINKS=['{wheels}', 'https://four.example']",
        "PANTS_PYTHON_REPOS_INDEXES=['https://one.example/simple', "
        "'https://two.example/simple', 'file:///three']",
        f"PIP_EXTRA_INDEX_URL={extra_indexes}",
        "SSL_CERT_FILE=/certificates.pem",
        "UV_DEFAULT_INDEX=https://one.example/simple",
        f"UV_FIND_LINKS={wheels},https://four.example",
        f"UV_INDEX={extra_indexes}",
    } <= set(lines)
    lines = sandbox.run("--version", PIP_EXTRA_INDEX_URL="file:///more", UV_INDEX="file:///my")
    # What uv is told itself stays.
    assert {"PANTS_PYTHON_REPOS_INDEXES=+['file:///more']", "UV_INDEX=file:///my"} <= set(lines)
    lines = sandbox.run("--version", PIP_NO_INDEX="1", PIP_FIND_LINKS="/wheels")
    assert {"PANTS_PYTHON_REPOS_INDEXES=[]", "UV_OFFLINE=1"} <= set(lines)


def test_what_is_wrong_is_one_line_and_leaves_nothing_half_made(sandbox: Sandbox) -> None:
    def line(**environment: str) -> str:
        return sandbox.run(code=1, **environment)[-1].removeprefix("pants: ")

    assert line(HOME="").startswith("HOME is not set: set it, or XDG_CACHE_HOME, ")
    nowhere = line(XDG_CACHE_HOME="/dev/null")
    assert nowhere.startswith("cannot write to /dev/null/placeto: set XDG_CACHE_HOME ")
    (sandbox.stand_ins / "no-index").touch()
    assert line().startswith("could not install Pants 2.17.1: see above; it needs a package")
    (sandbox.bin / "df").unlink()
    sandbox.add(sandbox.bin / "df", "#!{bash}\necho '/dev/sda 900000 500001 399999 56% /'\n")
    assert line().startswith(f"the disk of {sandbox.cache} is full: free 500 MB there, ")

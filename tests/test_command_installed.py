"""The console script, as pip installs it, from the wheels or else from the sources."""

import json
import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from command_runs import profile

PINS = Path("3rdparty/python/requirements.txt").resolve()
PACKAGES = ("graphs", "simulator", "policy", "baselines", "workloads", "execution")


def run(*command: object, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell's environment, which knows no folder of this repository."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**environment, "PLACETO_CACHE_DIR": str(cwd), "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install all packages into an environment that sees the other libraries of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    wheels = sorted(Path().glob("placeto_*.whl"))
    sources = [*(Path("packages", name) for name in PACKAGES), Path("tools")]
    what = [path.resolve() for path in wheels or sources]
    assert len(what) == len(PACKAGES) + 1
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps")
    run(*pip, "--build-constraint", PINS, *what, cwd=folder)
    (library,) = folder.glob("lib/python*/site-packages")
    others = [path for path in sys.path if "-packages" in path or path.endswith(".whl")]
    others += site.getsitepackages()
    (library / "others.pth").write_text("\n".join(dict.fromkeys(others)) + "\n")
    return folder / "bin" / "placeto"


@pytest.mark.slow
def test_the_installed_script_goes_from_a_profile_to_a_placement(
    script: Path, tmp_path: Path
) -> None:
    (tmp_path / "graph.txt").write_text(profile())
    run(script, "build", "graph.txt", "-o", "problem.json.gz", cwd=tmp_path)
    place = (script, "place", "problem.json.gz", "-o", "placement.json")
    run(*place, "--placer", "local-search", "--budget", "200", cwd=tmp_path)
    printed = run(
        script, "simulate", "problem.json.gz", "placement.json", "--json", cwd=tmp_path
    ).stdout
    assert json.loads(printed)["fits"]
    refused = run(*place, "--placer", "heft", cwd=tmp_path, code=2)
    assert refused.stdout == ""
    assert refused.stderr == (
        "placeto: error: placement.json: is there already; --force overwrites it\n"
    )


@pytest.mark.slow
def test_the_installed_script_captures_a_model_of_the_current_folder(
    script: Path, tmp_path: Path
) -> None:
    (tmp_path / "my_model.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.nn.Linear(8, 2), torch.ones(4, 8)\n"
    )
    run(script, "build", "my_model:make", "--cluster=2xv100", "-o", "problem.json", cwd=tmp_path)
    train = (script, "train", "problem.json", "--updates=1", "--workers=2", "-o", "run")
    assert "1 updates" in run(*train, cwd=tmp_path).stdout

"""Compiled code on disk: never of other sources than those that are there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLED = """
from placeto_graphs import compiled

@compiled
def step(number):
    return number + 1
"""
CALLING = """
from placeto_graphs import compiled
from sample_package.called import step

LEFT = 1

def change(number):
    return step(step(number)) - LEFT

twice = compiled(change, name="change", constants={"LEFT": 0})
once = compiled(change, name="change")
"""
ONCE_AND_TWICE = """
from sample_package.calling import once, twice
print(once(1), twice(1), sum(twice.stats.cache_hits.values()))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "sample_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "called.py").write_text(CALLED)
    (folder / "calling.py").write_text(CALLING)
    return folder


def run(package: Path, code: str = ONCE_AND_TWICE, cache: str = "cache") -> list[int]:
    folders = os.pathsep.join([str(package.parent), *sys.path])
    settings = {"NUMBA_CACHE_DIR": str(package.parent / cache), "PYTHONPATH": folders}
    command = [sys.executable, "-c", code]
    return [
        int(word)
        for word in subprocess.check_output(command, env={**os.environ, **settings}).split()
    ]


def test_code_is_kept_until_a_source_changes_or_its_file_breaks(package: Path) -> None:
    assert run(package) == [2, 3, 0]
    assert run(package) == [2, 3, 1]
    os.utime(package / "called.py", (2**32, 2**32))
    assert run(package) == [2, 3, 1]
    for kind in ("nbi", "nbc"):
        for file in (package.parent / "cache").rglob(f"*.{kind}"):
            file.write_bytes(file.read_bytes()[:50])
        assert run(package) == [2, 3, 0]
    (package / "called.py").write_text(CALLED.replace("+ 1", "+ 10"))
    assert run(package) == [20, 21, 0]
    assert run(package) == [20, 21, 1]
    assert len(list((package.parent / "cache/compiled").iterdir())) == 2


def test_folders_that_cannot_be_used_or_fill_up_cost_a_compilation(package: Path) -> None:
    (package.parent / "file").touch()
    assert run(package, cache="file") == [2, 3, 0]
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))"
    assert run(package, limit + ONCE_AND_TWICE) == [2, 3, 0]
    assert run(package) == [2, 3, 0]


def test_the_oldest_versions_are_removed(package: Path) -> None:
    folder = package.parent / "cache/compiled"
    for age in range(12):
        (folder / f"sample_package-{age}").mkdir(parents=True)
        os.utime(folder / f"sample_package-{age}", (10**9 - age, 10**9 - age))
    run(package, "import sample_package.called")
    assert [(folder / f"sample_package-{age}").exists() for age in range(12)] == [True] * 7 + [
        False
    ] * 5

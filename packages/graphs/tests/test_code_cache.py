"""Compiled code on disk: never of other sources than those that are there, and shared."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import placeto_graphs

Process = subprocess.Popen[str]
Run = Callable[..., Process]
CALLED = """
from placeto_graphs import compiled

@compiled
def step(number):
    return number + 1
"""
CALLING = """
from placeto_graphs import compiled
from sample_package.called import step

@compiled
def twice(number):
    return step(step(number))
"""
CLOSURES = """
from placeto_graphs import compiled

def make(adds):
    @compiled
    def change(number):
        return number + 1 if adds else number - 1
    return change

add, subtract = make(True), make(False)

@compiled
def both(number):
    return add(number), subtract(number)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run code beside a package of two modules; what it prints are values of Python."""
    cache = tmp_path / "cache"

    def begin(code: str, folder: str = "first", cache: Path = cache) -> Process:
        package = make_package(tmp_path / folder)
        sources = [str(package.parent), str(Path(placeto_graphs.__file__).parents[1])]
        path = os.pathsep.join([*sources, *filter(None, sys.path)])
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(cache)},
            stdout=subprocess.PIPE,
            text=True,
        )

    return begin


def make_package(folder: Path) -> Path:
    package = folder / "sample_package"
    if not package.exists():
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "called.py").write_text(CALLED)
        (package / "calling.py").write_text(CALLING)
        (package / "closures.py").write_text(CLOSURES)
    return package


def result(process: Process) -> list[str]:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output.split()


TWICE = "from sample_package.calling import twice; print(twice(1))"
HITS = "; print(sum(twice.stats.cache_hits.values()), sum(twice.stats.cache_misses.values()))"


def test_a_change_of_what_a_function_calls_is_seen(run: Run, tmp_path: Path) -> None:
    assert result(run(TWICE)) == ["3"]
    (tmp_path / "first/sample_package/called.py").write_text(CALLED.replace("+ 1", "+ 10"))
    assert result(run(TWICE)) == ["21"]


def test_copies_in_different_folders_share_code(run: Run) -> None:
    assert result(run(TWICE + HITS)) == ["3", "0", "1"]
    assert result(run(TWICE + HITS)) == ["3", "1", "0"]
    assert result(run(TWICE + HITS, folder="second")) == ["3", "1", "0"]


def test_code_of_edited_sources_is_not_kept_for_the_old_ones(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "first/sample_package/called.py"
    edit = f"import sample_package.calling, pathlib; pathlib.Path({str(file)!r}).write_text('0'); "
    assert result(run(edit + TWICE)) == ["3"]
    file.write_text(CALLED)
    assert result(run(TWICE + HITS)) == ["3", "0", "1"]


def test_sources_that_are_edited_while_they_are_imported(run: Run, tmp_path: Path) -> None:
    package = make_package(tmp_path / "first")
    (package / "constants.py").write_text("STEP = 1")
    kernel = CALLED.replace("+ 1", "+ STEP")
    (package / "called.py").write_text(f"from sample_package.constants import STEP\n{kernel}")
    edit = f"pathlib.Path({str(package / 'constants.py')!r}).write_text('STEP = 10')"
    begin = "import pathlib, placeto_graphs, sample_package.constants"
    assert result(run(f"{begin}; {edit}; {TWICE + HITS}")) == ["3", "0", "1"]
    assert result(run(TWICE + HITS)) == ["21", "0", "1"]


def test_closures_do_not_take_each_others_place(run: Run) -> None:
    # Each compiles one of them, as the first function that it compiles.
    assert result(run("from sample_package.closures import add; print(add(5))")) == ["6"]
    assert result(run("from sample_package.closures import subtract; print(subtract(5))")) == ["4"]
    code = "from sample_package.closures import *; print(add(5), subtract(5), *both(5))"
    assert result(run(code)) == ["6", "4", "6", "4"]


def test_a_cache_that_cannot_be_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert result(run(TWICE + HITS, cache=tmp_path / "file")) == ["3", "0", "1"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_cache_that_can_only_be_read(run: Run, tmp_path: Path) -> None:
    assert result(run(TWICE)) == ["3"]
    folders = [tmp_path / "cache", *(tmp_path / "cache").rglob("*/")]
    for folder in folders:
        folder.chmod(0o500)
    try:
        assert result(run(TWICE + HITS)) == ["3", "1", "0"]
        (tmp_path / "first/sample_package/called.py").write_text(CALLED.replace("+ 1", "+ 10"))
        assert result(run(TWICE + HITS)) == ["21", "0", "1"]
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_broken_files_are_replaced(run: Run, tmp_path: Path) -> None:
    assert result(run(TWICE)) == ["3"]
    (file,) = (tmp_path / "cache").rglob("*.twice-*.code")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert result(run(TWICE + HITS)) == ["3", "0", "1"]
    assert file.read_bytes()[:100] == content[:100]
    assert len(file.read_bytes()) == len(content)


def test_what_others_may_have_written_is_not_read(run: Run, tmp_path: Path) -> None:
    assert result(run(TWICE)) == ["3"]
    (file,) = (tmp_path / "cache").rglob("*.twice-*.code")
    file.chmod(0o666)
    assert result(run(TWICE + HITS)) == ["3", "0", "1"]
    assert result(run(TWICE + HITS)) == ["3", "1", "0"]  # the file is replaced
    if os.geteuid() == 0:
        os.chown(file, 65534, -1)
        assert result(run(TWICE + HITS)) == ["3", "0", "1"]


def test_processes_that_compile_at_once(run: Run) -> None:
    signatures = [TWICE, TWICE.replace("twice(1)", "twice(1.0)")]
    processes = [run(code) for code in signatures]
    assert list(map(result, processes)) == [["3"], ["3.0"]]
    assert result(run(signatures[0] + HITS)) == ["3", "1", "0"]
    assert result(run(signatures[1] + HITS)) == ["3.0", "1", "0"]


def test_versions_long_not_used_are_removed(run: Run, tmp_path: Path) -> None:
    compiled = tmp_path / "cache" / "compiled"
    others = [compiled / f"sample_package-{number:016x}" for number in range(12)]
    for age, folder in enumerate(others):
        folder.mkdir(parents=True)
        os.utime(folder, (10**9 - age, 10**9 - age))
    result(run(TWICE))
    assert [folder.exists() for folder in others] == [True] * 7 + [False] * 5
    assert len(list(compiled.glob("sample_package-*/*calling*"))) == 1


def test_nothing_is_kept_of_functions_outside_packages(run: Run, tmp_path: Path) -> None:
    code = "from placeto_graphs import compiled; exec({!r}); print(step(1))"
    assert result(run(code.format(CALLED))) == ["2"]
    assert not (tmp_path / "cache").exists()

"""Compiled code on disk: never of other sources than those that are there, and shared."""

import fcntl
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

import placeto_graphs
from forked_programs import Program

Run = Callable[..., Program]
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
VARIANTS = """
from placeto_graphs import compiled

ADDS = True

def change(number):
    return number + 1 if ADDS else number - 1

add = compiled(change, name="add")
subtract = compiled(change, name="subtract", constants={"ADDS": False})

@compiled
def both(number):
    return add(number), subtract(number)
"""
ADDING = """
import os
from placeto_graphs import compiled

STEP = 0

def change(number):
    return number + STEP

def change_twice(number):
    return add(add(number))

add = compiled(change, name="add", constants={"STEP": int(os.environ["STEP"])})
add_twice = compiled(change_twice, name="add_twice", constants={"add": add})
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run code beside a package of two modules."""
    cache = tmp_path / "cache"
    numbers = count()

    def begin(code: str, folder: str = "first", cache: Path = cache) -> Program:
        package = make_package(tmp_path / folder)
        sources = [package.parent, Path(placeto_graphs.__file__).parents[1]]
        return Program(code, sources, cache, tmp_path / f"output_{next(numbers)}")

    return begin


def make_package(folder: Path) -> Path:
    package = folder / "sample_package"
    if not package.exists():
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "called.py").write_text(CALLED)
        (package / "calling.py").write_text(CALLING)
        (package / "variants.py").write_text(VARIANTS)
    return package


TWICE = "from sample_package.calling import twice; print(twice(1))"
HITS = "; print(sum(twice.stats.cache_hits.values()), sum(twice.stats.cache_misses.values()))"


def test_a_change_of_what_a_function_calls_is_seen(run: Run, tmp_path: Path) -> None:
    assert run(TWICE).result() == ["3"]
    (tmp_path / "first/sample_package/called.py").write_text(CALLED.replace("+ 1", "+ 10"))
    assert run(TWICE).result() == ["21"]


def test_copies_in_different_folders_share_code(run: Run) -> None:
    assert run(TWICE + HITS).result() == ["3", "0", "1"]
    assert run(TWICE + HITS).result() == ["3", "1", "0"]
    assert run(TWICE + HITS, folder="second").result() == ["3", "1", "0"]


def test_an_edit_after_the_import_is_not_run_before_it_is_imported(
    run: Run, tmp_path: Path
) -> None:
    file = make_package(tmp_path / "first") / "called.py"
    edited = CALLED.replace("+ 1", "+ 10")
    edit = f"import sample_package.calling; open({str(file)!r}, 'w').write({edited!r}); "
    assert run(edit + TWICE).result() == ["3"]
    assert run(TWICE).result() == ["21"]
    file.write_text(CALLED)
    assert run(TWICE).result() == ["3"]


def test_sources_that_are_edited_while_they_are_imported(run: Run, tmp_path: Path) -> None:
    package = make_package(tmp_path / "first")
    (package / "constants.py").write_text("STEP = 1")
    kernel = CALLED.replace("+ 1", "+ STEP")
    (package / "called.py").write_text(f"from sample_package.constants import STEP\n{kernel}")
    edit = f"pathlib.Path({str(package / 'constants.py')!r}).write_text('STEP = 10')"
    begin = "import pathlib, placeto_graphs, sample_package.constants"
    assert run(f"{begin}; {edit}; {TWICE + HITS}").result() == ["3", "0", "1"]
    assert run(TWICE + HITS).result() == ["21", "0", "1"]


def test_variants_do_not_take_each_others_place(run: Run) -> None:
    # Each compiles one of them, as the first function that it compiles.
    assert run("from sample_package.variants import add; print(add(5))").result() == ["6"]
    assert run("from sample_package.variants import subtract; print(subtract(5))").result() == ["4"]
    code = "from sample_package.variants import *; print(add(5), subtract(5), *both(5))"
    assert run(code).result() == ["6", "4", "6", "4"]


def test_a_broken_file_costs_a_compilation(run: Run, tmp_path: Path) -> None:
    assert run(TWICE).result() == ["3"]
    for kind in ("nbi", "nbc"):
        (file,) = (tmp_path / "cache").rglob(f"*.twice-*.{kind}")
        file.write_bytes(file.read_bytes()[:50])
        assert run(TWICE + HITS).result() == ["3", "0", "1"]
    assert run(TWICE + HITS).result() == ["3", "1", "0"]


def test_a_disk_that_fills_while_code_is_saved(run: Run) -> None:
    # Nothing that is larger than an index, which is the first to be written.
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY)); "
    assert run(limit + TWICE + HITS).result() == ["3", "0", "1"]
    assert run(TWICE + HITS).result() == ["3", "0", "1"]
    assert run(TWICE + HITS).result() == ["3", "1", "0"]


def test_a_disk_that_is_full_holds_no_remains(run: Run, tmp_path: Path) -> None:
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY)); "
    assert run(limit + TWICE + HITS).result() == ["3", "0", "1"]
    assert list((tmp_path / "cache/compiled").iterdir()) == []


def test_sources_that_moved_are_kept_anew(run: Run, tmp_path: Path) -> None:
    assert run(TWICE).result() == ["3"]
    package = tmp_path / "first/sample_package"
    (package / "calling.py").rename(package / "calling_it.py")
    moved = TWICE.replace("calling", "calling_it")
    assert run(moved + HITS).result() == ["3", "0", "1"]
    assert run(moved + HITS).result() == ["3", "1", "0"]


def test_copies_that_were_cleaned_away_are_made_again(run: Run, tmp_path: Path) -> None:
    assert run(TWICE).result() == ["3"]
    (copy,) = (tmp_path / "cache").rglob("calling.py")
    copy.unlink()
    assert run(TWICE + HITS).result() == ["3", "0", "1"]
    assert run(TWICE + HITS).result() == ["3", "1", "0"]


def test_constants_of_a_variant_are_part_of_it(run: Run, tmp_path: Path) -> None:
    (make_package(tmp_path / "first") / "adding.py").write_text(ADDING)
    code = "import os; os.environ['STEP'] = '{}'; from sample_package.adding import *; "
    code += "print(add(5), add_twice(5))"
    assert run(code.format(1)).result() == ["6", "7"]
    assert run(code.format(10)).result() == ["15", "25"]


def test_variables_of_functions_around_one_are_refused() -> None:
    def make(adds: bool) -> Callable[[int], int]:
        return lambda number: number + 1 if adds else number - 1

    with pytest.raises(placeto_graphs.GraphError, match="adds"):
        placeto_graphs.compiled(make(True))


def test_errors_name_the_source_and_not_its_copy(run: Run, tmp_path: Path) -> None:
    file = make_package(tmp_path / "first") / "called.py"
    file.write_text(CALLED.replace("+ 1", "+ missing"))
    code = "from sample_package.called import step; path = step.py_func.__code__.co_filename\n"
    code += "try: step(1)\nexcept Exception as error: print(path, 'compiled/' in str(error))"
    assert run(code).result() == [str(file), "False"]


def test_a_cache_that_cannot_be_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert run(TWICE + HITS, cache=tmp_path / "file").result() == ["3", "0", "1"]


def test_a_folder_that_others_may_write_to_is_not_used(run: Run, tmp_path: Path) -> None:
    assert run(TWICE).result() == ["3"]
    (version,) = (tmp_path / "cache/compiled").glob("sample_package-*")
    files = [file for file in (tmp_path / "cache").rglob("*.nb?") if ".twice-" in file.name]
    assert all(version in file.parents for file in files)
    assert len(files) == 2
    for folder in (version, tmp_path / "cache/compiled"):
        mode = folder.stat().st_mode
        folder.chmod(0o777)
        assert run(TWICE + HITS).result() == ["3", "0", "1"]
        folder.chmod(mode)
    if os.geteuid() == 0:
        os.chown(version, 65534, -1)
        assert run(TWICE + HITS).result() == ["3", "0", "1"]
        os.chown(version, 0, -1)
    assert run(TWICE + HITS).result() == ["3", "1", "0"]


def test_processes_that_compile_at_once(run: Run) -> None:
    signatures = [TWICE, TWICE.replace("twice(1)", "twice(1.0)")]
    programs = [run(code) for code in signatures]
    assert [program.result() for program in programs] == [["3"], ["3.0"]]
    assert run(signatures[0] + HITS).result() == ["3", "1", "0"]
    assert run(signatures[1] + HITS).result() == ["3.0", "1", "0"]


def test_code_is_saved_by_one_process_at_a_time(run: Run, tmp_path: Path) -> None:
    assert run(TWICE).result() == ["3"]
    (file,) = (tmp_path / "cache/compiled").glob("sample_package-*/__pycache__/.lock")
    with file.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(TWICE + HITS).result() == ["3", "1", "0"]  # it has nothing to save
        program = run(TWICE.replace("twice(1)", "twice(1.0)"))
        program.process.join(3.0)
        assert program.process.is_alive()
    assert program.result() == ["3.0"]


def test_versions_long_not_used_are_removed(run: Run, tmp_path: Path) -> None:
    compiled = tmp_path / "cache" / "compiled"
    others = [compiled / f"sample_package-{number:016x}" for number in range(12)]
    for age, folder in enumerate(others):
        folder.mkdir(parents=True)
        os.utime(folder, (10**9 - age, 10**9 - age))
    run(TWICE).result()
    assert [folder.exists() for folder in others] == [True] * 7 + [False] * 5
    assert len(list(compiled.glob("sample_package-*/calling.py"))) == 1


def test_nothing_is_kept_of_functions_outside_packages(run: Run, tmp_path: Path) -> None:
    code = "from placeto_graphs import compiled; exec({!r}); print(step(1))"
    assert run(code.format(CALLED)).result() == ["2"]
    assert not (tmp_path / "cache").exists()

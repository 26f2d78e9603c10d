"""Trials of an experiment: how they run, and the folder that they leave."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiment_tasks import Count, place, placed
from placeto.errors import InputError, RunError
from placeto.placing.placers import placer_spec
from placeto.progress import PlainProgress
from placeto.trials.folder import (
    TRIALS,
    ExperimentFolder,
    content_digest,
    experiment_folder,
)
from placeto.trials.placing_tasks import PlaceByName
from placeto.trials.records import Episode, Failed, Problem, TrialRecord
from placeto.trials.running import conduct, run_trials
from placeto.trials.trials import (
    Experiment,
    Graph,
    Page,
    Trial,
    Watch,
    Workspace,
)
from placeto_baselines import Limits
from placeto_graphs import load_problem, save_problem
from placeto_graphs.testing import example_problem
from placeto_policy import Settings

GRAPH = Graph("x")
PROBLEM = example_problem(kinds=("k80", "k80"))


def test_only_content_is_told() -> None:
    named = [Problem(stem="a", source=source, cluster="b") for source in "ab"]
    several = [(1, 2), ("1", 2), (12,), {"a": (), "b": 1}, {"a": ("b",), "c": 1}, *named]
    assert len({content_digest(value) for value in several}) == len(several)
    assert content_digest(np.float64(1.5)) == content_digest(1.5)
    assert content_digest({"a": 1, "b": 2}) == content_digest({"b": 2, "a": 1})
    assert content_digest(np.zeros(2)) != content_digest(np.zeros(2, np.int64))
    for untold in (object(), np.array([object()])):
        with pytest.raises(TypeError, match="content can be told"):
            content_digest(untold)
    with pytest.raises(KeyError):
        content_digest(GRAPH, {"y": "another"})


# How trials run.


def run(folder: Path, *trials: Trial, jobs: int = 1) -> Iterator[tuple[str, str]]:
    """Run trials; yield the name of each, and its error if it fails."""
    trials_and_records = run_trials(
        trials, Workspace(folder), Watch(lambda: False), jobs=jobs, done=["before"]
    )
    for trial, record in trials_and_records:
        assert isinstance(record, Failed | Episode)
        yield trial.name, record.error if isinstance(record, Failed) else ""


def test_a_failed_trial_ends_none_but_those_that_need_it(tmp_path: Path) -> None:
    trials = [
        Trial("fails", Count(0, "refused")),
        Trial("beside", Count(1)),
        Trial("needs", Count(2), ("fails",)),
        Trial("last", Count(3), ("beside", "before")),
    ]
    error = "policy: expected a better one, got this"
    assert list(run(tmp_path, *trials)) == [("fails", error), ("beside", ""), ("last", "")]
    with pytest.raises(ValueError, match="a mistake"):
        list(run(tmp_path, Trial("wrong", Count(0, "mistaken"))))


@pytest.mark.slow
def test_a_process_that_is_killed_is_one_line(tmp_path: Path) -> None:
    first, killed = Trial("a", Count(1)), Trial("b", Count(0, "killed"), ("a",))
    errors = run(tmp_path, first, killed, Trial("c", Count(2), ("b",)), jobs=2)
    assert next(errors) == ("a", "")
    with pytest.raises(
        RunError, match="a process of a trial was killed; run the same command again"
    ):
        next(errors)


# The folder of an experiment.


def experiment(path: Path, *names: str, extra_trial: Trial | None = None) -> Experiment:
    """Return the experiment of some placers on the problem of a file."""
    trials = [
        Trial(name, PlaceByName(label=name, graph=GRAPH, seed=None, name=name)) for name in names
    ]
    return Experiment(
        name="experiment",
        title="Placers",
        options={},
        problems={"x": lambda: load_problem(path)},
        trials=[*trials, *([extra_trial] if extra_trial else [])],
        page=lambda results: Page([str(results.records["single"])]),
    )


def conducted(folder: Path, chosen: Experiment, *, force: bool = False) -> list[dict[str, Any]]:
    """Run what is left of an experiment; return the lines of its folder."""
    with experiment_folder(folder, chosen, force=force) as opened:
        conduct(chosen, opened, PlainProgress(None), jobs=1)
    return [json.loads(line) for line in (folder / TRIALS).read_text().splitlines()]


def test_a_folder_goes_on_with_what_is_the_same_and_nothing_else(tmp_path: Path) -> None:
    path, folder = tmp_path / "problem.json", tmp_path / "results"
    save_problem(PROBLEM, path)
    first = conducted(folder, experiment(path, "single"))
    page = (folder / "results.md").read_text()
    second = conducted(folder, experiment(path, "single", "heft"))
    assert second[:1] == first
    assert [line["name"] for line in second] == ["single", "heft"]
    save_problem(replace(PROBLEM, compute_time=2 * PROBLEM.compute_time), path)
    third = conducted(folder, experiment(path, "single"))  # the file has another content
    assert third[:2] == second
    assert third[2]["runtime"] > first[0]["runtime"]
    assert str(third[2]["runtime"]) in (folder / "results.md").read_text()
    save_problem(PROBLEM, path)
    assert conducted(folder, experiment(path, "single")) == third  # and its first one again
    assert (folder / "results.md").read_text() == page
    problem = folder / "problems" / "x.json.gz"
    written = problem.stat().st_mtime_ns
    conducted(folder, experiment(path, "single"))  # with nothing left, as it was
    assert problem.stat().st_mtime_ns == written
    assert load_problem(problem) == PROBLEM
    assert len(conducted(folder, experiment(path, "single"), force=True)) == 1


def test_what_failed_is_tried_again_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tmp_path / "problem.json", tmp_path / "results"
    save_problem(PROBLEM, path)
    failing = experiment(path, "single", extra_trial=Trial("fails", Count(0, "refused")))
    for _ in range(2):  # the same failure stands there once
        with pytest.raises(RunError, match=r"^fails: policy: expected a better one, got this$"):
            conducted(folder, failing)
    assert not (folder / "results.md").exists()
    lines = conducted(folder, experiment(path, "single", extra_trial=Trial("fails", Count(1))))
    assert [line["type"] for line in lines] == ["placed", "failed", "episode"]
    cannot = place(limits=Limits(1), settings=Settings())
    unable = experiment(path, "single", extra_trial=Trial("no", cannot, may_fail=True))
    lines = conducted(folder, unable)
    monkeypatch.setattr(PlaceByName, "spec", lambda *_: placer_spec("single"))
    *earlier_lines, last = conducted(folder, unable)
    assert (earlier_lines, last["type"]) == (lines, "placed")


LETTERS = [Trial(name, Count(index)) for index, name in enumerate("abc")]


@contextmanager
def opened(
    folder: Path, name: str = "letters", *, force: bool = False
) -> Iterator[ExperimentFolder]:
    """Open the folder of an experiment without problems."""
    chosen = Experiment(name, "", {}, {}, LETTERS, page=lambda _: Page([]))
    with experiment_folder(folder, chosen, force=force) as experiment_files:
        experiment_files.make_problems(lambda _: None)
        yield experiment_files


def test_finished_trials_stay_and_half_a_line_is_dropped(tmp_path: Path) -> None:
    records: list[TrialRecord] = [placed(cost=1.5), Failed(error="none"), placed(cost=None)]
    with opened(tmp_path) as folder:
        for trial, record in zip(LETTERS[:2], records, strict=False):
            folder.add(trial, record, 1.0)
    whole = (tmp_path / TRIALS).read_bytes()
    for end in (*range(0, len(whole), 97), len(whole)):
        (tmp_path / TRIALS).write_bytes(whole[:end])
        whole_records = dict(list(zip("ab", records, strict=False))[: whole[:end].count(b"\n")])
        with opened(tmp_path) as folder:
            assert folder.results.records == whole_records
            folder.add(LETTERS[2], records[2], 1.0)  # goes on a line of its own
        with opened(tmp_path) as folder:
            assert folder.results.records == whole_records | {"c": records[2]}
            assert folder.finished.keys() == {*whole_records, "c"} - {"b"}
    with (tmp_path / TRIALS).open("a") as file:
        file.write('{"key": "b", "name": "b", "type": "luck"}\n')
    with pytest.raises(InputError, match=r"line 4: .*'luck' - at `\$.type`"), opened(tmp_path):
        pass


def test_a_folder_is_that_of_one_process_and_one_experiment(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()  # a process was killed at once

    def open_again() -> None:
        with opened(tmp_path, force=True):
            pass

    with opened(tmp_path), ThreadPoolExecutor(1) as pool:
        error = pool.submit(open_again).exception()
    assert str(error) == f"{tmp_path}: another process uses it; name another folder"
    description = tmp_path / "experiment.json"
    for version, problem in (
        (4, "expected the experiment other, got letters"),
        (2, "expected version 4, got 2.* --force begins anew"),
    ):
        changed = json.loads(description.read_text()) | {"version": version}
        description.write_text(json.dumps(changed))
        with pytest.raises(InputError, match=problem), opened(tmp_path, "other"):
            pass
    with opened(tmp_path, "other", force=True) as folder:
        assert folder.finished == {}

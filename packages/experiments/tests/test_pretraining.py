"""How the bundled policy is made, from search to table, at the smallest scale."""

import os
import re
import shutil
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from placeto.stopping import StopRequest
from placeto_experiments.pretraining import __main__ as pretraining
from placeto_experiments.pretraining import learning
from placeto_experiments.pretraining import searched as searched_module
from placeto_experiments.pretraining.__main__ import main
from placeto_experiments.pretraining.evaluation import Evaluation, summary
from placeto_experiments.pretraining.learning import Validation, weights_of
from placeto_experiments.pretraining.searched import searched_problems, training_problems
from placeto_experiments.problem_set.problems import GraphEntry, Part, ProblemEntry
from placeto_experiments.problem_set.random_steps import random_step
from placeto_policy import PlacementPolicy, load_policy, preset, save_policy

SMALL = ["--evaluations", "40"]


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(main, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def fail(*arguments: str | Path) -> str:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == 2, result.output
    (line,) = result.output.splitlines()[-1:]
    return line


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with placements of three problems to learn from, and of two to choose by."""
    folder = tmp_path_factory.mktemp("pretraining") / "searched"
    limits: dict[Part, int] = {"training": 3, "validation": 2}
    for part, limit in limits.items():
        run("demonstrate", folder, "--part", part, "--limit", str(limit), *SMALL)
        assert len(list(searched_problems(folder, part, variants=1))) == limit
    return folder


@pytest.mark.slow
def test_a_policy_is_searched_for_trained_and_evaluated(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(searched, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(learning, "STEPS_BETWEEN_CHECKPOINTS", 2)
    monkeypatch.setattr(learning, "STEPS_BETWEEN_VALIDATIONS", 2)
    training: list[str | Path] = ["demonstrate", tmp_path, "--part", "training"]
    again = run(*training, "--limit", "4", "--jobs", "2", *SMALL)
    assert again.count(" placements in ") == 1  # the three are there already
    assert "begun with 40 evaluations, not 50 evaluations; name another" in fail(
        *training, "--evaluations", "50"
    )
    assert "begun with 40 evaluations, not 2 s; name another" in fail(*training, "--seconds", "2")

    few = islice(training_problems(1, 1), 2)
    monkeypatch.setattr(pretraining, "training_problems", lambda *_, **__: few)
    imitated, policy = tmp_path / "imitated.safetensors", tmp_path / "policy.safetensors"
    commands = (
        (imitated, "imitate"),
        (policy, "reinforce", "--graphs", "3", "--learning-rate", "1e-4"),
    )
    for kept, command, *options in commands:
        printed = run(command, tmp_path, "--steps", "2", *options)
        assert "step 0: greedy" in printed
        assert "step 2: greedy" in printed
        first = kept.read_bytes()
        assert load_policy(kept).num_devices is None
        few = islice(training_problems(1, 1), 2)
        assert run(command, tmp_path, "--steps", "2", *options) == ""  # it is at its end
        assert kept.read_bytes() == first
    # A longer imitation from another policy leaves what reinforcement has reached as it is.
    imitated.unlink()
    (tmp_path / "imitation.safetensors").unlink()
    run("imitate", tmp_path, "--steps", "2", "--policy", policy)
    assert imitated.exists()
    assert policy.read_bytes() == first

    table = run("evaluate", tmp_path, "--part", "validation", "--policy", policy)
    rows = [line.split("|") for line in table.splitlines() if line.startswith(("| ptb", "| layer"))]
    assert len(rows) == 2
    for row in rows:
        greedy, some, rounds, placed, *others = (float(cell) for cell in row[5:12])
        assert min(greedy, some, rounds, placed, *others) >= 1.0  # of the best that is known
        assert greedy >= some >= rounds
        assert placed <= min(others[:2])  # the schedulers are among its starts


@pytest.mark.slow
def test_a_training_that_resumes_reaches_the_same_policy(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "STEPS_BETWEEN_CHECKPOINTS", 1)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        shutil.copytree(searched, folder)
    run("imitate", folders[0], "--steps", "4")

    class StopAfterTwo(StopRequest):
        asked = 0

        @property
        def requested(self) -> bool:
            self.asked += 1
            return self.asked > 2

    with monkeypatch.context() as patched:
        patched.setattr(learning, "StopRequest", StopAfterTwo)
        run("imitate", folders[1], "--steps", "4")
    whole = load_file(folders[0] / "imitation.safetensors")
    half = load_file(folders[1] / "imitation.safetensors")
    assert not torch.equal(whole["policy.scores.score.weight"], half["policy.scores.score.weight"])
    refused = fail("imitate", folders[1], "--steps", "5")
    assert re.search(r"begun with other options: 3 problems \(\w{16}\), 4 steps, seed 0", refused)
    run("imitate", folders[1], "--steps", "4")
    resumed = load_file(folders[1] / "imitation.safetensors")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_kinds_of_graphs_are_drawn_equally_often() -> None:
    names = [
        "chain-1.0",
        "chain-1.1",
        "chain-22.0",
        "fork-join-3.0",
        "nmt-03.1",
        "transformers-t5.0",
    ]
    assert weights_of(names) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0, 1.0, 1.0])


def evaluated(rounds: float, heft: float, search: float, *, fits: bool) -> Evaluation:
    return Evaluation(
        name="grid-1.0",
        groups=32,
        devices=4,
        best_known=1.0,
        ratios=(2 * rounds, 1.0, rounds, rounds, heft, 9.0, search),
        seconds=(0.1, 0.2, rounds),
        fits_where_search_fits=fits,
    )


def test_the_summary_says_what_the_rows_do() -> None:
    rows = [
        evaluated(1.0, 1.2, 1.1, fits=True),
        evaluated(4.0, 1.0, 1.0, fits=False),
        evaluated(2.0, 2.0, 4.0, fits=True),
    ]
    text = summary(rows)
    assert "| median | 4.000 | 1.000 | 2.000 | 2.000 | 1.200 | 9.000 | 1.100 |" in text
    assert "| geometric mean | 4.000 | 1.000 | 2.000 | 2.000 | 1.339 | 9.000 | 1.639 |" in text
    assert "| within 5 % of the best known | 0.000 | 1.000 | 0.333" in text
    assert "pretrained is better than a search as long on 67%, as good on 0%" in text
    beside = "two rounds is better than the better of HEFT and critical path on 33%, as good on 33%"
    assert f"{beside}; its cost is 1.494x (geometric mean)." in text
    assert "fit where search finds one that does on 66.7%" in text
    assert "CPU seconds of pretrained: 2.00 (median), 4.00 at most." in text


def test_a_validation_scores_by_the_geometric_mean_of_the_best() -> None:
    validation = Validation(np.array([9.0, 9.0]), np.array([1.0, 4.0]))
    assert validation.score == pytest.approx(2.0)
    assert "best of 16 2.500 (geometric mean 2.000), 50% within 5 %" in str(validation)


def test_wrong_budgets_and_empty_folders_are_named(tmp_path: Path) -> None:
    assert "--evaluations, --seconds: expected one of the two" in fail(
        "demonstrate", tmp_path, "--part", "test"
    )
    nothing = "expected placements of the training part, got none"
    assert nothing in fail("imitate", tmp_path)
    assert nothing.replace("training", "validation") in fail("reinforce", tmp_path)
    policy, other = tmp_path / "policy.safetensors", tmp_path / "other.safetensors"
    save_policy(PlacementPolicy(settings=preset("general")), policy)
    assert "expected placements of the test part, got none" in fail(
        "evaluate", tmp_path, "--policy", policy
    )
    other.write_bytes(os.urandom(64))
    assert "other.safetensors: expected a placeto-policy file" in fail(
        "evaluate", tmp_path, "--policy", other
    )


def test_problems_to_learn_from_are_those_of_some_random_graphs_and_of_all_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("chain-0", "chain-1", "chain-2", "grid-1", "grid-30", "nmt-07")
    entries = tuple(
        ProblemEntry(GraphEntry(name, "training", partial(random_step, "chain", 0)), variant)
        for name in names
        for variant in range(2)
    )
    monkeypatch.setattr(searched_module, "problem_set", lambda part, *, variants: entries)  # noqa: ARG005
    learned_from = sorted(name for name, _ in training_problems(2, 2))
    kept = ("chain-0", "chain-1", "grid-1", "nmt-07")
    assert learned_from == [f"{name}.{variant}" for name in kept for variant in range(2)]
    assert len(list(training_problems(2, None))) == len(entries)

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from placeto_policy import (
    PlacementPolicy,
    PolicyError,
    Settings,
    Trainer,
    load_policy,
    preset,
    resume_training,
    save_policy,
    save_training,
)
from scheduled_problems import QUICK, ListSchedule, partly_possible, train, two_chains

Tensors = dict[str, torch.Tensor]
Metadata = dict[str, str]
BIAS, AVERAGE = "policy.scores.output.bias", "adam.exp_avg.scores.output.bias"
SETTINGS = replace(QUICK, updates=12, workers=3, start="random", order="random", baseline_window=4)


def new_trainer(settings: Settings = SETTINGS) -> Trainer:
    evaluators = [ListSchedule(two_chains()), ListSchedule(partly_possible())]
    return Trainer(evaluators, settings, seed=3)


def resumed(path: Path) -> Trainer:
    return resume_training(path, [ListSchedule(two_chains()), ListSchedule(partly_possible())])


def assert_same(policy: PlacementPolicy, expected: PlacementPolicy) -> None:
    tensors = expected.state_dict()
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, tensors[name]), name


def assert_equal(trainer: Trainer, expected: Trainer) -> None:
    assert_same(trainer.policy, expected.policy)
    assert_same(trainer.trained_policy, expected.trained_policy)
    for baseline, expected_baseline in zip(trainer.baselines, expected.baselines, strict=True):
        np.testing.assert_array_equal(baseline.means, expected_baseline.means)
        np.testing.assert_array_equal(baseline.spreads, expected_baseline.spreads)
    for best, expected_best in zip(trainer.best, expected.best, strict=True):
        assert best is not None
        assert expected_best is not None
        assert (best.lacks_memory, best.cost) == (expected_best.lacks_memory, expected_best.cost)
        np.testing.assert_array_equal(best.placement, expected_best.placement)
    assert (trainer.updates, trainer.evaluations) == (expected.updates, expected.evaluations)
    assert trainer.best_policy.cost == expected.best_policy.cost


@pytest.mark.parametrize("stop_after", [1, 11])
@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        replace(SETTINGS, minibatches=3, epochs=2, reward="intermediate"),
        replace(preset("paper"), updates=12, workers=3, hidden_units=16),
    ],
    ids=["default", "epochs", "paper"],
)
def test_a_resumed_training_comes_to_the_same_weights(
    tmp_path: Path, settings: Settings, stop_after: int
) -> None:
    path = tmp_path / "training.safetensors"
    uninterrupted = new_trainer(settings)
    train(uninterrupted)
    interrupted = new_trainer(settings)
    for _ in range(stop_after):
        interrupted.update()
    save_training(interrupted, path)
    interrupted.update()  # what comes after the last checkpoint is lost
    resumed_training = resumed(path)
    assert (resumed_training.updates, resumed_training.settings) == (stop_after, settings)
    states = zip(
        resumed_training.optimizer.state_dict()["state"].values(),
        resumed(path).optimizer.state_dict()["state"].values(),
        strict=True,
    )
    steps = {
        (float(state["step"]), float(expected_state["step"])) for state, expected_state in states
    }
    assert steps == {(stop_after * settings.minibatches * settings.epochs,) * 2}
    train(resumed_training, checkpoint=path)
    assert_equal(resumed_training, uninterrupted)
    assert_equal(resumed(path), uninterrupted)
    assert_same(load_policy(path), uninterrupted.trained_policy)


def test_the_number_of_threads_changes_nothing() -> None:
    num_threads = torch.get_num_threads()
    trainers = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            evaluator = ListSchedule(two_chains(length=10))
            trainers.append(Trainer([evaluator], Settings(updates=2)))
            train(trainers[-1])
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(num_threads)
    assert_equal(*trainers)


@pytest.mark.parametrize(
    "settings",
    [Settings(embedding="simple-partitioner", hidden_units=7), preset("paper"), preset("default")],
)
def test_a_policy_survives_its_file(tmp_path: Path, settings: Settings) -> None:
    policy = PlacementPolicy(3, settings, seed=5)
    save_policy(policy, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    assert (loaded.num_devices, loaded.settings) == (3, settings)
    assert_same(policy, loaded)


@cache
def good_file(training: bool) -> bytes:
    """Return the content of a file of a training after an update, or of its policy alone."""
    trainer = new_trainer()
    trainer.update()
    with TemporaryDirectory() as folder:
        path = Path(folder, "good.safetensors")
        if training:
            save_training(trainer, path)
        else:
            save_policy(trainer.policy, path)
        return path.read_bytes()


def changed(
    path: Path, change: Callable[[Tensors, Metadata], None], *, training: bool = False
) -> Path:
    """Write a good file, and return it after a change to its tensors or its metadata."""
    path.write_bytes(good_file(training))
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(tensors, metadata)
    save_file(tensors, path, metadata)
    return path


def described(**fields: object) -> Callable[[Tensors, Metadata], None]:
    def change(_: Tensors, metadata: Metadata) -> None:
        metadata["description"] = json.dumps(json.loads(metadata["description"]) | fields)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, _: tensors.pop(BIAS), f"expected a tensor '{BIAS}', got none"),
        (lambda tensors, _: tensors[BIAS].fill_(torch.nan), f"{BIAS}: expected finite numbers"),
        (
            lambda tensors, _: tensors.update({"policy.extra": torch.zeros(1)}),
            "expected no tensor 'policy.extra' in such a policy",
        ),
        (lambda _, metadata: metadata.update(version="1"), "expected version '5', got '1'"),
        (lambda _, metadata: metadata.pop("description"), "expected a description, got none"),
        (described(num_devices=0), "num_devices: expected at least 1, got 0"),
        (described(settings={"workers": 0}), "workers: expected an integer >= 1, got 0"),
        (described(features=0), r"features: expected a policy .* got 0: train it again"),
    ],
)
def test_files_that_are_not_a_policy(
    tmp_path: Path, change: Callable[[Tensors, Metadata], None], message: str
) -> None:
    path = changed(tmp_path / "policy.safetensors", change)
    with pytest.raises(PolicyError, match=message) as caught:
        load_policy(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (described(training=None), "expected a training, got a policy alone"),
        (lambda tensors, _: tensors.pop(AVERAGE), f"expected a tensor '{AVERAGE}', got none"),
        (
            lambda tensors, _: tensors.update(
                {"baseline.1.sizes": torch.zeros((), dtype=torch.float64)}
            ),
            r"baseline.1.sizes: expected torch.float64 of shape \(1,\), got .* of shape \(\)",
        ),
    ],
)
def test_files_that_are_not_a_training(
    tmp_path: Path, change: Callable[[Tensors, Metadata], None], message: str
) -> None:
    path = changed(tmp_path / "training.safetensors", change, training=True)
    with pytest.raises(PolicyError, match=message):
        resumed(path)


def test_a_training_belongs_to_its_graphs(tmp_path: Path) -> None:
    trainer = new_trainer()
    save_training(trainer, tmp_path / "training.safetensors")
    with pytest.raises(PolicyError, match=r"graphs of \[6, 3\] groups, got \[3\]"):
        resume_training(tmp_path / "training.safetensors", [ListSchedule(partly_possible())])


@pytest.mark.parametrize("content", [b"", b"not a policy", b"\x08" + bytes(40)])
def test_files_of_another_kind(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(content)
    with pytest.raises(PolicyError, match="expected a placeto-policy file"):
        load_policy(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        load_policy(path)

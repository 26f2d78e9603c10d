"""The controller, and training that alternates between it and shared weights."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from placeto_experiments.enas import (
    Controller,
    ImageTask,
    Search,
    Settings,
    Task,
    TextTask,
    grammar_text,
    resume_search,
    save_search,
    shape_images,
    train,
)
from placeto_workloads import (
    Activation,
    ConvolutionalSpace,
    RecurrentCell,
    RecurrentSpace,
    SearchSpace,
    WorkloadError,
)
from placeto_workloads.families.search_spaces import Architecture

SMALL = Settings(rounds=3, shared_steps=3, controller_steps=2, samples=3, controller_units=8)


def text_task() -> TextTask:
    return TextTask(grammar_text(num_sentences=60), num_nodes=3, units=4, steps=4, batch_size=4)


def image_task() -> ImageTask:
    data = shape_images(num_training=200, num_validation=24, size=8)
    return ImageTask(data, num_nodes=2, filters=2, batch_size=20)


class CountOfTanh(Task):
    """A toy task: the reward is the share of nodes that apply tanh and read the first node."""

    def __init__(self) -> None:
        super().__init__(RecurrentSpace(4), nn.Linear(1, 1), {"task": "toy"})

    def loss(self, architecture: Architecture, generator: np.random.Generator) -> Tensor:
        del architecture, generator
        loss: Tensor = self.network(torch.ones(1)).square().sum()
        return loss

    def rewards(
        self, architectures: list[Architecture], generator: np.random.Generator
    ) -> list[float]:
        del generator
        return [self._reward(architecture) for architecture in architectures]

    @staticmethod
    def _reward(cell: Architecture) -> float:
        assert isinstance(cell, RecurrentCell)
        nodes = [activation is Activation.TANH for activation in cell.activations]
        return float(np.mean([*nodes, *(read == 0 for read in cell.inputs)]))


@pytest.mark.parametrize("space", [RecurrentSpace(3), ConvolutionalSpace(1)])
def test_the_probabilities_of_all_architectures_add_up_to_one(space: SearchSpace) -> None:
    controller = Controller(space, units=8, seed=3)
    with torch.no_grad():
        for weight in controller.parameters():
            weight.mul_(20)  # far from uniform
        every = list(product(*(range(decision.count) for decision in space.decisions)))
        log_probability, entropy = controller(torch.tensor(every))
    probability = log_probability.double().exp()
    assert float(probability.sum()) == pytest.approx(1, abs=1e-4)
    assert float(probability.max()) > 2 / len(every)
    # The expected sum of the entropies of decisions is the entropy of architectures.
    expected = float(-(probability * log_probability).sum())
    assert float((probability * entropy).sum()) == pytest.approx(expected, rel=1e-3)


def test_samples_are_as_frequent_as_their_probability_says() -> None:
    controller = Controller(RecurrentSpace(2), units=8, seed=1)
    with torch.no_grad():
        for weight in controller.parameters():
            weight.mul_(20)
    choices = controller.sample(20_000, np.random.default_rng(0))
    every = list(product(range(4), range(1), range(4)))
    with torch.no_grad():
        expected = controller(torch.tensor(every))[0].exp().tolist()
    found = [float((choices == row).all(axis=1).mean()) for row in every]
    assert found == pytest.approx(expected, abs=0.02)


def test_logits_are_kept_within_the_tanh_constant() -> None:
    controller = Controller(RecurrentSpace(1), units=8, tanh_constant=2.5)
    with torch.no_grad():
        controller.operation_scores.weight.mul_(1e6)
        probability = controller(torch.arange(4)[:, None])[0].exp()
    assert float(probability.min()) >= np.exp(-2.5) / (3 * np.exp(2.5) + np.exp(-2.5)) * 0.999


def test_the_controller_learns_a_toy_reward_that_uniform_sampling_does_not_get() -> None:
    settings = Settings(
        rounds=16, shared_steps=1, controller_steps=20, controller_units=16, controller_rate=0.01
    )
    controlled = Search(CountOfTanh(), settings, seed=1)
    uniform = Search(CountOfTanh(), replace(settings, uniform=True), seed=1)
    rewards = [[search.round() for _ in range(settings.rounds)] for search in (controlled, uniform)]
    # Uniform samples get 1/4 of 4 activations, and 1, 1/2 and 1/3 of the 3 inputs.
    assert np.mean(rewards[1]) == pytest.approx((4 / 4 + 1 + 1 / 2 + 1 / 3) / 7, abs=0.03)
    assert rewards[0][0] < 0.6
    assert min(rewards[0][-3:]) > 0.85
    initial = Controller(RecurrentSpace(4), units=16, seed=1).state_dict()
    assert all(torch.equal(initial[k], v) for k, v in uniform.controller.state_dict().items())


def test_the_baseline_is_a_moving_average_of_rewards() -> None:
    settings = replace(SMALL, controller_steps=1, entropy_weight=0.0, baseline_decay=0.75)
    search = Search(CountOfTanh(), settings)
    first = search.round()
    assert search.baseline == pytest.approx(first)
    second = search.round()
    assert search.baseline == pytest.approx(0.75 * first + 0.25 * second)


@pytest.mark.parametrize("make", [text_task, image_task])
def test_training_lowers_the_loss_of_shared_weights(make: Callable[[], Task]) -> None:
    task = make()
    settings = replace(SMALL, rounds=2, shared_steps=50, shared_rate=0.05, least_shared_rate=0.02)
    search = Search(task, settings)
    cells = [task.space.uniform(np.random.default_rng(seed)) for seed in range(5)]

    def loss() -> float:
        generator = np.random.default_rng(0)
        with torch.no_grad():
            return float(np.mean([float(task.loss(cell, generator)) for cell in cells]))

    before = loss()
    for _ in range(settings.rounds):
        search.round()
    assert loss() < before


@pytest.mark.parametrize("make", [text_task, image_task])
def test_a_training_that_was_cut_goes_on_as_if_it_had_not_been(
    make: Callable[[], Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make(), SMALL, tmp_path / "whole", seed=5)

    original = Search._train_controller
    rounds = iter([False, False, True])

    def cut(self: Search, generator: np.random.Generator) -> float:
        mean = original(self, generator)
        if next(rounds):
            raise KeyboardInterrupt
        return mean

    monkeypatch.setattr(Search, "_train_controller", cut)
    with pytest.raises(KeyboardInterrupt):
        train(make(), SMALL, tmp_path / "cut", seed=5)
    monkeypatch.undo()
    assert resume_search(tmp_path / "cut" / "search.safetensors", make()).rounds == 2
    (tmp_path / "cut" / "architectures.json").unlink()  # cut between the two files
    train(make(), SMALL, tmp_path / "cut", seed=5)
    whole, again = (tmp_path / folder for folder in ("whole", "cut"))
    checkpoint, architectures = "search.safetensors", "architectures.json"
    assert (again / architectures).read_bytes() == (whole / architectures).read_bytes()
    assert metadata_of(again / checkpoint) == metadata_of(whole / checkpoint)
    expected, found = load_file(whole / checkpoint), load_file(again / checkpoint)
    assert {name: torch.equal(found[name], expected[name]) for name in expected} == dict.fromkeys(
        found, True
    )


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    train(text_task(), SMALL, tmp_path)
    with pytest.raises(WorkloadError, match="settings: expected that of the training"):
        train(text_task(), replace(SMALL, rounds=4), tmp_path)
    with pytest.raises(WorkloadError, match=r"seed: expected that of the training .*, 0; got 1"):
        train(text_task(), SMALL, tmp_path, seed=1)
    with pytest.raises(WorkloadError, match="task: expected that of the training"):
        train(image_task(), SMALL, tmp_path)


def test_damaged_checkpoints_get_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "search.safetensors"
    search = Search(text_task(), SMALL)
    search.round()
    save_search(search, path)
    content = path.read_bytes()
    for length in range(0, len(content), 997):
        path.write_bytes(content[:length])
        with pytest.raises(WorkloadError, match=r"search\.safetensors: expected a placeto-enas"):
            resume_search(path, text_task())
    path.write_bytes(content)
    tensors = load_file(path)
    save_file(tensors, path)
    with pytest.raises(WorkloadError, match="expected format 'placeto-enas', version 1, got None"):
        resume_search(path, text_task())


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("shared.weight.first", None, "expected a tensor 'shared.weight.first', found none"),
        ("shared.weight.first", torch.zeros(2), r"first: expected torch.float32 of shape \(8, 8\)"),
        ("controller.exp_avg.start", torch.zeros(2), r"start: expected .* of shape \(1, 8\)"),
        ("controller.exp_avg.no", torch.zeros(2), "expected no tensor 'controller.exp_avg.no'"),
        ("trajectory.choices", torch.zeros(2, 2), "trajectory: expected architectures"),
        ("trajectory.rounds", None, "trajectory: expected architectures"),
    ],
)
def test_checkpoints_with_other_tensors_are_refused(
    name: str, change: Tensor | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "search.safetensors"
    search = Search(text_task(), SMALL)
    search.round()
    save_search(search, path)
    tensors = load_file(path)
    metadata = metadata_of(path)
    tensors.pop(name, None)
    if change is not None:
        tensors[name] = change
    save_file(tensors, path, metadata)
    with pytest.raises(WorkloadError, match=message):
        resume_search(path, text_task())


def metadata_of(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        found: dict[str, str] = file.metadata()
    return found


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rounds", 0),
        ("samples", 2.5),
        ("shared_rate", 0.0),
        ("controller_rate", float("nan")),
        ("entropy_weight", -1.0),
        ("momentum", 1.0),
        ("baseline_decay", 1.5),
    ],
)
def test_settings_out_of_range_name_the_field(field: str, value: float) -> None:
    changed: dict[str, Any] = {field: value}
    with pytest.raises(WorkloadError, match=f"{field}: expected "):
        replace(Settings(), **changed)


def test_sizes_that_make_no_task_are_refused() -> None:
    data = shape_images(num_training=24, num_validation=12, size=8)
    with pytest.raises(WorkloadError, match=r"batch_size: expected at most 12, .*, got 13"):
        ImageTask(data, batch_size=13)
    text = grammar_text(num_sentences=2)
    with pytest.raises(WorkloadError, match="steps: expected less than"):
        TextTask(text, steps=500)
    with pytest.raises(WorkloadError, match="reward_scale: expected a number above 0, got 0"):
        TextTask(text, steps=1, reward_scale=0.0)

import dataclasses
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from baseline_problems import cluster, op_graph, problem_of, two_chains
from placeto_baselines import BaselineError, RnnPlacer, RnnSettings, TrainedRnnPlacer
from placeto_baselines.placement_trials import PlacementTrials
from placeto_baselines.rnn import model as rnn_model
from placeto_baselines.rnn.model import (
    Encoded,
    GraphBatch,
    GroupEmbedding,
    PlacementModel,
    Written,
    batch_of,
    chosen,
    entropy,
    placements_of,
)
from placeto_baselines.rnn.policy import Trainer, train_policy
from placeto_graphs import EvaluationBatch, Evaluator, PlacementProblem
from plain_evaluator import PlainEvaluator

SMALL = RnnSettings(
    hidden_size=16, max_groups=8, max_outputs=2, samples_per_update=10, evaluations=40
)


def chains(length: int) -> PlacementProblem:
    """Two chains of ops of half a second on two GPUs."""
    count = 2 * length
    graph = op_graph(count, [(op, op + 2) for op in range(count - 2)])
    return problem_of(graph, cluster(["k80", "k80"], bandwidth=10.0), np.full((count, 2), 0.5))


def model_of(problems: list[PlacementProblem], seed: int) -> tuple[PlacementModel, GraphBatch]:
    embedding = GroupEmbedding.of_problems(problems, SMALL.max_groups, SMALL.max_outputs)
    generator = torch.Generator().manual_seed(seed)
    model = PlacementModel(embedding.num_features, problems[0].num_devices, SMALL, generator)
    return model, batch_of(problems, embedding)


def log_probability(
    model: PlacementModel, encoded: Encoded, devices: torch.Tensor, written: Written | None = None
) -> torch.Tensor:
    """Return float32[N, B], the log-probability of placements int64[N, B, L]."""
    return chosen(model.log_probabilities(encoded, devices, written), devices, encoded)


def all_devices(num_devices: int, length: int) -> torch.Tensor:
    """Return int64[1, D ** L, L], all placements of a graph."""
    return torch.cartesian_prod(*[torch.arange(num_devices)] * length)[None]


def unequal_problems() -> list[PlacementProblem]:
    single = problem_of(op_graph(1, []), cluster(["k80", "k80"]), np.ones((1, 2)))
    return [chains(3), single, chains(2)]


def test_the_embedding_by_hand() -> None:
    graph = op_graph(
        3,
        [(0, 1), (0, 2), (1, 2)],
        op_types=["mm", "relu", "softmax"],
        tensor_bytes=np.array([2**40, 0, 1]),
    )
    problem = problem_of(graph, cluster(["k80"]), np.ones((3, 1)))
    embedding = GroupEmbedding(op_types=("mm", "relu"), max_groups=4, max_outputs=2)
    expected = [
        # op types, sizes of outputs, what it reads, what it sends; softmax is not known
        [1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0],
        [0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0],
        [0, 0, 1, np.log(2) / np.log1p(2.0**40), 0, 1, 1, 0, 0, 0, 0, 0, 0],
    ]
    np.testing.assert_allclose(embedding.vectors(problem), expected)


def test_entropy_keeps_a_policy_undecided() -> None:
    problem = chains(3)

    def final_entropy(weight: float) -> float:
        settings = dataclasses.replace(
            SMALL, learning_rate=0.01, evaluations=400, entropy_weight=weight
        )
        policy, _ = train_policy([PlainEvaluator(problem)], settings, seed=0)
        with torch.no_grad():
            encoded = policy.model.encode(batch_of([problem], policy.embedding))
            written = policy.model.sample(encoded, 50, torch.Generator().manual_seed(0))
            log_probabilities = policy.model.log_probabilities(encoded, written.devices, written)
            return float(entropy(log_probabilities, encoded).mean())

    assert final_entropy(1.0) > 2 * final_entropy(0.0)


def trainer_of(problem: PlacementProblem, evaluator: Evaluator | None = None) -> Trainer:
    model, graphs = model_of([problem], seed=0)
    trials = [PlacementTrials(problem, evaluator or PlainEvaluator(problem))]
    return Trainer(model, graphs, trials, SMALL, torch.Generator().manual_seed(0))


def test_a_gradient_step_makes_better_placements_likelier() -> None:
    problem = chains(2)
    trainer, every = trainer_of(problem), all_devices(2, 4)
    cost = PlainEvaluator(problem).evaluate(placements_of(problem, every[0])).runtime

    def expected_runtime() -> float:
        encoded = trainer.model.encode(trainer.graphs)
        probability = log_probability(trainer.model, encoded, every).exp().detach().numpy()[0]
        return float(probability @ cost)

    runtime_at_first = expected_runtime()
    for _ in range(5):
        trainer.update([0], samples=200)
    assert expected_runtime() < runtime_at_first


def test_the_baseline_is_a_moving_average_of_the_square_roots() -> None:
    trainer = trainer_of(problem_of(op_graph(1, []), cluster(["k80"]), np.full((1, 1), 4.0)))
    trainer.update([0], samples=3)
    assert trainer.baseline.tolist() == [2.0]
    trainer.baseline[0] = 12.0
    trainer.update([0], samples=3)
    assert trainer.baseline.tolist() == pytest.approx([0.9 * 12 + 0.1 * 2])


def test_memory_that_lacks_costs_2_s_for_each_gb_in_the_reward() -> None:
    class Heavy(PlainEvaluator):
        def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
            peaks = self.problem.cluster.memory_bytes + 6 * 10**9
            peak_memory = np.tile(peaks, (len(placements), 1))
            return dataclasses.replace(super().evaluate(placements), peak_memory=peak_memory)

    problem = problem_of(op_graph(1, []), cluster(["k80"]), np.full((1, 1), 4.0))
    trainer = trainer_of(problem, Heavy(problem))
    trainer.update([0], samples=3)
    assert trainer.baseline.tolist() == [4.0]  # the root of 4 s and 12 s


def test_advantages_are_over_the_average_before_the_update() -> None:
    gradients = []
    for decay in (0.9, 0.0):  # with 0 the average becomes the mean of the new rewards
        trainer = trainer_of(chains(2))
        trainer.settings = dataclasses.replace(SMALL, baseline_decay=decay)
        trainer.baseline[0], trainer.entropy_weight = 12.0, 0.0
        trainer.update([0], samples=3)
        gradients.append([weight.grad for weight in trainer.model.parameters()])
    for gradient, expected in zip(*gradients, strict=True):
        assert gradient is not None
        assert expected is not None
        assert torch.equal(gradient, expected)
    assert any(gradient.any() for gradient in gradients[0] if gradient is not None)


def test_the_weight_of_entropy_falls_linearly_with_the_evaluations_that_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, weights = trainer_of(chains(2)), list[float]()
    monkeypatch.setattr(trainer, "update", lambda *_: weights.append(trainer.entropy_weight))
    trainer.train()  # 40 evaluations, ten for an update
    assert weights == pytest.approx(
        [SMALL.entropy_weight * share for share in (1, 0.75, 0.5, 0.25)]
    )


@pytest.mark.parametrize("gradient_norm", [1e-3, 1e-5])
def test_a_gradient_is_clipped_to_its_norm(gradient_norm: float) -> None:
    trainer = trainer_of(chains(2))
    trainer.settings = dataclasses.replace(SMALL, gradient_norm=gradient_norm)
    trainer.baseline[0] = 12.0  # far from all rewards
    trainer.update([0], samples=10)
    gradients = [weight.grad for weight in trainer.model.parameters() if weight.grad is not None]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    assert float(norm) == pytest.approx(gradient_norm, rel=0.01)


def test_what_cannot_run_does_not_count() -> None:
    class Broken(PlainEvaluator):
        """Says of every placement that it cannot run."""

        def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
            cannot_run = np.full(len(placements), np.inf)
            return dataclasses.replace(super().evaluate(placements), runtime=cannot_run)

    trainer = trainer_of(chains(2), Broken(chains(2)))
    first_weights = [weight.clone() for weight in trainer.model.parameters()]
    trainer.update([0], samples=3)
    assert np.isnan(trainer.baseline).all()
    assert all(map(torch.equal, first_weights, trainer.model.parameters()))


def test_a_policy_is_trained_on_a_set_and_applied_to_another() -> None:
    evaluators = [PlainEvaluator(problem) for problem in unequal_problems()]
    settings = dataclasses.replace(SMALL, graphs_per_update=2, evaluations=25)
    trained = RnnPlacer(settings).train(evaluators, seed=1)
    assert sum(evaluator.evaluated for evaluator in evaluators) <= 75
    assert all(evaluator.evaluated > 0 for evaluator in evaluators)
    longer = chains(4)
    evaluator = PlainEvaluator(longer)
    assert trained.place(longer, evaluator).evaluations == evaluator.evaluated == 1
    several = TrainedRnnPlacer(trained.policy, max_evaluations=9).place(
        longer, PlainEvaluator(longer)
    )
    assert several.evaluations == 9


def test_a_seed_gives_one_policy_and_leaves_the_global_randomness_alone() -> None:
    problem = chains(2)
    state = torch.random.get_rng_state()
    first, second = (train_policy([PlainEvaluator(problem)], SMALL, 7)[0] for _ in range(2))
    of_other_seed, _ = train_policy([PlainEvaluator(problem)], SMALL, 8)
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = first.model.state_dict()
    assert all(torch.equal(weights[name], w) for name, w in second.model.state_dict().items())
    assert any(
        not torch.equal(weights[name], w) for name, w in of_other_seed.model.state_dict().items()
    )


@pytest.fixture
def trained() -> TrainedRnnPlacer:
    return RnnPlacer(SMALL).train([PlainEvaluator(chains(2))])


def test_a_saved_policy_places_the_same(trained: TrainedRnnPlacer, tmp_path: Path) -> None:
    trained.save(tmp_path / "policy.safetensors")
    again = TrainedRnnPlacer.load(tmp_path / "policy.safetensors", max_evaluations=5)
    assert again.policy.settings == trained.policy.settings
    assert again.policy.embedding == trained.policy.embedding
    problem = chains(3)
    expected = trained.policy.placements(problem, 5, seed=2)
    assert again.policy.placements(problem, 5, seed=2).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("suffix", "change", "message"),
    [
        (".json", lambda text: text.replace(b"rnn-policy", b"other"), "expected format"),
        (".json", lambda text: text.replace(b'"version": 3', b'"version": 1'), "got 'placeto-rnn"),
        (".json", lambda text: text.replace(b'"hidden_size": 16', b'"hidden_size": 3'), "even"),
        (".json", lambda text: text.replace(b'_devices": 2', b'_devices": 3'), "size mismatch"),
        (".safetensors", lambda content: content[:40], "policy.safetensors: expected the weights"),
    ],
)
def test_a_wrong_file_is_named(
    suffix: str, change: Any, message: str, trained: TrainedRnnPlacer, tmp_path: Path
) -> None:
    trained.save(tmp_path / "policy.safetensors")
    path = tmp_path / f"policy{suffix}"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BaselineError, match=re.escape(message)) as caught:
        TrainedRnnPlacer.load(tmp_path / "policy.safetensors")
    assert "\n" not in str(caught.value)


def test_what_a_policy_cannot_do_is_named(trained: TrainedRnnPlacer) -> None:
    small, large, on_three = map(PlainEvaluator, (chains(2), chains(5), two_chains()))
    refused: dict[str, Callable[[], object]] = {
        "expected 2 devices, as the policy was": lambda: trained.place(on_three.problem, on_three),
        "expected at most 8 groups (max_groups)": lambda: trained.place(large.problem, large),
        "expected a name that ends in .safetensors": lambda: trained.save("policy.pt"),
        "one number of devices, got [2, 3]": lambda: RnnPlacer(SMALL).train([small, on_three]),
        "one number of devices, got none": lambda: RnnPlacer(SMALL).train([]),
        "max_evaluations: expected at least 1, got 0": lambda: TrainedRnnPlacer(trained.policy, 0),
    }
    for message, act in refused.items():
        with pytest.raises(BaselineError, match=re.escape(message)):
            act()


def test_missing_torch_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("placeto_baselines.rnn.")]:
        if module.rpartition(".")[2] in {"model", "policy"}:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr("placeto_baselines.rnn.policy", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    message = "torch is not installed: pip install 'placeto-baselines[rnn]'"
    with pytest.raises(BaselineError, match=f"^{re.escape(message)}$"):
        RnnPlacer(SMALL).place(chains(1), PlainEvaluator(chains(1)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluations": 0}, "evaluations: expected at least 1 evaluation, got 0"),
        ({"hidden_size": 7}, "hidden_size: expected an even number of units, got 7"),
        ({"baseline_decay": 1.0}, "baseline_decay: expected a part from 0 to below 1, got 1.0"),
        ({"entropy_weight": -1.0}, "entropy_weight: expected a number of at least 0, got -1.0"),
    ],
)
def test_a_wrong_hyperparameter_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BaselineError, match=re.escape(message)):
        RnnSettings(**changes)


# The policy network, compared with autograd alone and with all placements at once.


def test_padding_changes_nothing() -> None:
    problems = unequal_problems()
    model, graphs = model_of(problems, seed=2)
    encoded = model.encode(graphs)
    written = model.sample(encoded, 4, torch.Generator().manual_seed(3))
    together = log_probability(model, encoded, written.devices)
    likeliest = model.most_likely(encoded)
    for row, problem in enumerate(problems):
        alone = graphs.rows([row])
        assert alone.vectors.shape[1] == problem.num_groups
        devices = written.devices[row : row + 1, :, : problem.num_groups]
        encoded_alone = model.encode(alone)
        expected = log_probability(model, encoded_alone, devices)[0]
        assert torch.allclose(together[row], expected, atol=1e-5)
        assert torch.equal(
            model.most_likely(encoded_alone)[0], likeliest[row, : problem.num_groups]
        )


def plain_log_probability(
    model: PlacementModel, graphs: GraphBatch, devices: torch.Tensor
) -> torch.Tensor:
    """The log-probability by autograd alone, one place after the other."""
    encoded = model.encode(graphs)
    rows, samples, length = devices.shape
    start = torch.full((rows, samples, 1), model.num_devices)
    inputs = model.device_embedding(torch.cat([start, devices[:, :, :-1]], dim=-1))
    first = [x.repeat_interleave(samples, dim=0)[None] for x in (encoded.hidden, encoded.cell)]
    hidden, _ = model.decoder(inputs.flatten(0, 1), first)
    hidden = hidden.view(rows, samples, length, -1)
    total = torch.zeros(rows, samples)
    for place in range(length):
        query = model.attention_query(hidden[:, :, place])[:, :, None]
        scores = model.attention_score(torch.tanh(encoded.keys[:, None] + query)).squeeze(-1)
        weights = scores.masked_fill(~graphs.mask[:, None], -torch.inf).softmax(dim=-1)
        raw = model.device_logits(torch.cat([hidden[:, :, place], weights @ encoded.states], -1))
        logits = SMALL.tanh_constant * torch.tanh(raw / SMALL.temperature)
        logits = logits.masked_fill(~graphs.allowed[:, place, None], -torch.inf)
        chosen = logits.log_softmax(dim=-1).gather(-1, devices[:, :, place, None]).squeeze(-1)
        total = total + torch.where(graphs.mask[:, place, None], chosen, 0.0)
    return total


@pytest.mark.parametrize("chunk", [2**20, 2**8])
def test_log_probability_and_gradient_are_those_of_plain_autograd(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rnn_model, "CHUNK", chunk)
    model, graphs = model_of(unequal_problems(), seed=9)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():  # far from 0, so that every nonlinearity bends
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.3)
    encoded = model.encode(graphs)
    written = model.sample(encoded, 5, generator)
    factors = torch.randn(3, 5, generator=generator)

    def by_weights(log_probabilities: torch.Tensor) -> list[torch.Tensor]:
        total = (factors * log_probabilities).sum()
        return list(torch.autograd.grad(total, list(model.parameters())))

    expected = plain_log_probability(model, graphs, written.devices)
    by_autograd = by_weights(expected)
    for reused in (None, written):  # teacher forcing, and from what sampling computed
        computed = log_probability(model, model.encode(graphs), written.devices, reused)
        assert torch.allclose(computed, expected, atol=1e-4)
        for gradient, expected_gradient in zip(by_weights(computed), by_autograd, strict=True):
            assert torch.allclose(gradient, expected_gradient, rtol=1e-3, atol=1e-4)
            assert expected_gradient.abs().max() > 1e-3


def test_the_mean_entropy_of_the_groups_is_that_of_all_placements() -> None:
    compute_time = np.ones((4, 3))
    compute_time[1, 0] = np.inf
    model, graphs = model_of([two_chains(compute_time=compute_time)], seed=4)
    encoded = model.encode(graphs)
    every = all_devices(3, 4)
    probability = log_probability(model, encoded, every).exp()
    expected = -torch.special.xlogy(probability, probability).sum()
    by_group = entropy(model.log_probabilities(encoded, every), encoded)
    mean_entropy = (probability * by_group)[probability > 0].sum()
    assert mean_entropy.item() == pytest.approx(expected.item(), abs=1e-4)
    (slope,) = torch.autograd.grad(by_group.mean(), [model.device_logits.weight])
    assert slope.isfinite().all()


def test_samples_are_drawn_with_their_probability() -> None:
    model, graphs = model_of([chains(1)], seed=5)
    encoded = model.encode(graphs)
    devices = model.sample(encoded, 4000, torch.Generator().manual_seed(0)).devices
    every = all_devices(2, 2)
    expected = log_probability(model, model.encode(graphs), every).exp()[0].tolist()
    counts = torch.bincount(devices[0, :, 0] * 2 + devices[0, :, 1], minlength=4) / 4000
    assert counts.tolist() == pytest.approx(expected, abs=0.04)


def test_the_forget_gates_start_open() -> None:
    model, _ = model_of([chains(2)], seed=0)
    weights = model.state_dict()
    for name, size in {"encoder": SMALL.hidden_size // 2, "decoder": SMALL.hidden_size}.items():
        bias = weights[f"{name}.bias_ih_l0"].tolist()
        assert bias == [0.0] * size + [1.0] * size + [0.0] * 2 * size
        assert not weights[f"{name}.bias_hh_l0"].any()

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from baseline_problems import cluster
from baseline_problems import op_graph
from baseline_problems import problem_of
from baseline_problems import random_problem
from baseline_problems import two_chains
from placeto_baselines import BaselineError
from placeto_baselines import RnnPlacer
from placeto_baselines import RnnSettings
from placeto_baselines import TrainedRnnPlacer
from placeto_baselines.rnn import attention
from placeto_baselines.rnn.embedding import GroupEmbedding
from placeto_baselines.rnn.graphs import GraphBatch
from placeto_baselines.rnn.graphs import batch_of
from placeto_baselines.rnn.graphs import placements_of
from placeto_baselines.rnn.model import PlacementModel
from placeto_baselines.rnn.policy import train_policy
from placeto_baselines.rnn.trainer import Trainer
from placeto_baselines.trials import Trials
from placeto_graphs import PlacementProblem
from plain_evaluator import PlainEvaluator

SMALL = RnnSettings(hidden_size=16, max_groups=8, max_outputs=2, evaluations=40)


def chains(length: int, order: list[int] | None = None) -> PlacementProblem:
    """Two chains of ops of half a second on two GPUs, in the order of their links or another."""
    count = 2 * length
    place = order or list(range(count))
    edges = [(place[op], place[op + 2]) for op in range(count - 2)]
    return problem_of(
        op_graph(count, edges), cluster(["k80", "k80"], bandwidth=10.0), np.full((count, 2), 0.5)
    )


def model_of(problems: list[PlacementProblem], seed: int) -> tuple[PlacementModel, GraphBatch]:
    embedding = GroupEmbedding.of_problems(problems, SMALL.max_groups, SMALL.max_outputs)
    generator = torch.Generator().manual_seed(seed)
    model = PlacementModel(embedding.num_features, problems[0].num_devices, SMALL, generator)
    return model, batch_of(problems, embedding)


def unequal_problems() -> list[PlacementProblem]:
    single = problem_of(op_graph(1, []), cluster(["k80", "k80"]), np.ones((1, 2)))
    return [chains(3), single, chains(2)]


def test_the_published_hyperparameters_are_the_defaults() -> None:
    settings = RnnSettings()
    assert (settings.hidden_size, settings.tanh_constant, settings.temperature) == (512, 5, 10)
    assert (settings.learning_rate, settings.gradient_norm) == (0.1, 1.0)
    assert (settings.baseline_decay, settings.failing_signal) == (0.9, 100.0)


def test_the_embedding_by_hand() -> None:
    graph = op_graph(
        3,
        [(0, 1), (0, 2), (1, 2)],
        op_types=["mm", "relu", "softmax"],
        tensor_bytes=np.array([2**40, 0, 1]),
    )
    problem = problem_of(graph, cluster(["k80"]), np.ones((3, 1)))
    embedding = GroupEmbedding(op_types=("mm", "relu"), max_groups=4, max_outputs=2)
    vectors = embedding.vectors(problem)
    assert vectors[:, :3].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]  # softmax is not known
    assert vectors[:, 3].tolist() == pytest.approx([1, 0, np.log(2) / np.log1p(2.0**40)])
    assert vectors[:, 4].tolist() == [0, 0, 0]
    assert vectors[:, 5:9].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    assert vectors[:, 9:].tolist() == [[0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]


def test_attention_sums_to_one_and_masks_padding() -> None:
    model, graphs = model_of(unequal_problems(), seed=0)
    encoded = model.encode(graphs)
    hidden = torch.randn(3, 5, SMALL.hidden_size, generator=torch.Generator().manual_seed(1))
    weights, _ = model.attention(encoded, hidden)
    assert weights.shape == (3, 5, 6)
    assert torch.allclose(weights.sum(dim=-1), torch.ones(3, 5))
    assert (weights[1, :, 1:] == 0).all()
    assert (weights[2, :, 4:] == 0).all()
    assert (weights[0] > 0).all()


def test_padding_changes_nothing() -> None:
    problems = unequal_problems()
    model, graphs = model_of(problems, seed=2)
    encoded = model.encode(graphs)
    written = model.sample(encoded, 4, torch.Generator().manual_seed(3))
    likeliest = model.most_likely(encoded)
    for row, problem in enumerate(problems):
        alone = graphs.rows([row])
        assert alone.vectors.shape[1] == problem.num_groups
        here = written.devices[row : row + 1, :, : problem.num_groups]
        encoded_alone = model.encode(alone)
        expected = model.log_probability(encoded_alone, here)[0]
        assert torch.allclose(written.log_probability[row], expected, atol=1e-5)
        assert torch.equal(
            model.most_likely(encoded_alone)[0], likeliest[row, : problem.num_groups]
        )


@hypothesis_settings(max_examples=25)
@given(seed=st.integers(0, 2**31))
def test_the_log_probability_of_a_sample_is_that_of_teacher_forcing(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed))
    model, graphs = model_of([problem], seed)
    encoded = model.encode(graphs)
    written = model.sample(encoded, 7, torch.Generator().manual_seed(seed))
    forced = model.log_probability(encoded, written.devices)
    assert torch.allclose(written.log_probability, forced, atol=1e-5)
    for placement in placements_of(problem, written.devices[0]):
        problem.check_placement(placement)


def plain_log_probability(
    model: PlacementModel, graphs: GraphBatch, devices: torch.Tensor
) -> torch.Tensor:
    """The log-probability by PyTorch's LSTM and autograd alone, one place after the other."""
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
    monkeypatch.setattr(attention, "CHUNK", chunk)
    model, graphs = model_of(unequal_problems(), seed=9)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():  # far from 0, so that every nonlinearity bends
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.3)
    encoded = model.encode(graphs)
    written = model.sample(encoded, 5, generator)
    factors = torch.randn(3, 5, generator=generator)

    def gradients(log_probability: torch.Tensor) -> list[torch.Tensor]:
        total = (factors * log_probability).sum()
        return list(torch.autograd.grad(total, list(model.parameters())))

    expected = plain_log_probability(model, graphs, written.devices)
    assert torch.allclose(written.log_probability, expected, atol=1e-4)
    by_autograd = gradients(expected)
    for known in (None, written):  # teacher forcing, and from what sampling computed
        found = model.log_probability(model.encode(graphs), written.devices, known)
        assert torch.allclose(found, expected, atol=1e-4)
        for gradient, other in zip(gradients(found), by_autograd, strict=True):
            assert torch.allclose(gradient, other, rtol=1e-3, atol=1e-4)
            assert other.abs().max() > 1e-3


def test_probabilities_of_all_placements_sum_to_one() -> None:
    compute_time = np.ones((4, 3))
    compute_time[1, 0] = np.inf
    problem = two_chains(compute_time=compute_time)
    model, graphs = model_of([problem], seed=4)
    every = torch.cartesian_prod(*(torch.arange(3) for _ in range(4)))[None]
    probability = model.log_probability(model.encode(graphs), every).exp()
    assert float(probability.detach().sum()) == pytest.approx(1.0, abs=1e-5)
    place = problem.group_graph.topological_order.tolist().index(1)
    assert (probability[0, every[0, :, place] == 0] == 0).all()


def test_samples_are_drawn_with_their_probability() -> None:
    model, graphs = model_of([chains(1)], seed=5)
    encoded = model.encode(graphs)
    devices = model.sample(encoded, 4000, torch.Generator().manual_seed(0)).devices
    every = torch.cartesian_prod(torch.arange(2), torch.arange(2))[None]
    expected = model.log_probability(model.encode(graphs), every).exp()[0].tolist()
    counts = torch.bincount(devices[0, :, 0] * 2 + devices[0, :, 1], minlength=4) / 4000
    assert counts.tolist() == pytest.approx(expected, abs=0.04)


def test_logits_are_bounded_by_the_tanh_constant() -> None:
    model, graphs = model_of([chains(2)], seed=6)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(100)
        encoded = model.encode(graphs)
        hidden = torch.ones(1, 1, SMALL.hidden_size)
        logits = model.logits(encoded, hidden, model.attention(encoded, hidden)[0])
    assert float(logits.abs().max()) <= SMALL.tanh_constant


def test_the_forget_gates_start_open() -> None:
    model, _ = model_of([chains(2)], seed=0)
    weights = model.state_dict()
    for layer, size in (("encoder", SMALL.hidden_size // 2), ("decoder", SMALL.hidden_size)):
        bias = weights[f"{layer}.bias_ih_l0"].tolist()
        assert bias == [0.0] * size + [1.0] * size + [0.0] * 2 * size
        assert not weights[f"{layer}.bias_hh_l0"].any()


def test_a_gradient_step_makes_better_placements_likelier() -> None:
    problem = chains(2)
    model, graphs = model_of([problem], seed=0)
    generator = torch.Generator().manual_seed(0)
    settings = dataclasses.replace(SMALL, learning_rate=0.001)
    trainer = Trainer(
        model, graphs, [Trials(problem, PlainEvaluator(problem))], settings, generator
    )
    every = torch.cartesian_prod(*(torch.arange(2) for _ in range(4)))[None]
    cost = PlainEvaluator(problem).evaluate(placements_of(problem, every[0])).runtime

    def expected_runtime() -> float:
        probability = model.log_probability(model.encode(graphs), every).exp().detach().numpy()[0]
        return float(probability @ cost)

    before = expected_runtime()
    for _ in range(5):
        trainer.update([0], samples=200)
    assert expected_runtime() < before


def test_the_baseline_is_a_moving_average_of_the_square_roots() -> None:
    problem = problem_of(op_graph(1, []), cluster(["k80"]), np.full((1, 1), 4.0))
    model, graphs = model_of([problem], seed=0)
    trials = Trials(problem, PlainEvaluator(problem))
    trainer = Trainer(model, graphs, [trials], SMALL, torch.Generator().manual_seed(0))
    trainer.update([0], samples=3)
    assert trainer.baseline.tolist() == [2.0]
    trainer.baseline[0] = 12.0
    trainer.update([0], samples=3)
    assert trainer.baseline.tolist() == pytest.approx([0.9 * 12 + 0.1 * 2])


def test_a_placement_without_memory_counts_as_the_failing_signal() -> None:
    graph = op_graph(1, [], parameter_bytes=np.array([10]))
    problem = problem_of(graph, cluster(["k80"], memory=9), np.ones((1, 1)))
    trials = Trials(problem, PlainEvaluator(problem))
    model, graphs = model_of([problem], seed=0)
    trainer = Trainer(model, graphs, [trials], SMALL, torch.Generator().manual_seed(0))
    trainer.update([0], samples=3)
    assert trainer.baseline.tolist() == [10.0]  # the root of 100 seconds
    late = dataclasses.replace(SMALL, updates_with_failures=0)
    ignoring = Trainer(model, graphs, [trials], late, torch.Generator().manual_seed(0))
    before = [weight.clone() for weight in model.parameters()]
    ignoring.update([0], samples=3)
    assert np.isnan(ignoring.baseline).all()
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_two_chains_are_learned(seed: int) -> None:
    problem = chains(3)
    settings = dataclasses.replace(SMALL, hidden_size=32, evaluations=1000, learning_rate=0.01)
    evaluator = PlainEvaluator(problem)
    policy, trials = train_policy([evaluator], settings, seed)
    assert evaluator.evaluated == trials[0].result().evaluations == 1000
    # Not only found by chance: it is what the policy thinks best.
    placement = policy.placements(problem, 1, seed=0)[0]
    assert PlainEvaluator(problem).evaluate(placement[None]).runtime[0] == 1.5
    assert placement[0::2].tolist() in ([0, 0, 0], [1, 1, 1])
    assert placement[0] != placement[1]


def test_a_policy_is_trained_on_a_set_and_applied_to_another() -> None:
    evaluators = [PlainEvaluator(problem) for problem in unequal_problems()]
    settings = dataclasses.replace(SMALL, graphs_per_update=2, evaluations=25)
    trained = RnnPlacer(settings).train(evaluators, seed=1)
    assert sum(evaluator.evaluated for evaluator in evaluators) <= 75
    assert all(evaluator.evaluated > 0 for evaluator in evaluators)
    other = chains(4)
    evaluator = PlainEvaluator(other)
    assert trained.place(other, evaluator).evaluations == evaluator.evaluated == 1
    several = TrainedRnnPlacer(trained.policy, samples=9).place(other, PlainEvaluator(other))
    assert several.evaluations == 9


def test_the_order_of_the_groups_changes_the_placement() -> None:
    # The two chains take turns, or one comes after the other: the same graph.
    turns, one_after_other = chains(3), chains(3, order=[0, 3, 1, 4, 2, 5])
    differ = 0
    for seed in range(10):
        model, graphs = model_of([turns], seed)
        embedding = GroupEmbedding.of_problems([turns], SMALL.max_groups, SMALL.max_outputs)
        first = placements_of(turns, model.most_likely(model.encode(graphs)))[0]
        encoded = model.encode(batch_of([one_after_other], embedding))
        other = placements_of(one_after_other, model.most_likely(encoded))[0]
        differ += first.tolist() != other[[0, 3, 1, 4, 2, 5]].tolist()
    assert differ > 0
    says = " ".join((RnnPlacer.__doc__ or "").split())
    assert "with its groups in another order may get another placement" in says


def test_a_seed_gives_one_policy_and_leaves_the_global_randomness_alone() -> None:
    problem = chains(2)
    state = torch.random.get_rng_state()
    first, second = (train_policy([PlainEvaluator(problem)], SMALL, 7)[0] for _ in range(2))
    other, _ = train_policy([PlainEvaluator(problem)], SMALL, 8)
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = first.model.state_dict()
    assert all(torch.equal(weights[name], w) for name, w in second.model.state_dict().items())
    assert any(not torch.equal(weights[name], w) for name, w in other.model.state_dict().items())


@pytest.fixture
def trained() -> TrainedRnnPlacer:
    return RnnPlacer(SMALL).train([PlainEvaluator(chains(2))])


def test_a_saved_policy_places_the_same(trained: TrainedRnnPlacer, tmp_path: Path) -> None:
    trained.save(tmp_path / "policy.safetensors")
    again = TrainedRnnPlacer.load(tmp_path / "policy.safetensors", samples=5)
    assert again.policy.settings == trained.policy.settings
    assert again.policy.embedding == trained.policy.embedding
    problem = chains(3)
    expected = trained.policy.placements(problem, 5, seed=2)
    assert again.policy.placements(problem, 5, seed=2).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("suffix", "change", "message"),
    [
        (".json", lambda text: text[:0], "policy.json: Input data was truncated"),
        (".json", lambda text: text.replace(b"rnn-policy", b"other"), "expected format"),
        (".json", lambda text: text.replace(b'"version": 1', b'"version": 2'), "got 'placeto-rnn"),
        (".json", lambda text: text.replace(b'"hidden_size": 16', b'"hidden_size": 3'), "even"),
        (".json", lambda text: text.replace(b'"hidden_size"', b'"hidden_sizes"'), "hidden_sizes"),
        (".json", lambda text: text.replace(b'_devices": 2', b'_devices": 3'), "size mismatch"),
        (".safetensors", lambda content: content[:40], "policy.safetensors: expected the weights"),
        (".safetensors", lambda content: content[:0], "policy.safetensors: expected the weights"),
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


def test_what_a_policy_cannot_be_applied_to_is_named(
    trained: TrainedRnnPlacer, tmp_path: Path
) -> None:
    with pytest.raises(BaselineError, match="expected 2 devices, as the policy was trained for"):
        trained.place(two_chains(), PlainEvaluator(two_chains()))
    with pytest.raises(BaselineError, match=re.escape("expected at most 8 groups (max_groups)")):
        trained.place(chains(5), PlainEvaluator(chains(5)))
    with pytest.raises(BaselineError, match=r"expected a name that ends in \.safetensors"):
        trained.save(tmp_path / "policy.pt")
    with pytest.raises(BaselineError, match=re.escape("one number of devices, got [2, 3]")):
        RnnPlacer(SMALL).train([PlainEvaluator(chains(2)), PlainEvaluator(two_chains())])
    with pytest.raises(BaselineError, match="one number of devices, got none"):
        RnnPlacer(SMALL).train([])
    with pytest.raises(BaselineError, match="samples: expected at least 1, got 0"):
        TrainedRnnPlacer(trained.policy, samples=0)


def test_missing_torch_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("placeto_baselines.rnn.")]:
        if module.rpartition(".")[2] in {"graphs", "model", "policy", "trainer"}:
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
        ({"temperature": 0.0}, "temperature: expected a number above 0, got 0.0"),
        ({"learning_rate": np.nan}, "learning_rate: expected a number above 0, got nan"),
        ({"baseline_decay": 1.0}, "baseline_decay: expected a part from 0 to below 1, got 1.0"),
        ({"samples_per_update": 0}, "samples_per_update: expected at least 1, got 0"),
    ],
)
def test_a_wrong_hyperparameter_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BaselineError, match=re.escape(message)):
        RnnSettings(**changes)

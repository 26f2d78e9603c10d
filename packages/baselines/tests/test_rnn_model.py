"""The policy network, compared with autograd alone and with all placements at once."""

import numpy as np
import pytest
import torch

from baseline_problems import two_chains
from placeto_baselines.rnn import model as rnn_model
from placeto_baselines.rnn.model import GraphBatch, PlacementModel, entropy
from recurrent_policies import (
    SMALL,
    all_devices,
    chains,
    log_probability,
    model_of,
    unequal_problems,
)


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
        here = written.devices[row : row + 1, :, : problem.num_groups]
        encoded_alone = model.encode(alone)
        expected = log_probability(model, encoded_alone, here)[0]
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

    def by_weights(found: torch.Tensor) -> list[torch.Tensor]:
        total = (factors * found).sum()
        return list(torch.autograd.grad(total, list(model.parameters())))

    expected = plain_log_probability(model, graphs, written.devices)
    by_autograd = by_weights(expected)
    for known in (None, written):  # teacher forcing, and from what sampling computed
        found = log_probability(model, model.encode(graphs), written.devices, known)
        assert torch.allclose(found, expected, atol=1e-4)
        for gradient, other in zip(by_weights(found), by_autograd, strict=True):
            assert torch.allclose(gradient, other, rtol=1e-3, atol=1e-4)
            assert other.abs().max() > 1e-3


def test_the_mean_entropy_of_the_groups_is_that_of_all_placements() -> None:
    compute_time = np.ones((4, 3))
    compute_time[1, 0] = np.inf
    model, graphs = model_of([two_chains(compute_time=compute_time)], seed=4)
    encoded = model.encode(graphs)
    every = all_devices(3, 4)
    probability = log_probability(model, encoded, every).exp()
    expected = -torch.special.xlogy(probability, probability).sum()
    by_group = entropy(model.log_probabilities(encoded, every), encoded)
    found = (probability * by_group)[probability > 0].sum()
    assert found.item() == pytest.approx(expected.item(), abs=1e-4)
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

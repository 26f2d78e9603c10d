"""Unrolled networks: each step against PyTorch's own layers, and what sees what."""

import math
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies
from torch import Tensor, nn

from model_checks import parameter_count, parameters_without_gradient
from placeto_workloads import (
    Activation,
    RecurrentCell,
    TrainingStep,
    UniformSampler,
    WorkloadError,
    enas_language_model,
    nmt,
)
from placeto_workloads.models.enas_recurrent import RecurrentLayer
from placeto_workloads.models.nmt import Attention, TranslationModel
from placeto_workloads.models.unrolled import LSTM, residual_lstm_step


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def small_nmt(layers: int = 2) -> TrainingStep:
    return nmt(layers=layers, steps=3, batch_size=4, units=6, vocabulary_size=9, device="cpu")


def losses_per_step(step: TrainingStep, *inputs: Tensor) -> list[float]:
    losses: dict[str, float] = {}
    handles = [
        module.register_forward_hook(
            lambda *call, name=name: losses.update({name: float(call[2].detach())})
        )
        for name, module in step.model.named_modules()
        if re.fullmatch(r"softmax\.step\d+", name)
    ]
    step.model(*inputs)
    for handle in handles:
        handle.remove()
    return list(losses.values())


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_nmt_has_the_parameters_of_its_layers(layers: int) -> None:
    units, words = 6, 9
    top = units if layers > 1 else 2 * units  # a two-way layer is twice as wide

    def lstm(inputs: int) -> int:
        return parameter_count_of(nn.LSTMCell(inputs, units)) - 4 * units  # PyTorch has two biases

    upper = [lstm(2 * units)] + [lstm(units)] * (layers - 2)
    encoder = 2 * lstm(units) + sum(upper[: layers - 1])
    decoder = layers * lstm(units + top)
    attention = top * units + units * units + units
    embeddings_and_softmax = 2 * words * units + units * words + words
    assert parameter_count(small_nmt(layers)) == (
        encoder + decoder + attention + embeddings_and_softmax
    )


def parameter_count_of(module: nn.Module) -> int:
    return sum(weights.numel() for weights in module.parameters())


def test_an_lstm_step_is_that_of_pytorch() -> None:
    ours, reference = LSTM(5, 3, num_steps=1), nn.LSTMCell(5, 3)
    with torch.no_grad():
        ours.weight.copy_(torch.cat([reference.weight_ih, reference.weight_hh], dim=1).T)
        ours.bias.copy_(reference.bias_ih + reference.bias_hh)
    word, context, state = torch.rand(2, 1), torch.rand(2, 4), (torch.rand(2, 3), torch.rand(2, 3))
    output, new_state = ours(0, (word, context), state)
    expected = reference(torch.cat([word, context], dim=1), state)
    torch.testing.assert_close(new_state, expected)
    torch.testing.assert_close(output, expected[0])


def test_a_residual_layer_adds_its_first_input_to_the_output_only() -> None:
    layer = LSTM(3 + 2, 3, 1, residual_lstm_step)
    below, context = torch.rand(2, 3), torch.rand(2, 2)
    output, (hidden, _) = layer(0, (below, context), (torch.rand(2, 3), torch.rand(2, 3)))
    torch.testing.assert_close(output, hidden + below)


def test_attention_is_the_weighted_mean_of_bahdanau() -> None:
    layer = Attention(memory_size=4, units=3, steps=1)
    memory, decoder_state = torch.rand(2, 5, 4), torch.rand(2, 3)
    context = layer(0, decoder_state, layer.keys(memory), memory)
    for sentence in range(2):
        scores = [
            torch.tanh(layer.keys.weight @ word + layer.query.T @ decoder_state[sentence])
            @ layer.score[:, 0]
            for word in memory[sentence]
        ]
        exponentials = [math.exp(float(score.detach())) for score in scores]
        weights = [value / sum(exponentials) for value in exponentials]
        expected = sum(w * word for w, word in zip(weights, memory[sentence], strict=True))
        torch.testing.assert_close(context[sentence], expected)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_a_gradient_reaches_every_parameter_of_nmt(layers: int) -> None:
    step = small_nmt(layers)
    loss = step.model(*step.example_inputs).detach()
    assert loss.shape == ()
    assert float(loss) == pytest.approx(math.log(9), abs=0.5)  # untrained: each word equally likely
    assert parameters_without_gradient(step) == []


def test_a_translation_reads_the_whole_source_and_the_words_before() -> None:
    step = small_nmt()
    source, target = step.example_inputs
    losses = losses_per_step(step, source, target)
    assert np.mean(losses) == pytest.approx(float(step.model(source, target).detach()))
    last_source = source.clone()
    last_source[-1] = (source[-1] + 1) % 9
    assert np.all(np.not_equal(losses_per_step(step, last_source, target), losses))
    second_word = target.clone()
    second_word[1] = (target[1] + 1) % 9  # predicted at step 0, read at step 1
    assert np.not_equal(losses_per_step(step, source, second_word), losses).all()
    third_word = target.clone()
    third_word[2] = (target[2] + 1) % 9
    changed = np.not_equal(losses_per_step(step, source, third_word), losses)
    assert changed.tolist() == [False, True, True]


@pytest.mark.parametrize("query_layer", [0, -1])
def test_one_layer_of_the_decoder_asks_the_attention(query_layer: int) -> None:
    model, inputs, *_ = small_nmt()
    assert isinstance(model, TranslationModel)
    model.query_layer = query_layer
    decoder_states: list[Tensor] = []
    answers: list[Tensor] = []
    layers = list(model.decoder.children())
    layers[query_layer].register_forward_hook(lambda *call: answers.append(call[2][0]))
    model.attention.register_forward_pre_hook(
        lambda _, arguments: decoder_states.append(arguments[1])
    )
    model(*inputs)
    assert len(decoder_states) == len(answers) == 3
    for decoder_state, answer in zip(decoder_states[1:], answers, strict=False):
        torch.testing.assert_close(decoder_state, answer)


def test_each_layer_and_step_computes_within_its_module() -> None:
    step = small_nmt(layers=3)
    called: list[str] = []
    for name, module in step.model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: called.append(name))
    step.model(*step.example_inputs)
    steps = [name for name in called if "step" in name]
    assert len(steps) == len(set(steps)) == 3 * (2 + 2 + 3 + 1 + 1)


def test_sizes_of_nmt_are_checked() -> None:
    with pytest.raises(WorkloadError, match="units: expected an integer from 1 to"):
        nmt(units=0)


def recurrent_cell_by_hand(
    cell: RecurrentCell, layer: RecurrentLayer, word: Tensor, state: Tensor
) -> Tensor:
    """Follow Pham et al. (2018), section 2.1, one node after the other."""
    units = state.shape[1]
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "identity": lambda x: x,
        "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
        "tanh": lambda x: (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x)),
        "relu": lambda x: x.clamp(min=0),
    }
    nodes: list[Tensor] = []
    for node, activation in enumerate(cell.activations):
        carried = state if node == 0 else nodes[cell.inputs[node - 1]]
        read = torch.cat([word, state], dim=1) if node == 0 else carried
        weight = layer.weights[node]
        value = functions[activation.value](read @ weight[:, :units])
        gate = functions["sigmoid"](read @ weight[:, units:])
        nodes.append(gate * value + (1 - gate) * carried)
    ends = [nodes[node] for node in range(len(nodes)) if node not in cell.inputs]
    return torch.stack(ends).sum(dim=0) / len(ends)


@settings(max_examples=25, deadline=None)
@given(seed=strategies.integers(0, 2**32))
def test_a_recurrent_cell_computes_what_its_architecture_says(seed: int) -> None:
    cell = UniformSampler(num_nodes=6).recurrent_cell(np.random.default_rng(seed))
    layer = RecurrentLayer(cell, units=3, steps=1)
    word, state = torch.rand(2, 3), torch.rand(2, 3)
    expected = recurrent_cell_by_hand(cell, layer, word, state)
    torch.testing.assert_close(layer(0, word, state), expected)


@settings(max_examples=10, deadline=None)
@given(seed=strategies.integers(0, 2**32))
def test_every_sampled_cell_learns_with_all_its_weights(seed: int) -> None:
    cell = UniformSampler(num_nodes=5).recurrent_cell(np.random.default_rng(seed))
    step = enas_language_model(
        cell, steps=3, batch_size=8, units=6, vocabulary_size=9, device="cpu", seed=seed
    )
    assert parameters_without_gradient(step) == []


def test_a_language_model_predicts_each_next_word_from_those_before() -> None:
    cell = UniformSampler().recurrent_cell(np.random.default_rng(0))
    step = enas_language_model(
        cell, steps=3, batch_size=4, units=6, vocabulary_size=9, device="cpu"
    )
    (words,) = step.example_inputs
    assert words.shape == (4, 4)
    losses = losses_per_step(step, words)
    last_word = words.clone()
    last_word[-1] = (words[-1] + 1) % 9
    assert np.not_equal(losses_per_step(step, last_word), losses).tolist() == [False, False, True]


def test_a_language_model_shares_the_weights_of_embedding_and_softmax() -> None:
    cell = UniformSampler().recurrent_cell(np.random.default_rng(0))
    step = enas_language_model(cell)
    embedding, first_node, other_nodes = 10_000 * 748, (2 * 748) ** 2, 11 * 748 * 2 * 748
    assert parameter_count(step) == embedding + first_node + other_nodes


def test_a_cell_reads_only_earlier_nodes() -> None:
    with pytest.raises(WorkloadError, match=r"inputs\[1\]: expected an index from 0 to 1, got 2"):
        RecurrentCell((Activation.TANH,) * 3, inputs=(0, 2))
    with pytest.raises(WorkloadError, match="inputs: expected one for each of 3 nodes"):
        RecurrentCell((Activation.TANH,) * 3, inputs=(0,))
    with pytest.raises(WorkloadError, match="activations: expected at least one node"):
        RecurrentCell((), inputs=())

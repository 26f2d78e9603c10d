"""Neural machine translation with LSTM layers and attention (Wu et al. 2016, "GNMT")."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from placeto_workloads.models.training_step import (
    TrainingStep,
    build_training_step,
    of_checked_sizes,
)
from placeto_workloads.models.unrolled import (
    LSTM,
    LSTMState,
    UnrolledLayer,
    lstm_step,
    residual_lstm_step,
    uniform_weight,
)

FIRST_RESIDUAL_LAYER = 2  # the third from the bottom (Wu et al. 2016, figure 1)


@of_checked_sizes
def nmt(
    *,
    layers: int = 2,
    steps: int = 32,
    batch_size: int = 128,
    units: int = 2_400,
    vocabulary_size: int = 32_000,
    device: torch.device | str = "meta",
    seed: int = 0,
) -> TrainingStep:
    """Return one training step of a translation model, unrolled over time.

    The model of Wu et al. (2016), section 3, with fewer layers and without dropout. Encoder and
    decoder are LSTMs, with residual connections from the third layer on. The bottom layer of the
    encoder has both directions. Attention is additive (Bahdanau et al. 2015): the bottom layer of
    the decoder at the step before queries it, and every layer of the decoder reads its result.
    There is a softmax per decoder step.

    Modules are named after layer and step: ``encoder.layer1.step4``, ``decoder.layer0.step4``,
    ``attention.step4``, ``softmax.step4``. The bottom layer of the encoder has a name for each
    direction: ``encoder.layer0.rightward.step4`` and ``encoder.layer0.leftward.step4``.

    Parameters
    ----------
    layers
        Number of LSTM layers in the encoder, and of those in the decoder.
    steps
        Number of words of a source sentence, and of a target sentence.
    batch_size
        Number of sentences in a step.
    units
        Length of embeddings, LSTM states and attention. Addanki et al. (2019) do not give it. The
        default is fitted: with 4 layers a step takes as long on a CPU as theirs.
    vocabulary_size
        Number of words of the source language, and of the target language.
    device
        Device of weights and inputs; on the default, meta, they take no memory.
    seed
        Seed of weights and inputs on any other device.

    Raises
    ------
    WorkloadError
        If a size is no whole number of at least 1, or the sizes make no network.

    Examples
    --------
    >>> step = nmt(layers=2, steps=3, batch_size=4, units=8, vocabulary_size=20)
    >>> [name for name, _ in step.model.named_modules() if name.endswith("step2")]
    ['encoder.layer0.rightward.step2', 'encoder.layer0.leftward.step2', 'encoder.layer1.step2', \
'decoder.layer0.step2', 'decoder.layer1.step2', 'attention.step2', 'softmax.step2']
    """

    def make_inputs() -> tuple[Tensor, ...]:
        source = torch.randint(vocabulary_size, (steps, batch_size))
        return source, torch.randint(vocabulary_size, (steps + 1, batch_size))

    return build_training_step(
        lambda: TranslationModel(layers, steps, units, vocabulary_size),
        make_inputs,
        device=device,
        seed=seed,
    )


class TranslationModel(nn.Module):
    """From source and target sentences to the loss of predicting each next target word."""

    # Decoder layer whose state queries the attention. By the bottom one a layer can begin with a
    # word while the layers above it still work on earlier words.
    query_layer = 0

    def __init__(self, layers: int, steps: int, units: int, vocabulary_size: int) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(vocabulary_size, units)
        self.target_embedding = nn.Embedding(vocabulary_size, units)
        self.encoder = Encoder(layers, steps, units)
        self.decoder = Decoder(layers, steps, units, context_size=self.encoder.output_size)
        self.attention = Attention(self.encoder.output_size, units, steps)
        self.softmax = Softmax(units, vocabulary_size, steps)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of int64[steps, batch] and int64[steps + 1, batch] words."""
        encoded, states = self.encoder(self.source_embedding(source).unbind())
        memory = torch.stack(encoded, dim=1)
        keys = self.attention.keys(memory)
        losses = []
        for step, word in enumerate(self.target_embedding(target[:-1]).unbind()):
            decoder_state, _ = states[self.query_layer]
            context = self.attention(step, decoder_state, keys, memory)
            output, states = self.decoder(step, word, context, states)
            losses.append(self.softmax(step, output, target[step + 1]))
        return torch.stack(losses).mean()


class Encoder(nn.Module):
    """LSTM layers, the bottom one in both directions."""

    def __init__(self, layers: int, steps: int, units: int) -> None:
        super().__init__()
        self.layer0 = TwoWayLSTM(units, steps)
        self.output_size = 2 * units
        for layer in range(1, layers):
            self.add_module(f"layer{layer}", _lstm(layer, self.output_size, units, steps))
            self.output_size = units

    def forward(self, words: Sequence[Tensor]) -> tuple[list[Tensor], list[LSTMState]]:
        zeros = torch.zeros_like(words[0])
        bottom_layer, *upper_layers = self.children()
        outputs, last_state = bottom_layer(words, (zeros, zeros))
        last_states = [last_state]
        for layer in upper_layers:
            outputs, last_state = _unrolled(layer, enumerate(outputs), (zeros, zeros))
            last_states.append(last_state)
        return outputs, last_states


class TwoWayLSTM(nn.Module):
    """Two LSTM layers on the same words, from the first to the last and the other way round."""

    def __init__(self, units: int, steps: int) -> None:
        super().__init__()
        self.rightward = LSTM(units, units, steps)
        self.leftward = LSTM(units, units, steps)

    def forward(self, words: Sequence[Tensor], start: LSTMState) -> tuple[list[Tensor], LSTMState]:
        right_outputs, _ = _unrolled(self.rightward, enumerate(words), start)
        left_outputs, last_state = _unrolled(self.leftward, reversed(list(enumerate(words))), start)
        both = zip(right_outputs, reversed(left_outputs), strict=True)
        return [torch.cat(outputs, dim=1) for outputs in both], last_state


class Decoder(nn.Module):
    """LSTM layers that read the context next to the output of the layer below."""

    def __init__(self, layers: int, steps: int, units: int, context_size: int) -> None:
        super().__init__()
        inputs = units + context_size
        for layer in range(layers):
            self.add_module(f"layer{layer}", _lstm(layer, inputs, units, steps))

    def forward(
        self, step: int, word: Tensor, context: Tensor, states: list[LSTMState]
    ) -> tuple[Tensor, list[LSTMState]]:
        features, new_states = word, []
        for layer, state in zip(self.children(), states, strict=True):
            features, new_state = layer(step, (features, context), state)
            new_states.append(new_state)
        return features, new_states


class Attention(UnrolledLayer):
    """Additive attention (Bahdanau et al. 2015; Wu et al. 2016, equation 4)."""

    def __init__(self, memory_size: int, units: int, steps: int) -> None:
        super().__init__(attention_step, steps)
        self.keys = nn.Linear(memory_size, units, bias=False)
        self.query = uniform_weight(units, units)
        self.score = uniform_weight(units, 1)

    def forward(self, step: int, decoder_state: Tensor, keys: Tensor, memory: Tensor) -> Tensor:
        """Return the context of one step, float32[batch, memory size]."""
        context: Tensor = self.at_step(step, decoder_state, keys, memory, self.query, self.score)
        return context


def attention_step(
    decoder_state: Tensor, keys: Tensor, memory: Tensor, query: Tensor, score: Tensor
) -> Tensor:
    """Return the context of one step."""
    hidden = torch.tanh(keys + torch.mm(decoder_state, query).unsqueeze(1))
    weights = torch.softmax(torch.matmul(hidden, score), dim=1)
    return torch.bmm(weights.transpose(1, 2), memory).squeeze(1)


class Softmax(UnrolledLayer):
    """A softmax over the vocabulary with its loss."""

    def __init__(self, units: int, vocabulary_size: int, steps: int) -> None:
        super().__init__(softmax_step, steps)
        self.weight = uniform_weight(units, vocabulary_size)
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))

    def forward(self, step: int, features: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of float32[batch, units] for int64[batch] labels, at one step."""
        loss: Tensor = self.at_step(step, features, labels, self.weight, self.bias)
        return loss


def softmax_step(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the loss of one step."""
    return functional.cross_entropy(torch.addmm(bias, features, weight), labels)


def _unrolled(
    layer: nn.Module, inputs: Iterable[tuple[int, Tensor]], state: LSTMState
) -> tuple[list[Tensor], LSTMState]:
    """Return the outputs of a layer for inputs with their steps, and its last state."""
    outputs = []
    for step, features in inputs:
        output, state = layer(step, (features,), state)
        outputs.append(output)
    return outputs, state


def _lstm(layer: int, inputs: int, units: int, steps: int) -> LSTM:
    compute = residual_lstm_step if layer >= FIRST_RESIDUAL_LAYER else lstm_step
    return LSTM(inputs, units, steps, compute)

"""Language models of recurrent cells from the ENAS search space (Pham et al. 2018, section 2.1)."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from placeto_workloads.models.cell_architecture import Activation, RecurrentCell
from placeto_workloads.models.training_step import (
    TrainingStep,
    build_training_step,
    of_checked_sizes,
)
from placeto_workloads.models.unrolled import UnrolledLayer, uniform_weight


@of_checked_sizes
def enas_language_model(
    cell: RecurrentCell,
    *,
    steps: int = 35,
    batch_size: int = 64,
    units: int = 748,
    vocabulary_size: int = 10_000,
    device: torch.device | str = "meta",
    seed: int = 0,
) -> TrainingStep:
    """Return one training step of a recurrent language model, unrolled over time.

    The network that Pham et al. (2018) train on Penn Treebank: one layer of the cell, whose nodes
    have highway gates, and a softmax that shares its weights with the embedding. The defaults are
    those of the authors' final training (748 units, 35 steps, batches of 64, the 10,000 words of
    Penn Treebank). Without dropout, whose masks are drawn once for all steps.

    Modules are named after the step: ``cell.step4``, ``softmax.step4``.

    Parameters
    ----------
    cell
        The architecture of the cell.
    steps
        Number of words of a sequence.
    batch_size
        Number of sequences in a step.
    units
        Length of embeddings and states.
    vocabulary_size
        Number of words.
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
    >>> cell = RecurrentCell((Activation.TANH, Activation.RELU, Activation.SIGMOID), inputs=(0, 0))
    >>> step = enas_language_model(cell, steps=2, batch_size=3, units=4, vocabulary_size=5)
    >>> step.model(*step.example_inputs).shape
    torch.Size([])
    """
    return build_training_step(
        lambda: LanguageModel(cell, steps, units, vocabulary_size),
        lambda: (torch.randint(vocabulary_size, (steps + 1, batch_size)),),
        device=device,
        seed=seed,
    )


class LanguageModel(nn.Module):
    """From sequences of words to the loss of predicting each next word."""

    def __init__(self, cell: RecurrentCell, steps: int, units: int, vocabulary_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, units)
        self.cell = RecurrentLayer(cell, units, steps)
        self.softmax = UnrolledLayer(shared_softmax_step, steps)

    def forward(self, words: Tensor) -> Tensor:
        """Return the loss of int64[steps + 1, batch], averaged over all words."""
        inputs = self.embedding(words[:-1]).unbind()
        state = torch.zeros_like(inputs[0])
        losses = []
        for step, word in enumerate(inputs):
            state = self.cell(step, word, state)
            loss = self.softmax.at_step(step, state, words[step + 1], self.embedding.weight)
            losses.append(loss)
        return torch.stack(losses).mean()


class RecurrentLayer(UnrolledLayer):
    """One layer of a recurrent cell."""

    def __init__(self, cell: RecurrentCell, units: int, steps: int) -> None:
        super().__init__(partial(recurrent_step, cell), steps)
        self.weights = nn.ParameterList(
            [
                uniform_weight(2 * units, 2 * units),  # of the first node: input and state
                *(uniform_weight(units, 2 * units) for _ in cell.inputs),
            ]
        )

    def forward(self, step: int, word: Tensor, state: Tensor) -> Tensor:
        """Return the state, float32[batch, units], after one step."""
        new_state: Tensor = self.at_step(step, word, state, list(self.weights))
        return new_state


def recurrent_step(
    cell: RecurrentCell, word: Tensor, state: Tensor, weights: Sequence[Tensor]
) -> Tensor:
    """Return the new state after one step of a recurrent cell."""
    first_activation, *later_activations = cell.activations
    cell_input = torch.cat([word, state], dim=1)
    nodes = [_highway(torch.mm(cell_input, weights[0]), state, first_activation)]
    for activation, earlier, weight in zip(
        later_activations, cell.inputs, weights[1:], strict=True
    ):
        carried = nodes[earlier]
        nodes.append(_highway(torch.mm(carried, weight), carried, activation))
    ends = [nodes[node] for node in cell.loose_ends]
    return torch.stack(ends).mean(dim=0)


def shared_softmax_step(state: Tensor, labels: Tensor, embedding: Tensor) -> Tensor:
    """Return the loss of one step, by a softmax with the weights of the embedding."""
    return functional.cross_entropy(functional.linear(state, embedding), labels)


def _highway(projected: Tensor, carried: Tensor, activation: Activation) -> Tensor:
    """Return a node (Pham et al. 2018, section 3.1): a gate mixes its value and its input."""
    hidden, gate = projected.chunk(2, dim=1)
    share = torch.sigmoid(gate)
    if activation is not Activation.IDENTITY:
        hidden = getattr(torch, activation.value)(hidden)
    return carried + share * (hidden - carried)

"""The super-network of recurrent cells: every language model of them, with shared weights."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from placeto_workloads.models.cell_architecture import RecurrentCell
from placeto_workloads.models.enas_recurrent import LanguageModel, RecurrentStep
from placeto_workloads.models.unrolled import uniform_weight


class SharedLanguageModel(nn.Module):
    """All language models that `enas_language_model` makes of one size, with shared weights.

    Each pair of a node and an earlier one that it may read has a weight of its own.

    Parameters
    ----------
    num_nodes
        Of a cell.
    units
        The length of embeddings and states.
    vocabulary_size
        Number of words.
    seed
        Of the weights. The state of PyTorch's random numbers is left as it was.

    Examples
    --------
    >>> from placeto_workloads import Activation
    >>> cell = RecurrentCell((Activation.TANH, Activation.RELU), inputs=(0,))
    >>> model = SharedLanguageModel(num_nodes=2, units=4, vocabulary_size=5)
    >>> model(cell, torch.zeros(7, 3, dtype=torch.int64)).shape
    torch.Size([])
    """

    def __init__(
        self, *, num_nodes: int = 12, units: int = 748, vocabulary_size: int = 10_000, seed: int = 0
    ) -> None:
        super().__init__()
        self.num_nodes = num_nodes
        self.units = units
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.embedding = nn.Embedding(vocabulary_size, units)
            nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
            self.first = uniform_weight(2 * units, 2 * units)
            self.weights = nn.ParameterDict(
                {
                    f"node{node}_reads{earlier}": uniform_weight(units, 2 * units)
                    for node in range(1, num_nodes)
                    for earlier in range(node)
                }
            )

    def forward(self, cell: RecurrentCell, words: Tensor) -> Tensor:
        """Return the loss of one cell, averaged over all words.

        Parameters
        ----------
        cell
            The cell.
        words
            int64[steps + 1, batch]; the first is only read, the last only predicted.
        """
        step, weights = RecurrentStep(cell), self.weights_of(cell)
        inputs = self.embedding(words[:-1])
        states = [torch.zeros_like(inputs[0])]
        for word in inputs.unbind():
            states.append(step(word, states[-1], weights))
        scores = functional.linear(torch.stack(states[1:]), self.embedding.weight)
        return functional.cross_entropy(scores.flatten(0, 1), words[1:].flatten())

    def weights_of(self, cell: RecurrentCell) -> list[Tensor]:
        """Return the weights of the nodes of a cell, in order."""
        reads = enumerate(cell.inputs, start=1)
        return [self.first, *(self.weights[f"node{node}_reads{read}"] for node, read in reads)]

    def network_of(self, cell: RecurrentCell, steps: int) -> LanguageModel:
        """Return a language model of one cell alone, with copies of the shared weights.

        Parameters
        ----------
        cell
            The cell.
        steps
            Words of a sequence.
        """
        with torch.random.fork_rng(devices=[]):
            model = LanguageModel(cell, steps, self.units, self.embedding.num_embeddings)
        with torch.no_grad():
            model.embedding.weight.copy_(self.embedding.weight)
            for copy, weight in zip(model.cell.weights, self.weights_of(cell), strict=True):
                copy.copy_(weight)
        return model

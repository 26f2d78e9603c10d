"""The controller: an LSTM that makes one decision of an architecture after the other."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from placeto_workloads import RecurrentSpace, SearchSpace

Choose = Callable[[int, Tensor], Tensor]
_INITIAL_RANGE = 0.1  # Pham et al. (2018), section 3.1


class Controller(nn.Module):
    """A distribution over the architectures of a search space (Pham et al. 2018).

    The output of the LSTM after a node marks its state. Later nodes choose states by attention over
    these marks, and operations by a layer of their own. The LSTM reads the choice next. Logits x
    become ``tanh_constant * tanh(x / temperature)``, which keeps every
    choice possible (Bello et al. 2017).

    The state of PyTorch's random numbers is left as it was.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        units: int = 100,
        temperature: float = 5.0,
        tanh_constant: float = 2.5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.space = space
        self.temperature = temperature
        self.tanh_constant = tanh_constant
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.start = nn.Parameter(torch.empty(1, units))
            self.lstm = nn.LSTMCell(units, units)
            self.operations = nn.Embedding(space.num_operations, units)
            self.operation_scores = nn.Linear(units, space.num_operations, bias=False)
            self.query = nn.Linear(units, units, bias=False)
            self.key = nn.Linear(units, units, bias=False)
            self.state_scores = nn.Linear(units, 1, bias=False)
            for weight in self.parameters():
                nn.init.uniform_(weight, -_INITIAL_RANGE, _INITIAL_RANGE)

    def forward(self, choices: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, each float32[batch], of int64[batch, decisions].

        The entropy is that of each decision given those before it, summed.
        """
        _, log_probability, entropy = self._decide(len(choices), lambda index, _: choices[:, index])
        return log_probability, entropy

    def sample(self, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return the choices of sampled architectures, int64[count, decisions]."""

        def choose(_index: int, log_probabilities: Tensor) -> Tensor:
            up_to = log_probabilities.double().exp().cumsum(dim=1)
            drawn = torch.from_numpy(generator.random((count, 1)))
            return (drawn * up_to[:, -1:] >= up_to).sum(dim=1).clamp(max=up_to.shape[1] - 1)

        with torch.no_grad():
            choices, _, _ = self._decide(count, choose)
        return choices.numpy()

    def _decide(self, count: int, choose: Choose) -> tuple[Tensor, Tensor, Tensor]:
        """Make all decisions of a batch; return choices, log-probabilities and entropies."""
        start = self.start.expand(count, -1)
        state: tuple[Tensor, Tensor] = self.lstm(start)
        chosen: list[Tensor] = []
        log_probability, entropy = torch.zeros(count), torch.zeros(count)
        for _cell in range(self.space.num_cells):
            marks: list[Tensor] = []
            for _ in range(self.space.given_states):
                state = self.lstm(start, state)
                marks.append(state[0])
            for node in _nodes(self.space):
                for is_operation in node:
                    log_probabilities = self._log_probabilities(is_operation, state[0], marks)
                    choice = choose(len(chosen), log_probabilities)
                    chosen.append(choice)
                    picked = log_probabilities.gather(1, choice[:, None]).squeeze(1)
                    log_probability = log_probability + picked
                    surprise = log_probabilities.exp() * log_probabilities
                    entropy = entropy - surprise.sum(dim=1)
                    if is_operation:
                        read = self.operations(choice)
                    else:
                        read = torch.stack(marks, dim=1)[torch.arange(count), choice]
                    state = self.lstm(read, state)
                state = self.lstm(start, state)
                marks.append(state[0])
        return torch.stack(chosen, dim=1), log_probability, entropy

    def _log_probabilities(self, is_operation: bool, output: Tensor, marks: list[Tensor]) -> Tensor:
        """Return the log-probabilities of the choices, float32[batch, choices]."""
        if is_operation:
            raw = self.operation_scores(output)
        else:
            keys = self.key(torch.stack(marks, dim=1))
            raw = self.state_scores(torch.tanh(keys + self.query(output)[:, None])).squeeze(2)
        squashed = self.tanh_constant * torch.tanh(raw / self.temperature)
        return torch.log_softmax(squashed, dim=1)


def _nodes(space: SearchSpace) -> list[list[bool]]:
    """Return of each decision of each node whether it is of an operation, and not of a state."""
    if isinstance(space, RecurrentSpace):
        return [[True], *[[False, True]] * (space.num_nodes - 1)]
    return [[False, False, True, True]] * space.num_nodes

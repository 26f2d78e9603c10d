"""REINFORCE on the square root of the memory-penalised runtime."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_baselines.rnn.graphs import GraphBatch, placements_of
from placeto_baselines.rnn.model import Encoded, PlacementModel, Written, chosen, entropy
from placeto_baselines.rnn.settings import RnnSettings
from placeto_baselines.trials import Trials


class Trainer:
    """Trains a policy on some graphs (Mirhoseini et al. 2017).

    Each update samples placements of some of the graphs, in turn. The reward of a placement is the
    square root of its memory-penalised runtime ``R(p)``, and is to become small: Addanki et al.
    (2019, appendix) give ``R(p)`` to both methods, in place of one constant for all placements that
    do not fit, which does not tell those from each other that miss by a little and by much. The
    advantage is what the reward differs by from the moving average of the rewards of its graph. The
    average starts from the first rewards. What cannot run at all does not count.

    Parameters
    ----------
    model
        The policy.
    graphs
        The N graphs.
    trials
        Evaluates the placements of each graph, and keeps the best.
    settings
        The hyperparameters.
    generator
        The source of randomness.
    """

    def __init__(
        self,
        model: PlacementModel,
        graphs: GraphBatch,
        trials: Sequence[Trials],
        settings: RnnSettings,
        generator: torch.Generator,
    ) -> None:
        self.model = model
        self.graphs = graphs
        self.trials = trials
        self.settings = settings
        self.generator = generator
        self.baseline = np.full(len(trials), np.nan)
        self.entropy_weight = settings.entropy_weight
        self.optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)

    def train(self) -> None:
        """Update the policy until the evaluations are spent."""
        left = total = self.settings.evaluations * len(self.trials)
        for rows in self._turns():
            samples = min(self.settings.samples_per_update, left // len(rows))
            if not samples:
                return
            self.entropy_weight = self.settings.entropy_weight * left / total
            self.update(rows, samples)
            left -= samples * len(rows)

    def update(self, rows: Sequence[int], samples: int) -> None:
        """Update the policy once with so many placements of each of some graphs."""
        graphs = self.graphs.rows(rows)
        encoded = self.model.encode(graphs)
        written = self.model.sample(encoded, samples, self.generator)
        rewards = np.stack(
            [
                self._rewards(self.trials[row], written.devices[position])
                for position, row in enumerate(rows)
            ]
        )
        counts = np.isfinite(rewards)
        advantages = self._advantages(rows, rewards, counts)
        if counts.any():
            scale = np.nan_to_num(self.baseline[list(rows)])  # 0 where nothing has counted yet
            self._descend(encoded, written, advantages, counts, self.entropy_weight * scale)

    def _turns(self) -> Iterator[list[int]]:
        number = min(self.settings.graphs_per_update, len(self.trials))
        waiting: list[int] = []
        while True:
            while len(waiting) < number:
                waiting += torch.randperm(len(self.trials), generator=self.generator).tolist()
            turn = sorted(set(waiting[:number]))
            waiting = waiting[number:]
            yield turn

    def _rewards(self, trials: Trials, devices: torch.Tensor) -> NDArray[np.float64]:
        """Return float64[B], the rewards; infinity where a placement cannot run."""
        rewards: NDArray[np.float64] = np.sqrt(
            trials.evaluate(placements_of(trials.problem, devices))
        )
        return rewards

    def _advantages(
        self, rows: Sequence[int], rewards: NDArray[np.float64], counts: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Return float64[N, B], what rewards differ by from the average; and move the average."""
        advantages = np.zeros_like(rewards)
        for position, row in enumerate(rows):
            if counts[position].any():
                mean = rewards[position, counts[position]].mean()
                if np.isnan(self.baseline[row]):
                    self.baseline[row] = mean
                advantages[position] = rewards[position] - self.baseline[row]
                decay = self.settings.baseline_decay
                self.baseline[row] = decay * self.baseline[row] + (1 - decay) * mean
        return advantages

    def _descend(
        self,
        encoded: Encoded,
        written: Written,
        advantages: NDArray[np.float64],
        counts: NDArray[np.bool_],
        entropy_weights: NDArray[np.float64],
    ) -> None:
        every = self.model.log_probabilities(encoded, written.devices, written)
        weight = torch.from_numpy(np.where(counts, advantages, 0.0) / counts.sum()).float()
        loss = (weight * chosen(every, written.devices, encoded)).sum()
        if entropy_weights.any():
            spread = entropy(every, encoded).mean(dim=1)
            loss = loss - (torch.from_numpy(entropy_weights).float() * spread).mean()
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.gradient_norm)
        self.optimizer.step()

"""`Trainer`: REINFORCE on one graph or on several."""

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_graphs import Evaluator
from placeto_policy.baseline import baseline_of
from placeto_policy.costs import Best, most_evaluations
from placeto_policy.counterfactuals import Counterfactuals, run_counterfactuals
from placeto_policy.earliest import MIN_SECONDS
from placeto_policy.environment import PlacementEnvironment
from placeto_policy.episodes import Choice, Episodes, run_side_by_side, sampling
from placeto_policy.errors import PolicyError
from placeto_policy.gradients import take_step
from placeto_policy.objective import add_gradient
from placeto_policy.policy import PlacementPolicy
from placeto_policy.reports import WorkerReport, from_rows, reports_of, to_rows
from placeto_policy.settings import Settings
from placeto_policy.threads import one_thread_of_torch
from placeto_policy.validation import BestPolicy, Validation
from placeto_policy.workers import OneProcess, Processes, check_same

# Below this share of a graph's total compute time, advantages are not scaled up.
SMALLEST_SPREAD = 1e-6
# In mean absolute values: moves into too small a memory cost tens of times as much as others.
LARGEST_ADVANTAGE = 4.0
# Stream of the generators that divide an update into parts: no worker has this index.
PARTS_STREAM = 2**32 - 2


@dataclass(frozen=True)
class UpdateSummary:
    """Summary of an update. With several graphs, numbers are means over those of this round.

    Attributes
    ----------
    update : int
        Number of updates so far.
    evaluations : int
        Number of evaluations so far, by all episodes and validations.
    evaluations_per_second : float
        Number of evaluations per second in this update.
    runtime : float
        Mean memory-penalised runtime of the last placements of the episodes, seconds.
    best_runtime : float
        Memory-penalised runtime of the best placement so far, seconds; the mean over graphs.
    reward : float
        Mean sum of the rewards of an episode, seconds.
    entropy : float
        Mean entropy over all steps, nats.
    learning_rate : float
        Learning rate of this update.
    gradient_norm : float
        Norm of the last summed gradient, before it was scaled.

    Examples
    --------
    See `Trainer`.
    """

    update: int
    evaluations: int
    evaluations_per_second: float
    runtime: float
    best_runtime: float
    reward: float
    entropy: float
    learning_rate: float
    gradient_norm: float


class Trainer:
    """Trains a policy by REINFORCE as in appendix A of Addanki et al. 2019.

    In each update, every worker runs an episode on its graph. The steps of all episodes are divided
    into parts. For each part the gradients of all workers are summed, and Adam makes a step. With
    one part this is REINFORCE, with several the surrogate of proximal policy optimization (Schulman
    et al. 2017).

    Workers take the graphs in turn, and are divided among the processes. An update depends on the
    seed, its number and the index of each worker alone. Interruptions therefore do not change a
    run.

    Parameters
    ----------
    evaluators
        Evaluators, one for each graph. All problems have D devices, or any numbers if the policy is
        for any.
    settings
        Hyperparameters, by default those of the policy. Those of the network are always those of
        the policy.
    seed
        Seed of every random choice.
    policy
        Policy to begin with, by default a new one. It is copied.
    processes
        Processes that train together; see `join_processes`.
    validation
        Evaluators of the graphs by whose greedy placements the best policy is selected
        (`Settings.selection`). By default these are the graphs of the training.

    Attributes
    ----------
    policy : `PlacementPolicy`
        Present policy.
    best_policy : `BestPolicy`
        Policy with the best placements of the graphs for validation, if the training selects it.
        It is validated after every tenth update and the last one.
    updates : int
        Number of updates that were made.
    evaluations : int
        Number of evaluations, by all episodes and validations.
    best : list of `Best` or None
        Best placement of each graph so far. Those that fit the memory come first.

    Raises
    ------
    PolicyError
        When there is no evaluator, or the numbers of devices differ.

    Examples
    --------
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> trainer = Trainer([BusiestDevice(two_chains())], Settings(updates=10))
    >>> trainer.update().evaluations <= 8 * (1 + 6 + 6)
    True
    >>> trainer.best[0].cost
    3.0
    """

    def __init__(
        self,
        evaluators: Sequence[Evaluator],
        settings: Settings | None = None,
        *,
        seed: int = 0,
        policy: PlacementPolicy | None = None,
        processes: Processes | None = None,
        validation: Sequence[Evaluator] = (),
    ) -> None:
        self.settings = settings or (policy.settings if policy else Settings())
        shown = policy.settings if policy else self.settings
        if not evaluators:
            raise PolicyError("evaluators: expected at least one, got none")
        num_devices = (policy and policy.num_devices) or evaluators[0].problem.num_devices
        if shown.embedding != "pairs":
            _check_devices("evaluators", evaluators, num_devices)
            _check_devices("validation", validation, num_devices)
        self.seed = seed
        self.processes: Processes = processes or OneProcess()
        if self.processes.count > self.settings.workers:
            raise PolicyError(
                f"workers: expected at least one for each of {self.processes.count} processes, "
                f"got {self.settings.workers}"
            )
        self.policy = (
            copy.deepcopy(policy)
            if policy
            else PlacementPolicy(num_devices, self.settings, seed=seed)
        )
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1.0)
        self.environments = [
            PlacementEnvironment.for_policy(
                evaluator,
                self.policy.settings,
                reward=self.settings.reward,
                memory_penalty=self.settings.memory_penalty,
            )
            for evaluator in evaluators
        ]
        self.baselines = [
            baseline_of(environment.topology.num_groups, self.settings)
            for environment in self.environments
        ]
        self.best: list[Best | None] = [None] * len(self.environments)
        self.best_policy = BestPolicy()
        self._validates_on_others = bool(validation)
        self._validation = Validation(
            validation or evaluators, shown, self.settings.memory_penalty, self.processes
        )
        self.updates = 0
        self.evaluations = 0
        self._is_checked = False

    @property
    def trained_policy(self) -> PlacementPolicy:
        """Copy of the policy that the training leaves if it ends now (`Settings.selection`)."""
        return self.best_policy.restored(self.policy)

    @property
    def steps_per_update(self) -> int:
        """Number of steps of Adam in an update."""
        return self.settings.epochs * self.settings.minibatches

    def update(self) -> UpdateSummary:
        """Run an episode of every worker, and improve the policy part by part.

        Raises
        ------
        PolicyError
            When an evaluator returns an invalid result, another process failed or has another
            training, or the gradient of a part is not finite. The policy then stays as it was
            before that part.
        """
        began = time.perf_counter()
        self._check_processes()
        learning_rate = self._decayed(
            self.settings.learning_rate_start, self.settings.learning_rate_end
        )
        entropy_weight = self._decayed(
            self.settings.entropy_weight_start, self.settings.entropy_weight_end
        )
        with one_thread_of_torch():
            own = self._run_own_workers()
            reports = self._exchange([report for run in own for report in run.reports])
            advantages = self._advantages(reports)
            entropy = 0.0
            for steps_of_graphs in self._parts():
                added = self._add_gradient(own, advantages, steps_of_graphs, entropy_weight)
                summed, gradient_norm = take_step(
                    self.optimizer,
                    added,
                    self.processes,
                    learning_rate=learning_rate,
                    max_norm=self.settings.max_gradient_norm,
                    when=f"update {self.updates + 1}",
                )
                entropy += summed / self.settings.epochs
            self.updates += 1
            evaluations = self._count(reports) + self._validate()
        return UpdateSummary(
            update=self.updates,
            evaluations=self.evaluations,
            evaluations_per_second=evaluations / (time.perf_counter() - began),
            runtime=float(np.mean([report.cost for report in reports])),
            best_runtime=float(np.mean([best.cost for best in self.best if best])),
            reward=float(np.mean([report.reward for report in reports])),
            entropy=entropy / sum(len(report.returns) for report in reports),
            learning_rate=learning_rate,
            gradient_norm=gradient_norm,
        )

    def _check_processes(self) -> None:
        if not self._is_checked:
            groups = [environment.topology.num_groups for environment in self.environments]
            so_far = (self.seed, self.updates, self.evaluations, groups)
            check_same(self.processes, f"{so_far} {self.settings}", self.policy)
            self._is_checked = True

    def _decayed(self, start: float, end: float) -> float:
        progress = min(1.0, self.updates / max(1, self.settings.updates - 1))
        return start + (end - start) * progress

    def _run_own_workers(self) -> list["_Run"]:
        """Run the episodes of this process, in lockstep."""
        workers_of_graph: dict[int, list[int]] = {}
        for worker in range(self.processes.rank, self.settings.workers, self.processes.count):
            graph = (self.updates * self.settings.workers + worker) % len(self.environments)
            workers_of_graph.setdefault(graph, []).append(worker)
        generators = {
            graph: [np.random.default_rng((self.seed, worker, self.updates)) for worker in workers]
            for graph, workers in workers_of_graph.items()
        }
        choices = [self._begin(graph, some) for graph, some in generators.items()]
        environments = [self.environments[graph] for graph in generators]
        found = run_side_by_side(self.policy, environments, choices)
        return [
            self._rewarded(graph, workers, generators[graph], episodes)
            for (graph, workers), episodes in zip(workers_of_graph.items(), found, strict=True)
        ]

    def _begin(self, graph: int, generators: list[np.random.Generator]) -> Choice:
        """Begin an episode of each of some workers; return the function that chooses devices."""
        environment = self.environments[graph]
        environment.reset(
            num_episodes=len(generators),
            order=self.settings.order,
            start=self.settings.start,
            generators=generators,
        )
        return sampling(generators, environment.topology.num_groups)

    def _rewarded(
        self,
        graph: int,
        workers: list[int],
        generators: list[np.random.Generator],
        episodes: Episodes,
    ) -> "_Run":
        environment = self.environments[graph]
        counterfactuals = None
        most = most_evaluations(
            environment.evaluator.problem, self.settings.reward, self.policy.settings
        )
        evaluations = np.full(len(workers), most)
        if self.settings.reward == "counterfactual":
            episodes, counterfactuals = run_counterfactuals(environment, episodes, generators)
            evaluations -= environment.topology.num_groups - counterfactuals.evaluations
        discount = self.settings.return_discount
        best = environment.best
        reports = reports_of(episodes, best, graph, workers, evaluations.tolist(), discount)
        return _Run(graph, workers, episodes, counterfactuals, reports)

    def _exchange(self, own: list[WorkerReport]) -> list[WorkerReport]:
        """Return the reports of all workers of all processes, in the order of the workers."""
        group_counts = [environment.topology.num_groups for environment in self.environments]
        rows = self.processes.gather(to_rows(own, max(group_counts)))
        return from_rows(rows, group_counts)

    def _advantages(self, reports: list[WorkerReport]) -> list[NDArray[np.float32]]:
        """Return the advantages of each worker's steps, and add its returns to the baselines."""
        expected = {}
        for graph in sorted({report.graph for report in reports}):
            returns = np.stack([report.returns for report in reports if report.graph == graph])
            expected[graph] = self.baselines[graph].expected(returns)
            self.baselines[graph].add(returns)
        advantages = []
        for report in reports:
            advantage = report.returns - expected[report.graph]
            if self.settings.advantage_scale == "spread":
                least = SMALLEST_SPREAD * self.environments[report.graph].seconds_of_work
                spread = max(self.baselines[report.graph].spread(), least, MIN_SECONDS)
                advantage = np.clip(advantage / spread, -LARGEST_ADVANTAGE, LARGEST_ADVANTAGE)
            advantages.append(advantage.astype(np.float32))
        return advantages

    def _parts(self) -> Iterator[list[NDArray[np.int64]]]:
        """Yield the steps of each part, for each graph, which are equal in all processes."""
        count = self.settings.minibatches
        for epoch in range(self.settings.epochs):
            generator = np.random.default_rng((self.seed, PARTS_STREAM, self.updates, epoch))
            shares = [
                np.array_split(generator.permutation(baseline.means.shape[1]), count)
                for baseline in self.baselines
            ]
            for part in range(count):
                yield [np.sort(share[part]) for share in shares]

    def _add_gradient(
        self,
        own: list["_Run"],
        advantages: list[NDArray[np.float32]],
        steps_of_graphs: list[NDArray[np.int64]],
        entropy_weight: float,
    ) -> float:
        """Add the gradient of some steps of this process's episodes; return their entropy."""
        return sum(
            add_gradient(
                self.policy,
                run.episodes,
                run.counterfactuals,
                np.stack([advantages[worker] for worker in run.workers]),
                steps_of_graphs[run.graph],
                clip_ratio=self.settings.clip_ratio,
                entropy_weight=entropy_weight,
            )
            for run in own
        )

    def _count(self, reports: list[WorkerReport]) -> int:
        """Keep the best placements; count and return the evaluations."""
        for report in reports:
            best = self.best[report.graph]
            if report.best.is_better_than(best):
                self.best[report.graph] = report.best
        evaluations = sum(report.evaluations for report in reports)
        self.evaluations += evaluations
        return evaluations

    def _validate(self) -> int:
        """Validate the policy if that is due; return the number of evaluations."""
        if not self.settings.validates_after(self.updates):
            return 0
        reports = self._validation.run(self.policy)
        self.best_policy.offer(self.policy, self._validation.cost(reports))
        if self._validates_on_others:
            evaluations = sum(report.evaluations for report in reports)
            self.evaluations += evaluations
            return evaluations
        return self._count(reports)


@dataclass(frozen=True, eq=False)
class _Run:
    """The episodes of some workers on one graph."""

    graph: int
    workers: list[int]
    episodes: Episodes
    counterfactuals: Counterfactuals | None
    reports: list[WorkerReport]


def _check_devices(name: str, evaluators: Sequence[Evaluator], num_devices: int) -> None:
    for index, evaluator in enumerate(evaluators):
        if evaluator.problem.num_devices != num_devices:
            raise PolicyError(
                f"{name}[{index}]: expected a problem of {num_devices} devices, "
                f"got {evaluator.problem.num_devices}"
            )

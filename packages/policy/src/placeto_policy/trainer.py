"""`Trainer`: REINFORCE on one graph or on several. Begin to read in `Trainer.update`."""

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_graphs import Evaluator
from placeto_policy.earliest import MIN_SECONDS
from placeto_policy.environment import Best, PlacementEnvironment, most_evaluations
from placeto_policy.episodes import (
    Counterfactuals,
    Episodes,
    greedy,
    run_counterfactuals,
    run_episodes,
    run_side_by_side,
    sampling,
)
from placeto_policy.errors import PolicyError
from placeto_policy.policy import IMPOSSIBLE, PlacementPolicy
from placeto_policy.settings import RewardName, Settings
from placeto_policy.workers import Processes, check_same, one_thread_of_torch

# Below this share of a graph's total compute time, advantages are not scaled up.
SMALLEST_SPREAD = 1e-6
# In mean absolute values: moves into too small a memory cost tens of times as much as others.
LARGEST_ADVANTAGE = 4.0
# Weight of the entropy for each part of the entropy of uniform choices below the target, in mean
# absolute advantages. With 3 the entropy falls well below its target if one choice decides all.
ENTROPY_GAIN = 10.0
# Stream of the generators that divide an update into minibatches: no worker has this index.
MINIBATCH_STREAM = 2**32 - 2


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
    into minibatches. For each minibatch the gradients of all workers are summed, and Adam makes a
    step. With one minibatch this is REINFORCE, with several the surrogate of proximal policy
    optimization (Schulman et al. 2017).

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
        network_settings = policy.settings if policy else self.settings
        if not evaluators:
            raise PolicyError("evaluators: expected at least one, got none")
        num_devices = evaluators[0].problem.num_devices
        if policy and policy.num_devices:
            num_devices = policy.num_devices
        if network_settings.embedding != "pairs":
            _check_devices("evaluators", evaluators, num_devices)
            _check_devices("validation", validation, num_devices)
        self.seed = seed
        self.processes = processes or Processes()
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
            self._environment(evaluator, self.settings.reward) for evaluator in evaluators
        ]
        self.baselines = [
            TimeStepBaseline(
                environment.num_groups,
                self.settings.baseline_window,
                is_zero=self.settings.reward == "counterfactual",
            )
            for environment in self.environments
        ]
        self.best: list[Best | None] = [None] * len(self.environments)
        self.best_policy = BestPolicy()
        self._has_validation_graphs = bool(validation)
        self._validation_environments = [
            self._environment(evaluator, "terminal") for evaluator in validation or evaluators
        ]
        self.updates = 0
        self.evaluations = 0
        self._is_checked = False

    def _environment(self, evaluator: Evaluator, reward: RewardName) -> PlacementEnvironment:
        return PlacementEnvironment.for_policy(
            evaluator,
            self.policy.settings,
            reward=reward,
            memory_penalty=self.settings.memory_penalty,
        )

    @property
    def trained_policy(self) -> PlacementPolicy:
        """Copy of the policy that the training leaves if it ends now (`Settings.selection`)."""
        policy = copy.deepcopy(self.policy)
        if self.best_policy.weights:
            policy.load_state_dict(self.best_policy.weights)
        return policy

    def update(self) -> UpdateSummary:
        """Run an episode of every worker, and improve the policy by each minibatch of steps.

        Raises
        ------
        PolicyError
            When an evaluator returns an invalid result, another process failed or has another
            training, or the gradient of a minibatch is not finite. The policy then stays as it was
            before that minibatch.
        """
        began = time.perf_counter()
        settings = self.settings
        self._check_processes()
        learning_rate = self._decayed(settings.learning_rate_start, settings.learning_rate_end)
        with one_thread_of_torch():
            rollouts = self._run_workers()
            reports_of_process = []
            for rollout in rollouts:
                reports_of_process += rollout.reports
            reports = self.processes.gather(reports_of_process)
            reports.sort(key=lambda report: report.worker)
            advantages = self._advantages(reports)
            entropy_weights = {
                graph: self.entropy_weight_of(graph, reports)
                for graph in {rollout.graph for rollout in rollouts}
            }
            entropy = 0.0
            for steps_of_graphs in self._minibatches():
                entropy_of_process = 0.0
                for rollout in rollouts:
                    entropy_of_process += add_gradient(
                        self.policy,
                        rollout.episodes,
                        rollout.counterfactuals,
                        np.stack([advantages[worker] for worker in rollout.workers]),
                        steps_of_graphs[rollout.graph],
                        clip_ratio=settings.clip_ratio,
                        entropy_weight=entropy_weights[rollout.graph],
                    )
                entropy_of_minibatch, gradient_norm = take_step(
                    self.optimizer,
                    entropy_of_process,
                    self.processes,
                    learning_rate=learning_rate,
                    max_norm=settings.max_gradient_norm,
                    when=f"update {self.updates + 1}",
                )
                entropy += entropy_of_minibatch / settings.epochs
            self.updates += 1
            for report in reports:
                self._offer_best(report.graph, report.best)
            evaluations = sum(report.evaluations for report in reports)
            if settings.validates_after(self.updates):
                evaluations += self._validate()
            self.evaluations += evaluations
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
            group_counts = [environment.num_groups for environment in self.environments]
            progress = (self.seed, self.updates, self.evaluations, group_counts)
            check_same(self.processes, f"{progress} {self.settings}", self.policy)
            self._is_checked = True

    def _decayed(self, start: float, end: float) -> float:
        progress = min(1.0, self.updates / max(1, self.settings.updates - 1))
        return start + (end - start) * progress

    def _run_workers(self) -> list["_Rollouts"]:
        """Run the episodes of this process, in lockstep."""
        workers_of_graph: dict[int, list[int]] = {}
        for worker in range(self.processes.rank, self.settings.workers, self.processes.count):
            graph = (self.updates * self.settings.workers + worker) % len(self.environments)
            workers_of_graph.setdefault(graph, []).append(worker)
        environments, generators_of_graphs, choices = [], [], []
        for graph, workers in workers_of_graph.items():
            environment = self.environments[graph]
            generators = [
                np.random.default_rng((self.seed, worker, self.updates)) for worker in workers
            ]
            environment.reset(
                num_episodes=len(workers),
                order=self.settings.order,
                start=self.settings.start,
                generators=generators,
            )
            environments.append(environment)
            generators_of_graphs.append(generators)
            choices.append(sampling(generators, environment.num_groups))
        episodes_of_graphs = run_side_by_side(self.policy, environments, choices)
        return [
            self._rewarded(graph, workers, generators, episodes)
            for (graph, workers), generators, episodes in zip(
                workers_of_graph.items(), generators_of_graphs, episodes_of_graphs, strict=True
            )
        ]

    def _rewarded(
        self,
        graph: int,
        workers: list[int],
        generators: list[np.random.Generator],
        episodes: Episodes,
    ) -> "_Rollouts":
        """Return the rollouts of some workers, with the rewards and returns of the settings."""
        environment = self.environments[graph]
        counterfactuals = None
        max_evaluations = most_evaluations(
            environment.evaluator.problem, self.settings.reward, self.policy.settings
        )
        evaluations = np.full(len(workers), max_evaluations)
        if self.settings.reward == "counterfactual":
            episodes, counterfactuals = run_counterfactuals(environment, episodes, generators)
            evaluations -= environment.num_groups - counterfactuals.evaluations
        returns = discounted_returns(episodes.rewards, self.settings.return_discount)
        reports = [
            WorkerReport(
                worker=worker,
                graph=graph,
                cost=float(episodes.costs[row]),
                reward=float(episodes.rewards[row].sum()),
                best=environment.best,
                returns=returns[row],
                evaluations=int(evaluations[row]),
                uniformity=uniformity(episodes.log_probabilities[row]),
            )
            for row, worker in enumerate(workers)
        ]
        return _Rollouts(graph, workers, episodes, counterfactuals, reports)

    def _advantages(self, reports: Sequence["WorkerReport"]) -> list[NDArray[np.float32]]:
        """Return the advantages of each worker's steps, and add its returns to the baselines."""
        expected_returns = {}
        for graph in sorted({report.graph for report in reports}):
            returns = np.stack([report.returns for report in reports if report.graph == graph])
            expected_returns[graph] = self.baselines[graph].expected(returns)
            self.baselines[graph].add(returns)
        advantages = []
        for report in reports:
            advantage = report.returns - expected_returns[report.graph]
            if self.settings.advantage_scale == "spread":
                min_spread = SMALLEST_SPREAD * self.environments[report.graph].seconds_of_work
                spread = max(self.baselines[report.graph].spread(), min_spread, MIN_SECONDS)
                advantage = np.clip(advantage / spread, -LARGEST_ADVANTAGE, LARGEST_ADVANTAGE)
            advantages.append(advantage.astype(np.float32))
        return advantages

    def entropy_weight_of(self, graph: int, reports: Sequence["WorkerReport"]) -> float:
        """Return the weight of the entropy bonus on a graph in this update.

        With ``entropy_control="target"``, let e be the entropy of the episodes as a fraction of
        that of uniform choices. Its target decays linearly from 1 to 0 over all updates. The weight
        is ``10 (target - e)`` times the mean absolute advantage of the graph, and 0 above the
        target. It therefore never keeps a policy from learning that is less sure than the target.

        Parameters
        ----------
        graph
            Index of the graph.
        reports
            Episodes of this update, whose returns are in the baseline.
        """
        settings = self.settings
        if settings.entropy_control == "weight":
            return self._decayed(settings.entropy_weight_start, settings.entropy_weight_end)
        entropy = np.mean([report.uniformity for report in reports if report.graph == graph])
        shortfall = max(0.0, self._decayed(1.0, 0.0) - float(entropy))
        are_scaled = settings.advantage_scale == "spread"
        return ENTROPY_GAIN * shortfall * (1.0 if are_scaled else self.baselines[graph].spread())

    def _minibatches(self) -> Iterator[list[NDArray[np.int64]]]:
        """Yield the steps of each minibatch, for each graph, which are equal in all processes."""
        num_minibatches = self.settings.minibatches
        for epoch in range(self.settings.epochs):
            generator = np.random.default_rng((self.seed, MINIBATCH_STREAM, self.updates, epoch))
            minibatches_of_graphs = []
            for environment in self.environments:
                steps = generator.permutation(environment.num_groups)
                minibatches_of_graphs.append(np.array_split(steps, num_minibatches))
            for minibatch in range(num_minibatches):
                yield [np.sort(minibatches[minibatch]) for minibatches in minibatches_of_graphs]

    def _offer_best(self, graph: int, best: Best) -> None:
        """Make it the best placement of a graph, if it is better than that so far."""
        if best.is_better_than(self.best[graph]):
            self.best[graph] = best

    def _validate(self) -> int:
        """Place the graphs for validation greedily, and return the number of evaluations.

        The policy is kept if its costs, as fractions of the work of the graphs, are less on average
        than all before.
        """
        environments, processes = self._validation_environments, self.processes
        validations = []
        for graph in range(processes.rank, len(environments), processes.count):
            environment = environments[graph]
            environment.reset(num_episodes=1)
            episodes = run_episodes(self.policy, environment, greedy)
            validations.append((graph, float(episodes.costs[0]), environment.best))
        costs, evaluations = [], 0
        validations = processes.gather(validations)
        validations.sort(key=lambda validation: validation[0])
        for graph, cost, best in validations:
            environment = environments[graph]
            costs.append(cost / max(environment.seconds_of_work, MIN_SECONDS))
            problem = environment.evaluator.problem
            evaluations += most_evaluations(problem, "terminal", self.policy.settings)
            if not self._has_validation_graphs:
                self._offer_best(graph, best)
        self.best_policy.offer(self.policy, float(np.mean(costs)))
        return evaluations


@dataclass(frozen=True, eq=False)
class WorkerReport:
    """The episode of one worker on a graph of G groups, which processes exchange."""

    worker: int
    graph: int
    cost: float  # of the last placement, seconds
    reward: float  # sum of the rewards, seconds
    best: Best  # placement of the graph that its process has evaluated so far
    returns: NDArray[np.float64]  # [G], of each step, seconds
    evaluations: int
    uniformity: float  # entropy as a fraction of that of uniform choices


@dataclass(frozen=True, eq=False)
class _Rollouts:
    """The episodes of some workers on one graph, and what they earned."""

    graph: int
    workers: list[int]
    episodes: Episodes
    counterfactuals: Counterfactuals | None
    reports: list[WorkerReport]


def discounted_returns(rewards: NDArray[np.float64], discount: float) -> NDArray[np.float64]:
    """Return float64[B, G], the discounted sum of the rewards [B, G] from each step on."""
    returns = rewards.copy()
    for time_step in range(rewards.shape[1] - 2, -1, -1):
        returns[:, time_step] += discount * returns[:, time_step + 1]
    return returns


def uniformity(log_probabilities: NDArray[np.float32]) -> float:
    """Return the entropy of steps [G, D] as a fraction of that of uniform choices.

    Only devices that can run a group count. Steps without a choice are uniform.

    Examples
    --------
    >>> certain_and_uniform = np.log([[1.0, 1e-30], [0.5, 0.5]])
    >>> round(uniformity(certain_and_uniform), 6)
    0.5
    """
    probabilities = np.exp(log_probabilities.astype(np.float64))
    # The log-probability of a device that cannot run the group is about -1e9.
    num_devices = (log_probabilities > IMPOSSIBLE / 2).sum(axis=-1)
    greatest = np.log(num_devices).sum()
    entropy = -(probabilities * log_probabilities).sum()
    return float(entropy / greatest) if greatest else 1.0


class TimeStepBaseline:
    """The mean return of each time step over the last rounds of episodes on one graph.

    There is one for each time step and each graph (Addanki et al. 2019, appendix A). A round is all
    episodes of a graph in one update, as in the published code, which adds the present round
    before it takes the mean. Counterfactual rewards have a
    baseline in them, and expect 0 (``is_zero``).
    """

    def __init__(self, num_steps: int, window: int, *, is_zero: bool = False) -> None:
        self.window = window
        self.is_zero = is_zero
        self.means = np.zeros((0, num_steps))  # of the last rounds, the oldest first
        self.spreads = np.zeros(0)  # mean absolute advantage of each of these rounds

    def expected(self, returns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return float64[G], the return that is expected of each step.

        The first round of returns float64[episodes, G] is compared with its own mean: compared with
        0, each of its actions would be punished.
        """
        if self.is_zero:
            return np.zeros(returns.shape[1])
        rounds = self.means if len(self.means) else returns
        mean: NDArray[np.float64] = rounds.mean(axis=0)
        return mean

    def add(self, returns: NDArray[np.float64]) -> None:
        """Add a round of returns float64[episodes, G]."""
        spread = np.abs(returns - self.expected(returns)).mean()
        self.means = np.concatenate([self.means, returns.mean(axis=0)[None]])[-self.window :]
        self.spreads = np.append(self.spreads, spread)[-self.window :]

    def spread(self) -> float:
        """Return the mean absolute advantage of the rounds, of which there is one at least.

        A few large advantages would decide a root mean square.
        """
        return float(self.spreads.mean())


def add_gradient(
    policy: PlacementPolicy,
    episodes: Episodes,
    counterfactuals: Counterfactuals | None,
    advantages: NDArray[np.float32],
    steps: NDArray[np.int64],
    *,
    clip_ratio: float,
    entropy_weight: float,
) -> float:
    """Add the gradient of some steps of some episodes; return the sum of their entropies.

    Let r be ``p(action) / p(action when the episode was run)``. The objective is the sum of
    ``min(r A, clip(r, 1 - c, 1 + c) A)`` (Schulman et al. 2017, equation 7) and of the weighted
    entropies. Before the first step of Adam r is 1, and the gradient is that of ``log p A``, as in
    REINFORCE.

    A counterfactual advantage counts for both devices. Times half the weight of their comparison,
    it counts for the action, and with a minus sign for the other device.
    """
    actions = episodes.actions()
    if counterfactuals:
        half_advantages = 0.5 * counterfactuals.weights * advantages
        surrogates = [(actions, half_advantages), (counterfactuals.devices, -half_advantages)]
    else:
        surrogates = [(actions, advantages)]
    entropy_sum = 0.0
    for batch_steps, states in episodes.states(steps):
        log_probabilities = policy(states)
        old_log_probabilities = _by_state(episodes.log_probabilities[:, batch_steps])
        entropy = -(log_probabilities.exp() * log_probabilities).sum()
        objective = entropy_weight * entropy
        for devices, device_advantages in surrogates:
            device = _by_state(devices[:, batch_steps])[:, None]
            advantage = _by_state(device_advantages[:, batch_steps])
            ratio = (log_probabilities - old_log_probabilities).gather(1, device)[:, 0].exp()
            clipped_ratio = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
            surrogate = torch.minimum(ratio * advantage, clipped_ratio * advantage)
            objective = objective + surrogate.sum()
        (-objective).backward()
        entropy_sum += float(entropy.detach())
    return entropy_sum


def _by_state(steps_of_episodes: NDArray[np.float32] | NDArray[np.int64]) -> torch.Tensor:
    """Return [S B, ...] for [B, S, ...]: states come step by step."""
    return torch.from_numpy(steps_of_episodes.swapaxes(0, 1).copy()).flatten(0, 1)


def take_step(
    optimizer: torch.optim.Optimizer,
    entropy: float,
    processes: Processes,
    *,
    learning_rate: float,
    max_norm: float,
    when: str,
) -> tuple[float, float]:
    """Sum gradients over the processes, scale the sum down if it is too long, and take a step.

    A parameter without a gradient has zeros. The entropy of this process is summed with the
    gradients. Return that sum, and the norm of the gradient before it was scaled. If the norm is
    not finite, no step is taken.
    """
    (group,) = optimizer.param_groups
    gradients = []
    for parameter in group["params"]:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    flat_gradients = [gradient.flatten() for gradient in gradients]
    gradient_and_entropy = torch.cat([*flat_gradients, torch.tensor([entropy])])
    processes.sum(gradient_and_entropy)
    whole_gradient = gradient_and_entropy[:-1]
    norm = float(whole_gradient.norm())
    if not math.isfinite(norm):
        raise PolicyError(f"gradient: expected finite numbers at {when}, got norm {norm}")
    whole_gradient *= min(1.0, max_norm / max(norm, 1e-12))
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, scaled in zip(gradients, torch.split(whole_gradient, sizes), strict=True):
        gradient.copy_(scaled.view_as(gradient))
    group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad()
    return float(gradient_and_entropy[-1]), norm


class BestPolicy:
    """The best weights so far.

    A policy that is nearly sure of each step may leave a good solution, and not return to it.
    """

    def __init__(self) -> None:
        self.cost = math.inf  # the least so far
        self.weights: dict[str, torch.Tensor] = {}  # of the policy of that cost

    def offer(self, policy: PlacementPolicy, cost: float) -> None:
        """Keep the weights of a policy if it costs less than all before."""
        if cost < self.cost:
            self.cost = cost
            self.weights = {name: tensor.clone() for name, tensor in policy.state_dict().items()}


def _check_devices(name: str, evaluators: Sequence[Evaluator], num_devices: int) -> None:
    for index, evaluator in enumerate(evaluators):
        if evaluator.problem.num_devices != num_devices:
            raise PolicyError(
                f"{name}[{index}]: expected a problem of {num_devices} devices, "
                f"got {evaluator.problem.num_devices}"
            )

"""Copies of a model as an answer: what a person would try, priced beside one copy.

Begin to read at `place_source`.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.placing.evaluators import EvaluatorSpec
from placeto.placing.place_problem import (
    DEFAULT_SECONDS,
    PlacedProblem,
    PlaceSettings,
    place_scheduled,
)
from placeto.placing.placers import warm_up_evaluator
from placeto.problems.making import problem_of, problem_of_copies
from placeto.problems.options import AUTO, ProblemOptions
from placeto.problems.restrictions import Restrictions
from placeto.problems.sources import Source
from placeto.progress import Progress
from placeto_baselines import Choice, LayerChain
from placeto_baselines.placement_trials import evaluated, rank_of_result
from placeto_baselines.search.copies import (
    Team,
    balanced_samples,
    device_teams,
    kinds_of,
    placements_on_teams,
)
from placeto_baselines.search.layers import layers_of_groups
from placeto_capture import CaptureError
from placeto_graphs import BatchDivision, GraphError, Phase, PlacementProblem, parts_of_batch

CHAINS_OF_TEAM = 200  # that are evaluated for the copies on teams of the same kinds
MOST_BALANCED = 2  # times that samples are balanced, each by what those before cost
MOST_SHOWN = 8  # numbers of samples in a line
ONE_COPY = "one copy"  # kind of a choice: the best placement that was found
SUM = "aten.sum"
INTERRUPTED = "interrupted"
SECONDS_AFTER_INTERRUPT = 1e-3  # of the search
LEAST_SAMPLES = 2  # of a copy in balanced parts, if there are so many
MOST_OF_SECONDS = 0.5  # of a search, in which copies are priced before it

# The problem of one copy with so many samples, in so many micro-batches
Step = Callable[[int, int], PlacementProblem]


@dataclass(frozen=True, eq=False)
class PlacedCopies:
    """Copies of a model, each on a team of devices, and what they cost."""

    copies: BatchDivision
    problem: PlacementProblem
    choice: Choice

    @property
    def rank(self) -> tuple[bool, float]:
        """Rank of the placement, as `placeto_graphs.placement_ranks` has it."""
        return rank_of_result(self.problem, self.choice.result)


@dataclass(frozen=True, eq=False)
class CopiedModel:
    """A model that copies can train on parts of its batch.

    Attributes
    ----------
    batch : int
        Number of samples of a step.
    step
        Function that returns the problem of one copy with some samples in some micro-batches.
    evaluator : EvaluatorSpec
        Evaluator of placements.
    micro_batches : int
        Number of micro-batches of one copy with all samples.
    has_schedule : bool
        Whether the micro-batches have a schedule, which is that of a single pipeline.
    """

    batch: int
    step: Step
    evaluator: EvaluatorSpec
    micro_batches: int = 1
    has_schedule: bool = False

    def proposals(self, *, only_sharded: bool = False) -> Iterator[PlacedCopies]:
        """Yield copies on teams of devices, in equal and in unequal parts, and sharded.

        Those that cannot be simulated are left out; then an error of theirs is raised at the end.
        """
        one_fits, refused = False, None
        for teams in device_teams(self.step(self.batch, self.micro_batches)):
            is_alone, in_parts = len(teams[0]) == 1, max(self.micro_batches // len(teams), 1)
            if not is_alone and (only_sharded or (one_fits and in_parts == 1)):
                continue  # one stage at a time would run
            ways = [(1, False), (1, True)] if is_alone else []
            for micro_batches, is_sharded in dict.fromkeys([*ways, (in_parts, False)]):
                units = self.batch // micro_batches
                if (only_sharded and not is_sharded) or (self.has_schedule and micro_batches > 1):
                    continue
                if units < len(teams) or self.batch % micro_batches:
                    continue
                try:
                    for placed in _DividedBatch(self, teams, micro_batches, is_sharded).proposals():
                        one_fits |= not placed.rank[0]
                        yield placed
                except (CaptureError, GraphError) as error:
                    refused = error
        if refused:
            raise refused


@dataclass(frozen=True, eq=False)
class _DividedBatch:
    """The batch of a model, divided among copies on k teams of devices.

    Samples are counted in units, one for each micro-batch.
    """

    model: CopiedModel
    teams: Sequence[Team]
    micro_batches: int
    is_sharded: bool

    def step(self, units: int) -> PlacementProblem:
        """Return the problem of one copy."""
        return self.model.step(units * self.micro_batches, self.micro_batches)

    def proposals(self) -> Iterator[PlacedCopies]:
        """Yield copies in equal parts, if there are any, and balanced ones on unequal teams."""
        count = len(self.teams)
        units, rest = divmod(self.model.batch // self.micro_batches, count)
        copy_problem = self.step(units)
        on_teams = self._on_teams(copy_problem)
        if on_teams is None:
            return
        last = self.placed(copy_problem, on_teams, [units] * count)
        if not rest:
            yield last
            if len({kinds_of(copy_problem, team) for team in self.teams}) == 1:
                return
        seconds, peaks = self._costs(copy_problem, on_teams)
        fewer, fewer_peaks = 0.0 * seconds, 0.0 * peaks  # of nothing, or of one unit
        if units > 1:
            unit_step = parts_of_batch(copy_problem, [1, units - 1])[0]
            fewer, fewer_peaks = self._costs(unit_step, on_teams)
        per_unit = (seconds - fewer) / max(units - 1, 1)
        bytes_per_unit = (peaks - fewer_peaks) / max(units - 1, 1)
        tried = [(units,) * count]
        for _ in range(MOST_BALANCED):
            room = copy_problem.cluster.memory_bytes - last.choice.result.peak_memory
            additional = [
                np.floor(room[list(team)] / np.maximum(of_unit[list(team)], 1)).min()
                for team, of_unit in zip(self.teams, bytes_per_unit, strict=True)
            ]
            fixed, limits = seconds - per_unit * units, np.add(tried[-1], additional)
            # One sample may have other ops than several.
            min_samples = min(units, LEAST_SAMPLES)
            samples = balanced_samples(units * count + rest, fixed, per_unit, limits, min_samples)
            if samples is None or samples in tried:
                return
            tried.append(samples)
            last = self.placed(copy_problem, on_teams, samples)
            yield last
            for copy, count_of_units in enumerate(samples):
                if count_of_units != units:
                    cost = self._costs(self.step(count_of_units), on_teams)[0][copy]
                    per_unit[copy] = (cost - seconds[copy]) / (count_of_units - units)

    def placed(
        self, copy_problem: PlacementProblem, on_teams: NDArray[np.int32], units: Sequence[int]
    ) -> PlacedCopies:
        """Return copies with so many units of samples, each of ``copy_problem`` on its team."""
        problems = [self.step(count) for count in units]
        names = copy_problem.cluster.device_names
        copies = BatchDivision(
            samples=tuple(count * self.micro_batches for count in units),
            devices=tuple(names[team[0]] for team in self.teams),
            shard=self.is_sharded,
            micro_batches=self.micro_batches,
        )
        problem = problem_of_copies(problems, copies.devices, is_sharded=self.is_sharded)
        rows = [problems[0].placement_of_ops(copy_problem.expand(row)) for row in on_teams]
        result = evaluated(self.model.evaluator.make(problem, 1), np.concatenate(rows))
        used = tuple(sorted(np.unique(on_teams).tolist()))
        label = copies_text(copies, max(map(len, self.teams)))
        if len(used) < len(copy_problem.cluster.accelerators):
            label += f" on {'+'.join(names[device] for device in used)}"
        return PlacedCopies(copies, problem, Choice(used, label, result))

    def _on_teams(self, copy_problem: PlacementProblem) -> NDArray[np.int32] | None:
        """Return int32[k, G], where each copy is on its team."""
        if len(self.teams[0]) == 1:
            return np.repeat(np.array(self.teams, np.int32), copy_problem.num_groups, axis=1)
        evaluator = self.model.evaluator.make(copy_problem, None)
        chain = LayerChain(copy_problem, evaluator, layers_of_groups(copy_problem)[0])
        return placements_on_teams(chain, self.teams, CHAINS_OF_TEAM)

    def _costs(
        self, problem: PlacementProblem, on_teams: NDArray[np.int32]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return float64[k] and float64[k, D], seconds and bytes of one copy on each team."""
        batch = self.model.evaluator.make(problem, 1).evaluate(on_teams)
        return batch.runtime, batch.peak_memory.astype(np.float64)


def copies_text(copies: BatchDivision, stages: int = 1) -> str:
    """Return a text that names copies of a model."""
    samples, text = copies.samples, f"{len(copies.samples)} copies"
    if stages > 1:
        text += f" of {stages} stages"
    if len(set(samples)) > 1:
        few = "+".join(map(str, samples))
        text += (
            f", {few if len(samples) <= MOST_SHOWN else f'{min(samples)}-{max(samples)}'} samples"
        )
    if copies.micro_batches > 1:
        text += f" in {copies.micro_batches} micro-batches"
    return f"{text}, sharded" if copies.shard else text


def copied_model(
    source: Source, options: ProblemOptions, evaluator: EvaluatorSpec, *, has_schedule: bool
) -> CopiedModel | None:
    """Return the model of a source if copies may train it, and none of its devices is decided.

    Raises
    ------
    InputError
        If no size of the model says what its batch is.
    """
    batches, is_free = source.batches, options.restrictions == Restrictions()
    if batches is None or options.copies != AUTO or not (is_free and evaluator.simulates):
        return None
    batch = batches.size()
    batches.captured[batch // source.micro_batches] = source.graph

    @cache
    def step(samples: int, micro_batches: int) -> PlacementProblem:
        graph = batches.graph(samples // micro_batches)
        of_batch = replace(source, graph=graph, micro_batches=micro_batches)
        return problem_of(of_batch, options.before_copies)

    return CopiedModel(batch, step, evaluator, source.micro_batches, has_schedule)


def place_source(
    source: Source,
    problem: PlacementProblem,
    options: ProblemOptions,
    schedule: str | None,
    settings: PlaceSettings,
    progress: Progress,
) -> PlacedProblem:
    """Place the problem of a source as `place_scheduled` does, or copies of its model.

    Copies are tried if a search places it, and nothing decides how many there are. They are priced
    first, in at most half of the seconds of the search, which has all that are left.
    """
    only_sharded = options.shard and options.copies == AUTO
    if settings.placer or settings.policy:
        if only_sharded:
            raise InputError("shard: expected a search, or a number of copies for a placer")
        return place_scheduled(problem, schedule, settings, progress)
    evaluator, seconds = settings.evaluator, settings.seconds
    if seconds is None and settings.max_evaluations is None:
        seconds = DEFAULT_SECONDS
    if evaluator.simulates and source.batches is not None:
        progress.update("loading the simulator; compiling it the first time takes about 10 s ...")
        warm_up_evaluator(evaluator.make(problem, None))
    proposals = _proposals(source, options, evaluator, has_schedule=schedule is not None)
    limit = math.inf if seconds is None else seconds * MOST_OF_SECONDS
    copies, reason, pricing_seconds = best_copies(proposals, progress, limit)
    if only_sharded and not copies and not reason:
        raise InputError("shard: expected a training step that several devices can share")
    if reason == INTERRUPTED:
        settings = replace(settings, seconds=SECONDS_AFTER_INTERRUPT)
    elif seconds is not None:
        settings = replace(settings, seconds=seconds - min(pricing_seconds, limit))
    placed = place_scheduled(problem, schedule, settings, progress)
    placed = with_copies(placed, copies, only_sharded=only_sharded)
    no_copies = f"more copies of the model are not tried: {reason}" if reason else ""
    return replace(placed, no_copies=no_copies)


def _proposals(
    source: Source, options: ProblemOptions, evaluator: EvaluatorSpec, *, has_schedule: bool
) -> Iterator[PlacedCopies]:
    model = copied_model(source, options, evaluator, has_schedule=has_schedule)
    if model is not None:
        yield from model.proposals(only_sharded=options.shard)


def best_copies(
    proposals: Iterable[PlacedCopies], progress: Progress, seconds: float = math.inf
) -> tuple[list[PlacedCopies], str, float]:
    """Return the best copies of each kind, a reason if not all were priced, and the seconds.

    The seconds begin when the first ones are priced, for which another batch is captured. Ctrl-C
    and errors leave out later ones, too.
    """
    best_of: dict[tuple[object, ...], PlacedCopies] = {}  # in parts of the same kind
    reason = ""
    began: float | None = None
    progress.update("copies of the model ...")
    try:
        for proposal in proposals:
            now = time.monotonic()
            began = now if began is None else began
            if best_of and now - began >= seconds:
                reason = f"{seconds:g} s are over; give more seconds"
                break
            copies, choice = proposal.copies, proposal.choice
            progress.update(f"{choice.kind} ...")
            is_equal = len(set(copies.samples)) == 1
            key = (choice.devices, copies.devices, copies.shard, is_equal)
            best_of[key] = min(best_of.get(key, proposal), proposal, key=attrgetter("rank"))
    except KeyboardInterrupt:
        reason = INTERRUPTED
    except (CaptureError, GraphError, InputError) as error:
        reason = str(error)
    return list(best_of.values()), reason, 0.0 if began is None else time.monotonic() - began


def with_copies(
    placed: PlacedProblem, copies: Sequence[PlacedCopies], *, only_sharded: bool = False
) -> PlacedProblem:
    """Return what is fastest, a placement of one copy or copies of the model, and the others."""
    if not copies:
        return placed
    best, one = min(copies, key=attrgetter("rank")), placed.result
    others = [proposal.choice for proposal in copies if proposal is not best]
    if not only_sharded and rank_of_result(placed.problem, one) <= best.rank:
        return replace(placed, choices=[*placed.choices, *others, best.choice])
    devices = tuple(sorted(np.unique(one.placement).tolist()))
    counts = {name: getattr(one, name) for name in ("evaluations", "seconds", "curve")}
    return PlacedProblem(
        best.problem,
        replace(best.choice.result, **counts),
        best.choice.kind,
        placed.bound,
        [*placed.choices, Choice(devices, ONE_COPY, one), *others],
        copies=best.copies,
        one_copy=placed,
    )


def copies_verdict(placed: PlacedProblem) -> str:
    """Return a sentence with the copies of a placement, and how much faster they are than one."""
    if placed.one_copy is None or not placed.result.runtime:
        return ""
    one, uses = placed.one_copy.result, f"Uses {placed.placer}"
    if not one.fits(placed.problem.cluster):
        return f"{uses}: no placement of one copy was found that fits."
    return f"{uses}: {one.runtime / placed.result.runtime:.2f}x as fast as one copy."


def remarks_on_copies(problem: PlacementProblem) -> list[str]:
    """Return what copies change in a training."""
    graph = problem.graph
    forward = graph.topological_order[graph.phases[graph.topological_order] == Phase.FORWARD]
    types = [graph.op_types[op] for op in forward.tolist()]
    remarks = []
    if any("batch_norm" in name for name in types):
        remarks.append("each copy normalises by the batch statistics of its own samples")
    if types[-1] == SUM:
        remarks.append("the loss is a sum: copies train as one does if it is a mean over samples")
    return remarks

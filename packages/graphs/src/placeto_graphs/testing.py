"""Conformance suites for placers and evaluators of your own, run by pytest.

Subclass `PlacerSuite` or `EvaluatorSuite` in a test module, return your own from its method, and
run pytest::

    from placeto_graphs.testing import PlacerSuite
    from my_package import MyPlacer

    class TestMyPlacer(PlacerSuite):
        def make_placer(self, problem):
            return MyPlacer()

A placer that passes works with ``placeto compare`` and with every evaluator.
"""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any
from unittest import SkipTest

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.protocols.evaluation import (
    CriticalEvaluator,
    Evaluator,
    Placer,
    SchedulingEvaluator,
    placement_ranks,
)
from placeto_graphs.protocols.moves import MoveEvaluator, Moves, Walks, plain_walk
from placeto_graphs.schema.cluster import Cluster, Device
from placeto_graphs.schema.grouping import Grouping
from placeto_graphs.schema.op_graph import OpGraph
from placeto_graphs.schema.problem import PlacementProblem
from placeto_graphs.schema.results import EvaluationBatch, PlacementResult

SEED = 2019


class LoadEvaluator:
    """Prices placements by the busiest device: its compute time and the bytes that reach it.

    It is short, exact in any order, and independent of the simulator. Placers are tested with it.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the load of the busiest device, and the parameters that each device holds."""
        groups, devices = self.problem.group_graph, range(self.problem.num_devices)
        rows = self.problem.check_placements(placements)
        loads = np.zeros((len(rows), len(devices)))
        memory = np.zeros(loads.shape, np.int64)
        first, second = groups.edges.T
        for row, placement in enumerate(rows):
            for device in devices:
                on_device = placement == device
                enters = (on_device[first] != on_device[second]) @ groups.edge_bytes
                loads[row, device] = groups.compute_time[on_device, device].sum() + enters * 1e-9
                memory[row, device] = groups.parameter_bytes[on_device].sum()
        return EvaluationBatch(runtime=loads.max(axis=1, initial=0.0), peak_memory=memory)


def example_problem(
    num_groups: int = 8,
    kinds: tuple[str, ...] = ("cpu", "k80", "k80"),
    *,
    memory_bytes: int = 10**9,
    seed: int = SEED,
) -> PlacementProblem:
    """Return a small random problem, the same for the same arguments.

    Ops read tensors of ops before them, some have weights, two run in each group, and the devices
    are of different speeds.
    """
    generator = np.random.default_rng(seed)
    num_ops, shape = 2 * num_groups, (len(kinds), len(kinds))
    readers = np.arange(1, num_ops)
    edges = np.stack([generator.integers(0, readers), readers], axis=1)
    graph = OpGraph(
        op_names=tuple(f"op{op}" for op in range(num_ops)),
        parameter_bytes=generator.integers(0, 2, num_ops) * 10**6,
        tensor_producer=np.arange(num_ops, dtype=np.int32),
        tensor_bytes=generator.integers(0, 10**6, num_ops),
        edges=edges.astype(np.int32),
    )
    seconds = generator.uniform(0.001, 0.01, (num_ops, 1))
    slower = np.array([4.0 if kind == "cpu" else 1.0 for kind in kinds])
    devices = [
        Device(f"{kind}:{index}", kind, memory_bytes, 1e-5, 1e-5)
        for index, kind in enumerate(kinds)
    ]
    return PlacementProblem(
        graph=graph,
        cluster=Cluster(
            devices=tuple(devices), bandwidth=np.full(shape, 1e9), latency=np.full(shape, 1e-5)
        ),
        compute_time=seconds * slower,
        grouping=Grouping(
            group_of=np.repeat(np.arange(num_groups, dtype=np.int32), 2),
            group_names=tuple(f"group{group}" for group in range(num_groups)),
        ),
    )


def example_problems() -> Iterator[PlacementProblem]:
    """Yield small problems of every kind: one group, one device, scarce memory, devices barred."""
    yield example_problem()
    yield example_problem(1)
    yield example_problem(5, ("k80",))
    yield example_problem(memory_bytes=2 * 10**6)
    yield problem_with_barred_devices()


def problem_with_barred_devices() -> PlacementProblem:
    """Return a problem whose first group runs on the CPU only, its last on the last device."""
    problem = example_problem()
    compute_time = problem.compute_time.copy()
    compute_time[0, 1:] = np.inf
    compute_time[-1, :-1] = np.inf
    return replace(problem, compute_time=compute_time)


def random_placements(problem: PlacementProblem, count: int, seed: int = SEED) -> NDArray[np.int32]:
    """Return int32[count, G], random placements of groups on devices that can run them."""
    can_run = np.isfinite(problem.group_graph.compute_time)
    chances = np.random.default_rng(seed).random((count, *can_run.shape)) * can_run
    placements: NDArray[np.int32] = chances.argmax(axis=2).astype(np.int32)
    return placements


class _Suite:
    def problems(self) -> Iterator[PlacementProblem]:
        """Yield the problems that are tested: by default those of `example_problems`."""
        yield from example_problems()


class PlacerSuite(_Suite):
    """Tests that every placer passes; subclass it and define `make_placer`.

    Examples
    --------
    >>> from placeto_graphs import BestSoFar
    >>> class FirstThatRuns:
    ...     name = "first-that-runs"
    ...
    ...     def place(self, problem, evaluator, *, seed=0):
    ...         devices = np.isfinite(problem.group_graph.compute_time).argmax(axis=1)
    ...         best, placements = BestSoFar(problem), devices[None].astype(np.int32)
    ...         best.add(placements, evaluator.evaluate(placements))
    ...         return best.result(seconds=0.0)
    >>> class TestFirstThatRuns(PlacerSuite):
    ...     def make_placer(self, problem):
    ...         return FirstThatRuns()
    >>> TestFirstThatRuns().test_a_result_is_what_the_evaluator_returns()
    """

    def make_placer(self, problem: PlacementProblem) -> Placer:
        """Return the placer that is tested, for a problem."""
        raise NotImplementedError("make_placer: define it in your subclass")

    def make_evaluator(self, problem: PlacementProblem) -> Evaluator:
        """Return the evaluator that placers get: by default a `LoadEvaluator`."""
        return LoadEvaluator(problem)

    def place(self, problem: PlacementProblem, seed: int = 0) -> PlacementResult:
        """Return what the placer finds with a new evaluator."""
        placer = self.make_placer(problem)
        return placer.place(problem, self.make_evaluator(problem), seed=seed)

    def test_it_is_a_placer_with_a_name(self) -> None:
        """The name stands in tables and on the command line."""
        placer = self.make_placer(example_problem())
        assert isinstance(placer, Placer)
        assert isinstance(placer.name, str)
        assert placer.name

    def test_a_result_is_what_the_evaluator_returns(self) -> None:
        """Runtime and memory are those of the placement, and the curve ends at its cost.

        No group is on a device where it cannot run.
        """
        for problem in self.problems():
            result = self.place(problem)
            placement = problem.check_placement(result.placement)
            batch = self.make_evaluator(problem).evaluate(placement[None])
            assert result.runtime == batch.runtime[0]
            assert result.peak_memory.tolist() == batch.peak_memory[0].tolist()
            assert result.seconds >= 0
            assert result.curve[-1, 0] <= result.evaluations
            _, cost = placement_ranks(batch, problem.cluster.memory_bytes)[0]
            np.testing.assert_allclose(result.curve[-1, 1], cost)
            rises = int((np.diff(result.curve[:, 1]) > 0).sum())
            max_rises = int(result.fits(problem.cluster))  # where the first that fits costs more
            assert rises <= max_rises, "the best so far never gets worse"

    def test_a_seed_gives_one_result(self) -> None:
        """All random choices follow from the seed."""
        problem = example_problem()
        first, again = (self.place(problem, seed=5) for _ in range(2))
        assert replace(first, seconds=0.0) == replace(again, seconds=0.0)

    def test_a_placer_can_be_used_again(self) -> None:
        """Earlier problems make no difference, and the problem is unchanged."""
        problem = example_problem()
        placer = self.make_placer(problem)
        first, again = (
            placer.place(problem, self.make_evaluator(problem), seed=1) for _ in range(2)
        )
        assert first.placement.tolist() == again.placement.tolist()
        assert problem == example_problem()


class EvaluatorSuite(_Suite):
    """Tests that every evaluator passes; subclass it and define `make_evaluator`.

    One that also is a `SchedulingEvaluator`, a `MoveEvaluator` or a `CriticalEvaluator` is tested
    as such; the tests of what it is not are skipped.

    Examples
    --------
    >>> class TestLoadEvaluator(EvaluatorSuite):
    ...     def make_evaluator(self, problem):
    ...         return LoadEvaluator(problem)
    >>> TestLoadEvaluator().test_a_batch_is_its_placements_one_by_one()
    """

    def make_evaluator(self, problem: PlacementProblem) -> Evaluator:
        """Return the evaluator that is tested, for a problem."""
        raise NotImplementedError("make_evaluator: define it in your subclass")

    def test_it_is_an_evaluator_of_its_problem(self) -> None:
        """Placers check that an evaluator is one of the problem that they place."""
        problem = example_problem()
        evaluator = self.make_evaluator(problem)
        assert isinstance(evaluator, Evaluator)
        assert evaluator.problem == problem

    def test_results_have_a_row_for_each_placement(self) -> None:
        """Runtimes are positive seconds, or infinite; memory is counted for each device."""
        for count in (0, 1, 5):
            for problem, evaluator, rows in self._cases(count):
                batch = evaluator.evaluate(rows)
                assert batch.runtime.shape == (count,)
                assert batch.peak_memory.shape == (count, problem.num_devices)
                assert (batch.runtime > 0).all()

    def test_a_batch_is_its_placements_one_by_one(self) -> None:
        """A placement costs the same in every batch, and at every call."""
        for _, evaluator, rows in self._cases(6):
            batch = evaluator.evaluate(rows)
            for row, placement in enumerate(rows):
                single = evaluator.evaluate(placement[None])
                assert single.runtime[0] == batch.runtime[row]
                assert single.peak_memory[0].tolist() == batch.peak_memory[row].tolist()

    def test_placements_stay_as_they_are(self) -> None:
        """An evaluator writes into nothing that it is given."""
        for _, evaluator, rows in self._cases(4):
            original = rows.copy()
            evaluator.evaluate(rows)
            assert rows.tolist() == original.tolist()

    def test_wrong_placements_are_refused(self) -> None:
        """So are rows of another length, devices that are not there, and those that are barred.

        The error is a `ValueError`, such as a `GraphError`; any other one is a fault.
        """
        problem = problem_with_barred_devices()
        evaluator, right = self.make_evaluator(problem), random_placements(problem, 1)
        for wrong in (right[:, :-1], right + 3, right - 3, np.full_like(right, 1)):
            try:
                evaluator.evaluate(wrong)
            except ValueError:
                continue
            raise AssertionError(f"took {wrong.tolist()}")

    def test_a_schedule_costs_what_the_placement_does(self) -> None:
        """When groups run lies within the step; skipped if the evaluator has no schedules."""
        for _, evaluator, rows in self._cases(3, SchedulingEvaluator, "schedule(placements)"):
            schedule, batch = evaluator.schedule(rows), evaluator.evaluate(rows)
            assert schedule.runtime.tolist() == batch.runtime.tolist()
            assert schedule.peak_memory.tolist() == batch.peak_memory.tolist()
            assert (schedule.start >= 0).all()
            assert (schedule.start <= schedule.end).all()
            assert (schedule.end <= schedule.runtime[:, None]).all()

    def test_a_walk_is_one_evaluation_after_the_other(self) -> None:
        """Moves in one call end as `plain_walk` does; skipped if the evaluator has none."""
        for problem, evaluator, rows in self._cases(2, MoveEvaluator, "walk(placements, moves)"):
            moves = _random_moves(problem, len(rows))
            if isinstance(evaluator, CriticalEvaluator):
                moves = _with_critical_moves(moves, problem)
            check_walks(evaluator.walk(rows, moves), plain_walk(evaluator, rows, moves))

    def test_some_groups_of_each_placement_are_critical(self) -> None:
        """The same ones in every batch; skipped if the evaluator does not say which."""
        cases = self._cases(3, CriticalEvaluator, "critical_groups(placements)")
        for problem, evaluator, rows in cases:
            critical = evaluator.critical_groups(rows)
            assert critical.dtype == np.bool_
            assert critical.shape == (3, problem.num_groups)
            assert critical.any(axis=1).all()
            for row, placement in enumerate(rows):
                single = evaluator.critical_groups(placement[None])
                assert single[0].tolist() == critical[row].tolist()

    def _cases(
        self, count: int, protocol: type = Evaluator, method: str = ""
    ) -> Iterator[tuple[PlacementProblem, Any, NDArray[np.int32]]]:
        """Yield problems, their evaluators if these follow a protocol, and so many placements."""
        for problem in self.problems():
            evaluator = self.make_evaluator(problem)
            if not isinstance(evaluator, protocol):
                raise SkipTest(f"it has no {method}")
            yield problem, evaluator, random_placements(problem, count)


def check_walks(walks: Walks, expected: Walks) -> None:
    """Check that two walks are the same, but for costs of rejected moves that one leaves open."""
    expected = replace(expected, cost=np.where(np.isinf(walks.cost), np.inf, expected.cost))
    for field in fields(Walks):
        np.testing.assert_array_equal(
            getattr(walks, field.name), getattr(expected, field.name), field.name
        )


def _with_critical_moves(moves: Moves, problem: PlacementProblem) -> Moves:
    """Return the same moves with every second one a critical move of single groups."""
    generator = np.random.default_rng(SEED)
    is_critical = np.arange(moves.num_moves) % 2 == 1
    edges = problem.group_graph.edges
    return replace(
        moves,
        set_of=np.where(is_critical, 0, moves.set_of),
        pick=np.where(is_critical, generator.random(moves.set_of.shape), np.inf),
        neighbours=np.concatenate([edges, edges[:, ::-1]]),
        set_with=np.arange(problem.num_groups, dtype=np.int32)[None],
    )


def _random_moves(problem: PlacementProblem, num_walks: int) -> Moves:
    """Return moves of single groups and of all together, uphill and down."""
    generator = np.random.default_rng(SEED)
    groups, shape = problem.num_groups, (num_walks, 40)
    return Moves(
        set_of=generator.integers(0, groups + 1, shape).astype(np.int32),
        device=generator.integers(0, problem.num_devices, shape).astype(np.int32),
        allowance=generator.choice([0.0, 1e-3, 1.0], shape),
        first_member=np.append(np.arange(groups + 1), 2 * groups).astype(np.int32),
        members=np.tile(np.arange(groups, dtype=np.int32), 2),
    )

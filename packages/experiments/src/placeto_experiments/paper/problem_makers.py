"""The problems of experiments: members of families, and models."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from placeto.errors import InputError
from placeto.outputs import file_name
from placeto.problems.making import make_problem, regrouped
from placeto.problems.options import GroupingOptions, SourceOptions, group_counts, read_cluster
from placeto.problems.sources import load_source
from placeto.trials.trials import Graph
from placeto_experiments.paper.plan import SMALL_MODELS, Plan
from placeto_graphs import PlacementProblem
from placeto_workloads import MODELS, family

Maker = Callable[[], PlacementProblem]
FAMILY_SEED_TO_CHOOSE_BY = 1
GRAPHS_TO_CHOOSE_BY = 4


class FamilyProblems(NamedTuple):
    """Problems of a family."""

    # Graphs to train on at all granularities. The first has the graph's name, the next one
    # ``nmt-07-granularity-1``. The RNN is trained on the first alone, `whole`.
    training: tuple[Graph, ...]
    whole: tuple[Graph, ...]
    # Graphs by which the best policy of a training is chosen: of the family with another seed, and
    # none is in the family itself
    validation: tuple[Graph, ...]
    test: tuple[Graph, ...]
    makers: dict[str, Maker]  # by name, of all of them


def family_problems(name: str, plan: Plan) -> FamilyProblems:
    """Return the problems of a family, as many as the plan has."""
    chosen, others = family(name), family(name, seed=FAMILY_SEED_TO_CHOOSE_BY)

    def maker(member: str, **options: Any) -> Maker:
        of_family, _, number = member.rpartition("-")
        return source_maker(f"{of_family}:{number}", plan, **options)

    whole = {member.name: maker(member.name) for member in chosen.training[: plan.graphs]}
    others_of_it = {
        f"{member}-granularity-{index}": maker(member, granularity=index)
        for member in whole
        for index in range(1, plan.granularities)
    }
    known = {(str(one.sizes), one.architecture) for one in (*chosen.training, *chosen.test)}
    new = [one.name for one in others.training if (str(one.sizes), one.architecture) not in known]
    validation = {
        f"{member}-to-choose-by": maker(member, family_seed=FAMILY_SEED_TO_CHOOSE_BY)
        for member in new[: min(GRAPHS_TO_CHOOSE_BY, plan.graphs)]
    }
    test = {member.name: maker(member.name) for member in chosen.test[: plan.test_graphs]}
    return FamilyProblems(
        training=tuple(map(Graph, [*whole, *others_of_it])),
        whole=tuple(map(Graph, whole)),
        validation=tuple(map(Graph, validation)),
        test=tuple(map(Graph, test)),
        makers={**whole, **others_of_it, **validation, **test},
    )


def name_of(source: str) -> str:
    """Return the name of a source, as part of file names.

    Examples
    --------
    >>> name_of("nmt:7"), name_of("models/graph.txt")
    ('nmt-7', 'graph')
    """
    name = Path(source).name
    for suffix in (".gz", ".json", ".txt"):
        name = name.removesuffix(suffix)
    return file_name(name)


def source_maker(
    text: str,
    plan: Plan,
    cluster: str | None = None,
    *,
    granularity: int = 0,
    family_seed: int = 0,
    **sizes: int,
) -> Maker:
    """Return a function that makes the problem of a source of ``placeto build``.

    At the scale smoke its model is small, with some more sizes.
    """

    def make() -> PlacementProblem:
        small = {**SMALL_MODELS, **sizes} if plan.is_smoke else {}
        known = _sizes_of(text)
        chosen = {name: size for name, size in small.items() if name in known}
        source = load_source(text, SourceOptions(chosen, family_seed))
        devices = None
        if source.problem is None or cluster is not None:
            devices = read_cluster(cluster or f"{plan.num_gpus}x{source.kind}", plan.link)
        elif plan.link is not None:
            raise InputError(f"--link: expected a source without devices of its own, got {text}")
        problem = make_problem(source, devices, GroupingOptions(num_groups=plan.groups or None))
        if not granularity:
            return problem
        counts = group_counts(problem.num_groups, plan.granularities)
        return regrouped(source, problem, counts[granularity])

    return make


def _sizes_of(text: str) -> Iterable[str]:
    if text in MODELS:
        return MODELS[text].sizes
    name, colon, number = text.partition(":")
    return family(name).training[0].sizes if colon and number.isdigit() else ()

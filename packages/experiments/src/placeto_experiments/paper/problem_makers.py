"""The problems of experiments: members of families, and models."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from placeto.errors import InputError
from placeto.outputs import file_name
from placeto.problems.making import make_problem, read_cluster, regrouped
from placeto.problems.options import GroupingOptions, SourceOptions, group_counts
from placeto.problems.sources import load_source
from placeto.trials.trials import Graph
from placeto_experiments.paper.plan import Plan
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
    whole: tuple[Graph, ...]  # graphs to train on, each at its usual granularity
    # Graphs by which the best policy of a training is chosen: of the family with another seed, and
    # none is in the family itself
    validation: tuple[Graph, ...]
    test: tuple[Graph, ...]
    makers: dict[str, Maker]  # by name, of all of them


def family_problems(name: str, plan: Plan) -> FamilyProblems:
    """Return the problems of a family, as many as the plan has."""
    chosen, others = family(name), family(name, seed=FAMILY_SEED_TO_CHOOSE_BY)
    scale = plan.scale
    training = [member.name for member in chosen.training[: scale.number("graphs")]]
    test = [member.name for member in chosen.test[: scale.number("test_graphs")]]
    grouped = {member: source_maker(_source_of(member), plan) for member in training}
    for member in training:
        for index in range(1, scale.number("granularities")):
            maker = source_maker(_source_of(member), plan, granularity=index)
            grouped[f"{member}-granularity-{index}"] = maker
    known = {(str(one.sizes), one.architecture) for one in (*chosen.training, *chosen.test)}
    new = [one.name for one in others.training if (str(one.sizes), one.architecture) not in known]
    to_choose_by = {
        f"{member}-to-choose-by": source_maker(
            _source_of(member), plan, family_seed=FAMILY_SEED_TO_CHOOSE_BY
        )
        for member in new[: min(GRAPHS_TO_CHOOSE_BY, scale.number("graphs"))]
    }
    unseen = {member: source_maker(_source_of(member), plan) for member in test}
    return FamilyProblems(
        training=tuple(map(Graph, grouped)),
        whole=tuple(map(Graph, training)),
        validation=tuple(map(Graph, to_choose_by)),
        test=tuple(map(Graph, test)),
        makers={**grouped, **to_choose_by, **unseen},
    )


def _source_of(member: str) -> str:
    """Return the source of a family graph: ``nmt:07``, ``cifar10-enas:07``."""
    name, _, number = member.rpartition("-")
    return f"{name}:{number}"


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
) -> Maker:
    """Return a function that makes the problem of a source of ``placeto build``."""
    known = _sizes_of(text)
    sizes = {name: size for name, size in plan.scale.sizes.items() if name in known}

    def make() -> PlacementProblem:
        source = load_source(text, SourceOptions(sizes, family_seed))
        devices = None
        if source.problem is None or cluster is not None:
            devices = read_cluster(cluster or f"{plan.num_gpus}x{source.kind}", plan.link)
        elif plan.link is not None:
            raise InputError(f"--link: expected a source without devices of its own, got {text}")
        problem = make_problem(source, devices, GroupingOptions(num_groups=plan.scale.num_groups))
        if not granularity:
            return problem
        counts = group_counts(problem.num_groups, plan.scale.number("granularities"))
        return regrouped(source, problem, counts[granularity])

    return make


def _sizes_of(text: str) -> set[str]:
    if text in MODELS:
        return set(MODELS[text].sizes)
    name, colon, number = text.partition(":")
    if colon and number.isdigit():
        return set(family(name).training[0].sizes)
    return set()

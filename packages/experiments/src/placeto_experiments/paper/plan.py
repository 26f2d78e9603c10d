"""Plan of an experiment: its scale and all else that the user chose, and its problems."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from placeto.errors import InputError
from placeto.outputs import file_name
from placeto.placing.placers import NARROW_RNN
from placeto.problems.making import make_problem, regrouped
from placeto.problems.options import GroupingOptions, SourceOptions, group_counts, read_cluster
from placeto.problems.sources import files_of_sources, load_source
from placeto.training.settings import changed_fields, parse_settings
from placeto.trials.trials import Graph
from placeto_baselines import RnnSettings
from placeto_graphs import PlacementProblem
from placeto_policy import Settings, preset
from placeto_workloads import MODELS, family

Maker = Callable[[], PlacementProblem]
FAMILY_SEED_TO_CHOOSE_BY = 1
GRAPHS_TO_CHOOSE_BY = 4
Pairs = tuple[tuple[str, str], ...]
DEFAULT_GPUS = 2
NUMBER_OF_GPUS = f"{DEFAULT_GPUS}, or the devices of a problem file"  # unless the user names it
# Updates and evaluations of the paper configuration, relative to the default one: it learns slower,
# and a step of it evaluates one placement.
PAPER_UPDATES, PAPER_EVALUATIONS = 3, 5
SCALE_NAMES = ("smoke", "small", "full")
# Numbers of an experiment, and the help of their options.
NUMBERS = {
    "seeds": "Number of seeds of everything that draws at random.",
    "training_graphs": "Number of graphs, or orders of one, to train a policy on.",
    "test_graphs": "Number of other graphs, or orders, to test it on.",
    "granularities": "Number of granularities of each graph to train a policy on, with more and "
    "fewer groups.",
    "updates": "Number of updates of each policy that is trained beforehand.",
    "evaluations": "Number of evaluations of each search on one graph.",
    "rnn_evaluations": "Number of evaluations of each graph to train an RNN.",
    "groups": "Number of groups of each graph.",
}
# Their values at each scale, in the same order; 0 where the experiment has no such number. Graphs
# without a number of groups have as many as suit them. The scales train on 4 granularities.
SCALES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "generalise": {
        "smoke": (1, 2, 2, 2, 5, 200, 20, 12),
        "small": (3, 16, 8, 4, 300, 50_000, 2000, 0),
        "full": (3, 16, 16, 4, 2000, 400_000, 10_000, 0),
    },
    "traversal": {
        "smoke": (1, 4, 4, 0, 5, 200, 20, 12),
        "small": (3, 64, 64, 0, 150, 100_000, 300, 0),
        "full": (3, 64, 64, 0, 2000, 400_000, 2000, 0),
    },
    "architectures": {
        "smoke": (1, 2, 2, 2, 5, 200, 0, 12),
        "small": (3, 16, 8, 4, 200, 50_000, 0, 0),
        "full": (3, 16, 16, 4, 2000, 400_000, 0, 0),
    },
    "rewards": {
        "smoke": (1, 0, 0, 0, 5, 0, 0, 12),
        "small": (5, 0, 0, 0, 200, 0, 0, 128),
        "full": (10, 0, 0, 0, 2000, 0, 0, 0),
    },
    "table1": {
        "smoke": (1, 0, 0, 0, 0, 300, 20, 12),
        "small": (5, 0, 0, 0, 0, 100_000, 20_000, 0),
        "full": (3, 0, 0, 0, 0, 1_000_000, 1_000_000, 0),
    },
}
# Sizes of models at the scale smoke; else those of the paper.
SMALL_MODELS = {"units": 8, "vocabulary_size": 20, "filters": 2, "cells_per_stage": 1}
NETWORK_OF_SCALE: Mapping[str, Mapping[str, Any]] = {
    "smoke": {"hidden_units": 16, "message_rounds": 2, "workers": 4}
}
RNN_OF_SCALE: Mapping[str, Mapping[str, Any]] = {"smoke": {"hidden_size": 16}, "small": NARROW_RNN}
# Hyperparameter of which an experiment tries all values, so that no option sets it
VARIED_SETTINGS = {"architectures": "embedding", "rewards": "reward"}


def numbers_of(experiment: str, scale: str) -> dict[str, Any]:
    """Return the numbers of an experiment by name."""
    return dict(zip(NUMBERS, SCALES[experiment][scale], strict=True))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Choices of the user for an experiment; a number that it does not have is 0."""

    scale: str
    seeds: range
    training_graphs: int  # largest number of graphs (or orders of one) to train a policy on
    test_graphs: int  # largest number of other graphs to test it on
    granularities: int  # the first is that of the graphs to place
    updates: int  # updates of the training of a shared policy
    evaluations: int  # of each search on one graph, and of a training of Placeto on one graph
    rnn_evaluations: int  # of each graph (or order) to train an RNN
    groups: int  # of each graph; 0 for what suits it
    settings: Settings
    rnn_settings: RnnSettings
    paper_preset: Settings  # paper configuration, without the updates
    num_gpus: int | None = None  # of graphs without devices of their own; None for the default
    link: str | None = None  # interconnect; by default one outgoing bus for each

    @property
    def is_smoke(self) -> bool:
        """True if it only shows that the experiment runs."""
        return self.scale == "smoke"

    @property
    def rollouts(self) -> int:
        """Sampled rollouts besides the greedy one."""
        return 2 if self.is_smoke else 8

    @property
    def paper_evaluations(self) -> int:
        """Evaluations of a training of the paper configuration on one graph."""
        return PAPER_EVALUATIONS * self.evaluations

    @property
    def training_settings(self) -> Settings:
        """The hyperparameters of a policy that is trained beforehand."""
        return replace(self.settings, updates=self.updates)

    @property
    def paper_settings(self) -> Settings:
        """The paper's hyperparameters, in sizes of the scale."""
        updates = PAPER_UPDATES * max(self.updates, 1)
        return replace(self.paper_preset, updates=updates)

    def described(self) -> dict[str, Any]:
        """Return all of it by name, as JSON knows it.

        Hyperparameters have no ``updates``, as the updates or evaluations of the plan decide them.
        """
        described = asdict(self)
        described["seeds"] = list(self.seeds)
        described["num_gpus"] = self.num_gpus or NUMBER_OF_GPUS
        described["paper"] = described.pop("paper_preset")
        for hyperparameters in (described["settings"], described["paper"]):
            del hyperparameters["updates"]
        return described


def chosen_plan(
    name: str,
    scale: str,
    *,
    preset_name: str | None = None,
    settings: Pairs = (),
    rnn_settings: Pairs = (),
    paper_settings: Pairs = (),
    **plan_fields: Any,
) -> Plan:
    """Return the plan of an experiment; ``plan_fields`` are its fields, None for the default.

    ``settings``, ``paper_settings`` and ``rnn_settings`` are pairs of a hyperparameter and its
    text.
    """
    scale_numbers = numbers_of(name, scale)
    if preset_name == "paper" and scale_numbers["granularities"]:
        scale_numbers["granularities"] = 1
    scale_numbers |= {field: value for field, value in plan_fields.items() if value is not None}
    alternative = "--updates" if scale_numbers["updates"] else "--evaluations"
    refusals = [("--rnn-hparam", rnn_settings, "evaluations", "expected --rnn-evaluations instead")]
    for option, pairs in (("--hparam", settings), ("--paper-hparam", paper_settings)):
        refusals.append((option, pairs, "updates", f"expected {alternative} instead"))
        if name in VARIED_SETTINGS:
            reason = "the experiment tries all of them"
            refusals.append((option, pairs, VARIED_SETTINGS[name], reason))
    for option, pairs, refused, reason in refusals:
        if refused in dict(pairs):
            raise InputError(f"{option} {refused}: {reason}")
    default_settings = parse_settings((), None, preset_name)
    rnn = RnnSettings(evaluations=scale_numbers["rnn_evaluations"] or RnnSettings().evaluations)
    return Plan(
        scale=scale,
        seeds=range(scale_numbers.pop("seeds")),
        settings=changed_fields(default_settings, settings, NETWORK_OF_SCALE.get(scale, {})),
        rnn_settings=changed_fields(
            rnn, rnn_settings, RNN_OF_SCALE.get(scale, {}), option="--rnn-hparam"
        ),
        paper_preset=changed_fields(
            preset("paper"),
            paper_settings,
            NETWORK_OF_SCALE.get(scale, {}),
            option="--paper-hparam",
        ),
        **scale_numbers,
    )


def without_simulated_features(settings: Settings) -> Settings:
    """Return settings whose policy reads no simulated features.

    Simulated features hide the effect of an embedding or of a reward.
    """
    if settings.device_features == "loads-and-lookahead":
        settings = replace(settings, device_features="loads")
    if settings.node_features == "costs-times-and-schedule":
        settings = replace(settings, node_features="costs-and-times")
    return settings


class FamilyProblems(NamedTuple):
    """Problems of a family."""

    # Graphs to train on at all granularities. The first has the graph's name, the next one
    # ``nmt-07-granularity-1``. As in the paper, its configuration and the RNN are trained on the
    # first alone, `whole`.
    training: tuple[Graph, ...]
    whole: tuple[Graph, ...]
    # Graphs by which the best policy of a training is chosen: of the family with another seed, and
    # none is in the family itself
    validation: tuple[Graph, ...]
    test: tuple[Graph, ...]
    makers: dict[str, Maker]  # by name, of all of them


def family_problems(name: str, plan: Plan) -> FamilyProblems:
    """Return the problems of a family, as many as the plan has."""
    chosen, validation_family = family(name), family(name, seed=FAMILY_SEED_TO_CHOOSE_BY)

    def maker(member: str, **options: Any) -> Maker:  # of nmt-07, from the source nmt:07
        family_name, _, index = member.rpartition("-")
        return source_maker(f"{family_name}:{index}", plan, **options)

    whole = {member.name: maker(member.name) for member in chosen.training[: plan.training_graphs]}
    granularities = {
        f"{member}-granularity-{index}": maker(member, granularity=index)
        for member in whole
        for index in range(1, plan.granularities)
    }
    family_models = {
        (str(member.sizes), member.architecture) for member in (*chosen.training, *chosen.test)
    }
    new_names = [
        member.name
        for member in validation_family.training
        if (str(member.sizes), member.architecture) not in family_models
    ]
    validation = {
        f"{member}-to-choose-by": maker(member, family_seed=FAMILY_SEED_TO_CHOOSE_BY)
        for member in new_names[: min(GRAPHS_TO_CHOOSE_BY, plan.training_graphs)]
    }
    test = {member.name: maker(member.name) for member in chosen.test[: plan.test_graphs]}
    return _problems_by_use(whole, granularities, validation, test)


def folder_problems(folder: Path, plan: Plan) -> FamilyProblems:
    """Return the problems of a user's own graph files, as many as the plan has.

    In the order of their names, every third is for test. Of the others every fourth chooses the
    policy, and the rest is learned.
    """
    files = [text for text, _ in files_of_sources([str(folder)])]
    test_files, other_files = files[2::3], [*files]
    for file in test_files:
        other_files.remove(file)
    validation_files = other_files[3::4]
    training_files = [file for file in other_files if file not in validation_files]
    if not test_files:
        raise InputError(f"--graphs {folder}: expected at least 3 graph files, got {len(files)}")
    names: dict[str, str] = {}
    for file in files:
        names[file] = file_name(name_of(file), names.values())

    def makers(chosen: Sequence[str], granularity: int = 0) -> dict[str, Maker]:
        suffix = f"-granularity-{granularity}" if granularity else ""
        return {
            f"{names[file]}{suffix}": source_maker(file, plan, granularity=granularity)
            for file in chosen
        }

    whole = makers(training_files[: plan.training_graphs])
    granularities: dict[str, Maker] = {}
    for index in range(1, plan.granularities):
        granularities |= makers(training_files[: plan.training_graphs], index)
    validation, test = makers(validation_files), makers(test_files[: plan.test_graphs])
    return _problems_by_use(whole, granularities, validation, test)


def _problems_by_use(
    whole: dict[str, Maker],
    granularities: dict[str, Maker],
    validation: dict[str, Maker],
    test: dict[str, Maker],
) -> FamilyProblems:
    return FamilyProblems(
        training=tuple(map(Graph, [*whole, *granularities])),
        whole=tuple(map(Graph, whole)),
        validation=tuple(map(Graph, validation)),
        test=tuple(map(Graph, test)),
        makers={**whole, **granularities, **validation, **test},
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
    size_names = _size_names(text)  # an unknown family is refused before there is a folder

    def make() -> PlacementProblem:
        small_sizes = {**SMALL_MODELS, **sizes} if plan.is_smoke else {}
        chosen = {name: size for name, size in small_sizes.items() if name in size_names}
        source = load_source(text, SourceOptions(chosen, family_seed))
        devices = None
        if source.problem is None or cluster is not None:
            num_gpus = plan.num_gpus or DEFAULT_GPUS
            devices = read_cluster(cluster or f"{num_gpus}x{source.kind}", plan.link)
        elif plan.num_gpus or plan.link:
            option = "--gpus" if plan.num_gpus else "--link"
            raise InputError(f"{option}: expected a source without devices of its own, got {text}")
        problem = make_problem(source, devices, GroupingOptions(num_groups=plan.groups or None))
        if not granularity:
            return problem
        counts = group_counts(problem.num_groups, plan.granularities)
        return regrouped(source, problem, counts[granularity])

    return make


def _size_names(text: str) -> Iterable[str]:
    """Return the names of the sizes of a model or family; none for a file."""
    if text in MODELS:
        return MODELS[text].sizes
    name, colon, index = text.partition(":")
    return family(name).training[0].sizes if colon and index.isdigit() else ()

"""How large an experiment is."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from placeto.errors import InputError
from placeto.placing.placers import NARROW_RNN
from placeto.problems.options import GROUPINGS_OF_MANY

SCALE_NAMES = ("smoke", "small", "full")
NUMBERS = {  # that the user may choose: the option, and what it says
    "seeds": ("--seeds", "With how many seeds everything runs that draws at random."),
    "graphs": ("--graphs", "How many graphs, or orders of one, to train a policy on."),
    "test_graphs": ("--test-graphs", "How many others to test it on."),
    "groupings": (
        "--groupings",
        "On how many groupings of each graph to train a policy: in more and in fewer groups, too.",
    ),
    "updates": ("--updates", "Of a policy that is trained beforehand."),
    "evaluations": ("--evaluations", "Placements that a search on one graph samples."),
    "rnn_evaluations": ("--rnn-evaluations", "Placements of each graph that an RNN samples."),
    "num_groups": ("--groups", "Into how many groups each graph is merged."),
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The numbers that decide how long an experiment takes; None where one means nothing in it.

    Attributes
    ----------
    seeds : int
        How often everything runs that draws at random: with the seeds 0, 1, and so on.
    graphs : int or None
        How many graphs (or orders of one) a shared policy is trained on, at most.
    test_graphs : int or None
        On how many others it is tested, at most.
    groupings : int or None
        In how many groupings a policy of Placeto is trained on each graph, at most: with 1 in the
        one in which it places graphs.
    updates : int or None
        Of the training of a shared policy.
    evaluations : int or None
        Placements sampled by each search on one graph, and by Placeto optimized.
    rnn_evaluations : int or None
        Placements of each graph (or order) that the training of an RNN samples.
    samples : int
        Passes that are sampled besides the greedy one, where a policy may draw several.
    num_groups : int or None
        Of each graph; None for what suits it.
    sizes : mapping
        Of the models; none given are the published ones.
    settings : mapping
        Other hyperparameters of Placeto than those of the preset.
    rnn_settings : mapping
        Other hyperparameters of the RNN than its defaults.
    """

    seeds: int = 3
    graphs: int | None = None
    test_graphs: int | None = None
    groupings: int | None = None
    updates: int | None = None
    evaluations: int | None = None
    rnn_evaluations: int | None = None
    samples: int = 8
    num_groups: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    rnn_settings: Mapping[str, Any] = field(default_factory=dict)

    def changed(self, given: Mapping[str, int | None]) -> "Scale":
        """Return the scale with some numbers of the user's.

        Raises
        ------
        InputError
            When one of them means nothing in this experiment.
        """
        chosen = {name: value for name, value in given.items() if value is not None}
        for name in chosen:
            if getattr(self, name) is None and name != "num_groups":
                raise InputError(f"{NUMBERS[name][0]}: this experiment has none to choose")
        return replace(self, **chosen)  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers by their names, as JSON knows them."""
        return asdict(self)

    def number(self, name: str) -> int:
        """Return a number that this experiment has."""
        value = getattr(self, name)
        assert isinstance(value, int), name  # noqa: S101 (each experiment's own table has it)
        return value


SMALL_MODELS = {"units": 8, "vocabulary_size": 20, "filters": 2, "cells_per_stage": 1}
SMOKE = Scale(
    seeds=1,
    samples=2,
    num_groups=12,
    sizes=SMALL_MODELS,
    settings={"hidden_units": 16, "message_rounds": 2, "workers": 4},
    rnn_settings={"hidden_size": 16},
)
SMALL = Scale(rnn_settings=NARROW_RNN)
ONE_RUN_AN_EPISODE = {"reward": "terminal"}  # where a placement costs a step that runs


def on_graphs(count: int, scale: Scale, **numbers: int) -> Scale:
    """Return a scale with as many graphs for test as for training, and with other numbers."""
    return replace(scale, graphs=count, test_graphs=count, **numbers)  # type: ignore[arg-type]


SCALES = {
    "generalise": {
        "smoke": on_graphs(2, SMOKE, groupings=2, updates=5, evaluations=200, rnn_evaluations=20),
        "small": replace(
            SMALL,
            graphs=16,
            test_graphs=8,
            groupings=GROUPINGS_OF_MANY,
            updates=300,
            evaluations=50_000,
            rnn_evaluations=2000,
        ),
        "full": on_graphs(
            16,
            Scale(),
            groupings=GROUPINGS_OF_MANY,
            updates=2000,
            evaluations=400_000,
            rnn_evaluations=10_000,
        ),
    },
    "traversal": {
        "smoke": on_graphs(4, SMOKE, updates=5, evaluations=200, rnn_evaluations=20),
        "small": on_graphs(64, SMALL, updates=150, evaluations=100_000, rnn_evaluations=300),
        "full": on_graphs(64, Scale(), updates=2000, evaluations=400_000, rnn_evaluations=2000),
    },
    "architectures": {
        "smoke": on_graphs(2, SMOKE, groupings=2, updates=5, evaluations=200),
        "small": Scale(
            graphs=16,
            test_graphs=8,
            groupings=GROUPINGS_OF_MANY,
            updates=200,
            evaluations=50_000,
        ),
        "full": on_graphs(
            16, Scale(), groupings=GROUPINGS_OF_MANY, updates=2000, evaluations=400_000
        ),
    },
    "hyperparameters": {
        "smoke": on_graphs(2, SMOKE, groupings=2, updates=5),
        "small": on_graphs(16, Scale(), groupings=GROUPINGS_OF_MANY, updates=300),
        "full": on_graphs(16, Scale(), groupings=GROUPINGS_OF_MANY, updates=2000),
    },
    "rewards": {
        "smoke": replace(SMOKE, updates=5),
        "small": Scale(seeds=5, updates=200, num_groups=128),
        "full": Scale(seeds=10, updates=2000),
    },
    "simulator-curves": {
        "smoke": replace(SMOKE, evaluations=200, rnn_evaluations=20),
        "small": replace(SMALL, evaluations=100_000, rnn_evaluations=10_000),
        "full": Scale(evaluations=1_000_000, rnn_evaluations=20_000),
    },
    "fidelity": {
        "smoke": Scale(seeds=1, num_groups=12),
        "small": Scale(seeds=3),
        "full": Scale(seeds=9),
    },
    "measured-curves": {
        "smoke": replace(SMOKE, evaluations=120, settings={**SMOKE.settings, **ONE_RUN_AN_EPISODE}),
        "small": Scale(evaluations=1620, settings=ONE_RUN_AN_EPISODE),
        "full": Scale(seeds=5, evaluations=30_000, settings=ONE_RUN_AN_EPISODE),
    },
    "table1": {
        "smoke": replace(
            SMOKE,
            sizes={**SMALL_MODELS, "steps": 4},
            evaluations=300,
            rnn_evaluations=20,
        ),
        "small": replace(SMALL, seeds=5, evaluations=100_000, rnn_evaluations=20_000),
        "full": Scale(evaluations=1_000_000, rnn_evaluations=1_000_000),
    },
}

"""What an experiment is to do: how large it is, and what else the user chose."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from placeto.placing.placers import NARROW_RNN
from placeto.problems.options import GROUPINGS_OF_MANY
from placeto_baselines import RnnSettings
from placeto_policy import Settings, preset

SCALE_NAMES = ("smoke", "small", "full")
# Updates and placements of the paper configuration relative to the default one: it learns slower,
# and a step of it evaluates no placement but its own.
AS_PUBLISHED: Mapping[str, int] = {"updates": 3, "placements": 5}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The numbers that decide how long an experiment takes; None where one means nothing in it."""

    # Number of the seeds 0, 1, and so on, with which everything runs that draws at random
    seeds: int = 3
    # Number of graphs (or orders of one) that a shared policy is trained on, at most
    graphs: int | None = None
    test_graphs: int | None = None  # number of others on which it is tested, at most
    # Number of groupings of each graph in which a policy of Placeto is trained, at most: with 1 in
    # the one in which it places graphs
    groupings: int | None = None
    updates: int | None = None  # updates of the training of a shared policy
    # Placements sampled by each search on one graph, and by Placeto optimized
    evaluations: int | None = None
    # Placements of each graph (or order) that the training of an RNN samples
    rnn_evaluations: int | None = None
    # Passes that are sampled besides the greedy one, where a policy may draw several
    samples: int = 8
    num_groups: int | None = None  # groups of each graph; None for what suits it
    # Sizes of the models; none given are the published ones
    sizes: Mapping[str, int] = field(default_factory=dict)
    # Other hyperparameters of Placeto than those of the preset
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Other hyperparameters of the RNN than its defaults
    rnn_settings: Mapping[str, Any] = field(default_factory=dict)

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
    "rewards": {
        "smoke": replace(SMOKE, updates=5),
        "small": Scale(seeds=5, updates=200, num_groups=128),
        "full": Scale(seeds=10, updates=2000),
    },
    "fidelity": {
        "smoke": Scale(seeds=1, num_groups=12),
        "small": Scale(seeds=3),
        "full": Scale(seeds=9),
    },
    "measured-curves": {
        "smoke": replace(SMOKE, evaluations=60, settings={**SMOKE.settings, **ONE_RUN_AN_EPISODE}),
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


@dataclass(frozen=True)
class Plan:
    """What the user chose for an experiment."""

    scale: Scale
    settings: Settings
    rnn_settings: RnnSettings
    num_gpus: int  # number of K80s on which graphs are placed
    link: str | None = None  # interconnect; by default one outgoing bus for each
    is_smoke: bool = False  # whether it only shows that the experiment runs

    @property
    def seeds(self) -> range:
        """The seeds."""
        return range(self.scale.seeds)

    @property
    def training_settings(self) -> Settings:
        """The hyperparameters of a policy that is trained beforehand."""
        return replace(self.settings, updates=self.scale.number("updates"))

    def described(self) -> dict[str, Any]:
        """Return all of it by name, as JSON knows it."""
        return {
            "gpus": self.num_gpus,
            "link": self.link,
            "seeds": list(self.seeds),
            "scale": asdict(self.scale),
            "settings": asdict(self.settings),
            "rnn_settings": self.rnn_settings.as_dict(),
            "as_published": {**AS_PUBLISHED, "settings": asdict(preset("paper"))},
        }

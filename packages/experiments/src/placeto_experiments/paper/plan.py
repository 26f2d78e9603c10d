"""Plan of an experiment: its scale, and all else that the user chose."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from placeto.placing.placers import NARROW_RNN
from placeto.problems.options import GRANULARITIES_OF_MANY
from placeto_baselines import RnnSettings
from placeto_policy import Settings, preset

SCALE_NAMES = ("smoke", "small", "full")
# Updates and evaluations of the paper configuration, relative to the default one: it learns slower,
# and a step of it evaluates one placement.
PAPER_BUDGETS: Mapping[str, int] = {"updates": 3, "evaluations": 5}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The numbers that decide how long an experiment takes; None if it has no such number."""

    seeds: int = 3  # number of seeds, from 0, of everything that draws at random
    graphs: int | None = None  # largest number of graphs (or orders of one) to train a policy on
    test_graphs: int | None = None  # largest number of other graphs to test it on
    # Largest number of granularities of each graph to train a policy of Placeto on; the first is
    # that of the graphs to place
    granularities: int | None = None
    updates: int | None = None  # updates of the training of a shared policy
    # Evaluations of each search on one graph, and of a training of Placeto on one graph
    evaluations: int | None = None
    rnn_evaluations: int | None = None  # evaluations of each graph (or order) to train an RNN
    rollouts: int = 8  # sampled rollouts besides the greedy one
    num_groups: int | None = None  # groups of each graph; None for what suits it
    sizes: Mapping[str, int] = field(default_factory=dict)  # of the models; else those of the paper
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
    rollouts=2,
    num_groups=12,
    sizes=SMALL_MODELS,
    settings={"hidden_units": 16, "message_rounds": 2, "workers": 4},
    rnn_settings={"hidden_size": 16},
)
SMALL = Scale(rnn_settings=NARROW_RNN)


def on_graphs(count: int, scale: Scale, **numbers: int) -> Scale:
    """Return a scale with as many graphs for test as for training, and with other numbers."""
    return replace(scale, graphs=count, test_graphs=count, **numbers)  # type: ignore[arg-type]


SCALES = {
    "generalise": {
        "smoke": on_graphs(
            2, SMOKE, granularities=2, updates=5, evaluations=200, rnn_evaluations=20
        ),
        "small": replace(
            SMALL,
            graphs=16,
            test_graphs=8,
            granularities=GRANULARITIES_OF_MANY,
            updates=300,
            evaluations=50_000,
            rnn_evaluations=2000,
        ),
        "full": on_graphs(
            16,
            Scale(),
            granularities=GRANULARITIES_OF_MANY,
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
        "smoke": on_graphs(2, SMOKE, granularities=2, updates=5, evaluations=200),
        "small": Scale(
            graphs=16,
            test_graphs=8,
            granularities=GRANULARITIES_OF_MANY,
            updates=200,
            evaluations=50_000,
        ),
        "full": on_graphs(
            16, Scale(), granularities=GRANULARITIES_OF_MANY, updates=2000, evaluations=400_000
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
    """Choices of the user for an experiment."""

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
            "rnn_settings": asdict(self.rnn_settings),
            "paper": {**PAPER_BUDGETS, "settings": asdict(preset("paper"))},
        }

"""Plan of an experiment: its scale, and all else that the user chose."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from placeto.errors import InputError
from placeto.placing.placers import NARROW_RNN
from placeto.training.settings import changed_fields, parse_settings
from placeto_baselines import RnnSettings
from placeto_policy import Settings, preset

Pairs = tuple[tuple[str, str], ...]
DEFAULT_GPUS = 2
# Updates and evaluations of the paper configuration, relative to the default one: it learns slower,
# and a step of it evaluates one placement.
PAPER_UPDATES, PAPER_EVALUATIONS = 3, 5
SCALE_NAMES = ("smoke", "small", "full")
# Numbers of an experiment, and the help of their options.
NUMBERS = {
    "seeds": "Number of seeds of everything that draws at random.",
    "graphs": "Number of graphs, or orders of one, to train a policy on.",
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
    "fidelity": {
        "smoke": (1, 0, 0, 0, 0, 0, 0, 12),
        "small": (3, 0, 0, 0, 0, 0, 0, 0),
        "full": (9, 0, 0, 0, 0, 0, 0, 0),
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
    "smoke": {"hidden_units": 16, "message_rounds": 2, "workers": 4},
    "small": {},
    "full": {},
}
RNN_OF_SCALE: Mapping[str, Mapping[str, Any]] = {
    "smoke": {"hidden_size": 16},
    "small": NARROW_RNN,
    "full": {},
}


def numbers_of(experiment: str, scale: str) -> dict[str, Any]:
    """Return the numbers of an experiment by name."""
    return dict(zip(NUMBERS, SCALES[experiment][scale], strict=True))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Choices of the user for an experiment; a number that it does not have is 0."""

    scale: str
    seeds: range
    graphs: int  # largest number of graphs (or orders of one) to train a policy on
    test_graphs: int  # largest number of other graphs to test it on
    granularities: int  # the first is that of the graphs to place
    updates: int  # updates of the training of a shared policy
    evaluations: int  # of each search on one graph, and of a training of Placeto on one graph
    rnn_evaluations: int  # of each graph (or order) to train an RNN
    groups: int  # of each graph; 0 for what suits it
    settings: Settings
    rnn_settings: RnnSettings
    num_gpus: int = DEFAULT_GPUS  # number of K80s on which graphs are placed
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
    def training_settings(self) -> Settings:
        """The hyperparameters of a policy that is trained beforehand."""
        return replace(self.settings, updates=self.updates)

    @property
    def paper_settings(self) -> Settings:
        """The paper's hyperparameters, in sizes of the scale."""
        updates = PAPER_UPDATES * max(self.updates, 1)
        return replace(preset("paper"), updates=updates, **NETWORK_OF_SCALE[self.scale])

    def described(self) -> dict[str, Any]:
        """Return all of it by name, as JSON knows it."""
        return {**asdict(self), "seeds": list(self.seeds), "paper": asdict(self.paper_settings)}


def chosen_plan(
    name: str,
    scale: str,
    given: Mapping[str, int] | None = None,
    preset_name: str | None = None,
    settings: Pairs = (),
    rnn_settings: Pairs = (),
    **others: Any,
) -> Plan:
    """Return the plan of an experiment from its options."""
    numbers = numbers_of(name, scale)
    if preset_name == "paper" and numbers["granularities"]:
        numbers["granularities"] = 1
    numbers |= given or {}
    _refuse("--hparam", settings, "updates", "--updates" if numbers["updates"] else "--evaluations")
    _refuse("--rnn-hparam", rnn_settings, "evaluations", "--rnn-evaluations")
    rnn = RnnSettings(evaluations=numbers["rnn_evaluations"] or RnnSettings().evaluations)
    return Plan(
        scale=scale,
        seeds=range(numbers.pop("seeds")),
        settings=changed_fields(
            parse_settings((), None, preset_name), settings, NETWORK_OF_SCALE[scale]
        ),
        rnn_settings=changed_fields(rnn, rnn_settings, RNN_OF_SCALE[scale], option="--rnn-hparam"),
        **numbers,
        **others,
    )


def _refuse(option: str, pairs: Pairs, name: str, instead: str) -> None:
    """Raise if a hyperparameter is given that is a number of the scale."""
    if name in dict(pairs):
        raise InputError(f"{option} {name}: expected {instead} instead")


def without_simulated_features(settings: Settings) -> Settings:
    """Return settings whose policy reads no simulated features.

    Simulated features hide the effect of an embedding or of a reward.
    """
    if settings.device_features == "loads-and-lookahead":
        settings = replace(settings, device_features="loads")
    if settings.node_features == "costs-times-and-schedule":
        settings = replace(settings, node_features="costs-and-times")
    return settings

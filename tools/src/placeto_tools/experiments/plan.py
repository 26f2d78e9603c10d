"""An experiment: what decides its results, its problems, its trials, and how it is told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from placeto_baselines import RnnSettings
from placeto_graphs import PlacementProblem
from placeto_policy import Settings, preset
from placeto_tools.experiments.records import Record
from placeto_tools.experiments.scale import Scale
from placeto_tools.experiments.trials import Results, Trial
from placeto_tools.tables import TextTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# How often as many updates and placements as ours the method as published has: it learns slower,
# and a step of it asks for no placement but its own.
AS_PUBLISHED: Mapping[str, int] = {"updates": 3, "placements": 5}


@dataclass(frozen=True)
class Page:
    """What an experiment showed.

    Attributes
    ----------
    parts : texts
        Paragraphs and tables, as Markdown.
    figures : mapping
        By the name of their files, which the parts refer to.
    failures : texts
        What went wrong in trials that could not be done, a line each.
    """

    parts: Sequence[str]
    figures: Mapping[str, "Figure"] = field(default_factory=dict)
    failures: Sequence[str] = ()


@dataclass(frozen=True)
class News:
    """What is shown of an experiment that grows, when a trial is finished.

    Attributes
    ----------
    line : text
        What the trial came to.
    table : `TextTable`
        All that is known of its problem.
    """

    line: str
    table: TextTable


@dataclass(frozen=True)
class Plan:
    """What the user chose for an experiment.

    Attributes
    ----------
    scale : `Scale`
        How large it is.
    settings : `Settings`
        The hyperparameters of Placeto.
    rnn_settings : `RnnSettings`
        Those of the RNN.
    num_gpus : int
        On how many K80s graphs are placed.
    link : text or None
        What joins them; by default one outgoing bus for each.
    """

    scale: Scale
    settings: Settings
    rnn_settings: RnnSettings
    num_gpus: int
    link: str | None = None

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
            "scale": self.scale.as_dict(),
            "settings": asdict(self.settings),
            "rnn_settings": self.rnn_settings.as_dict(),
            "as_published": {**AS_PUBLISHED, "settings": asdict(preset("paper"))},
        }


@dataclass(frozen=True)
class Experiment:
    """Everything about an experiment.

    Attributes
    ----------
    name : text
        Of its subcommand.
    title : text
        Of its page.
    options : mapping
        All that decides its results.
    problems : mapping
        By name, what makes each problem.
    trials : trials
        In an order in which each comes after what it needs.
    page : function
        From what all trials came to, to what is told.
    news : function or None
        From what the trials so far came to, and the last of them, to what is shown, where something
        can be told before the end; then ``page`` tells of any of them, too.
    command : text
        What makes the same again, for the first line of the page; empty for none.
    """

    name: str
    title: str
    options: Mapping[str, Any]
    problems: Mapping[str, Callable[[], PlacementProblem]]
    trials: Sequence[Trial]
    page: Callable[[Results], Page]
    news: Callable[[Results, Record], News] | None = None
    command: str = ""

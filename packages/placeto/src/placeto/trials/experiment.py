"""An experiment: what decides its results, its problems, its trials, and how it is told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from placeto.outputs import Picture
from placeto.texts import TextTable
from placeto.trials.records import Record
from placeto.trials.trials import Results, Trial
from placeto_graphs import PlacementProblem


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
    figures: Mapping[str, Picture] = field(default_factory=dict)
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

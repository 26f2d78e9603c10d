"""An experiment: its problems, its trials, and how it is told."""

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
        Pictures by the name of their files, which the parts refer to.
    failures : texts
        Lines that say what went wrong in trials that could not be done.
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
        Name of its subcommand.
    title : text
        Title of its page.
    options : mapping
        What was asked for, for its page; its trials alone decide what it comes to.
    problems : mapping
        Makers of the problems by their names.
    trials : trials
        Trials in an order in which each comes after what it needs.
    page : function
        From what all trials came to, to what is told.
    news : function or None
        From what the trials so far came to, and the last of them, to what is shown, where something
        can be told before the end; then ``page`` tells of any of them, too.
    command : text
        Command that makes the same again, for the first line of the page; empty for none.
    """

    name: str
    title: str
    options: Mapping[str, Any]
    problems: Mapping[str, Callable[[], PlacementProblem]]
    trials: Sequence[Trial]
    page: Callable[[Results], Page]
    news: Callable[[Results, Record], News] | None = None
    command: str = ""

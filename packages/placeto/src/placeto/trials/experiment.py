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
    """What an experiment showed."""

    parts: Sequence[str]  # paragraphs and tables, as Markdown
    # Pictures by the name of their files, which the parts refer to
    figures: Mapping[str, Picture] = field(default_factory=dict)
    failures: Sequence[str] = ()  # lines that say what went wrong in trials that could not be done


@dataclass(frozen=True)
class News:
    """What is shown of an experiment that grows, when a trial is finished."""

    line: str  # what the trial came to
    table: TextTable  # all that is known of its problem


@dataclass(frozen=True)
class Experiment:
    """Everything about an experiment."""

    name: str
    title: str
    # What was asked for, for its page; its trials alone decide what it comes to
    options: Mapping[str, Any]
    problems: Mapping[str, Callable[[], PlacementProblem]]  # makers of the problems by their names
    trials: Sequence[Trial]  # in an order in which each comes after what it needs
    page: Callable[[Results], Page]  # from what all trials came to, to what is told
    # From what the trials so far came to, and the last of them, to what is shown, where something
    # can be told before the end; then ``page`` tells of any of them, too
    news: Callable[[Results, Record], News] | None = None
    # Command that makes the same again, for the first line of the page; empty for none
    command: str = ""

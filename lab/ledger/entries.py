"""The entries of the ledger, as `ledger.toml` has them."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, cast

from ledger.models import Transformer
from ledger.settings import MODES, InStages, Setting, Training


@dataclass(frozen=True)
class Row:
    """A measurement: seconds per sample, or what is proportional to it in its entry."""

    text: str
    measured: float
    setting: Setting


@dataclass(frozen=True)
class Entry:
    """Measurements of one source that compare with each other; the first row is the base."""

    name: str
    section: str  # of the page
    source: str
    seconds: float  # what a measured 1 is per sample; 0 where the source does not tell
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Verdict:
    """A training step that fitted the memory of its devices, or did not."""

    text: str
    source: str
    fits: bool
    measured_bytes: float  # of the fullest device, with all that is not of tensors; 0 if unknown
    setting: Training


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("ledger.toml").read_text())


def _setting(values: dict[str, Any]) -> Setting:
    document = _document()
    values |= document["links"].get(values.get("link"), {})
    if "model" in values:
        values = document["models"][values.pop("model")] | values
    return setting_of(values)


@cache
def verdicts() -> tuple[Verdict, ...]:
    """Return all steps that fitted or did not."""
    return tuple(
        Verdict(
            f"{entry['name']}: {text}",
            entry["source"],
            fits,
            measured_bytes,
            cast(Training, _setting(entry["setting"] | changes)),
        )
        for entry in _document()["verdicts"]
        for text, fits, measured_bytes, changes in entry["rows"]
    )


@cache
def entries() -> tuple[Entry, ...]:
    """Return all entries."""
    return tuple(
        Entry(
            entry["name"],
            entry["section"],
            entry["source"],
            float(entry.get("seconds", 0)),
            tuple(
                Row(
                    text,
                    1 / measured if entry.get("rates") else measured,
                    _setting(entry["setting"] | changes),
                )
                for text, measured, changes in entry["rows"]
            ),
        )
        for entry in _document()["entries"]
    )


def setting_of(values: Mapping[str, Any]) -> Setting:
    """Return a setting of its fields and those of its model, by name."""
    arguments: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    mode = MODES[arguments.pop("mode")]
    if issubclass(mode, InStages):
        sizes = {size.name for size in fields(Transformer)} & arguments.keys()
        arguments["model"] = Transformer(**{name: arguments.pop(name) for name in sizes})
    return mode(**arguments)  # which refuses a name that is no field of it

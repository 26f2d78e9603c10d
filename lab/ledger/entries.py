"""The entries of the ledger, as `ledger.toml` has them."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from ledger.models import Transformer
from ledger.settings import MODES, InStages, Setting


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


@cache
def entries() -> tuple[Entry, ...]:
    """Return all entries."""
    document = tomllib.loads(Path(__file__).with_name("ledger.toml").read_text())

    def setting(values: dict[str, Any]) -> Setting:
        values |= document["links"].get(values.get("link"), {})
        if "model" in values:
            values = document["models"][values.pop("model")] | values
        return setting_of(values)

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
                    setting(entry["setting"] | changes),
                )
                for text, measured, changes in entry["rows"]
            ),
        )
        for entry in document["entries"]
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

"""The finished trials of an experiment, a line each."""

import os
from pathlib import Path
from typing import cast

import msgspec

from placeto.errors import reading, writing
from placeto.json_files import decode_json
from placeto.trials.records import Record
from placeto_graphs import write_atomically


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a finished trial comes from.

    Attributes
    ----------
    key : text
        Of the trial.
    commit : text or None
        Of the sources; None where they are installed.
    took : float
        Seconds since the trial before, or since the command began: their sum is how long the
        experiment took, with however many jobs.
    """

    key: str
    commit: str | None = None
    took: float = 0.0


class TrialLog:
    """A text file with a JSON object for each finished trial, which no crash takes away again.

    What a crash left of a last line is dropped.

    Parameters
    ----------
    path
        The file.

    Attributes
    ----------
    records : dict
        The records by key.
    origins : dict
        Where they come from, by key.

    Raises
    ------
    InputError
        When another line than the last is not what was written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: dict[str, Record] = {}
        self.origins: dict[str, Origin] = {}
        if path.exists():
            self._read()

    def add(self, origin: Origin, record: Record) -> None:
        """Append a trial, and return when the disk has it."""
        known = msgspec.to_builtins(origin) | msgspec.to_builtins(record)
        line = msgspec.json.encode(known)
        with writing(self._path), self._path.open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.records[origin.key] = record
        self.origins[origin.key] = origin

    def _read(self) -> None:
        with reading(self._path):
            content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            problem = (
                f"{self._path}, line {number}: expected a finished trial (--force begins anew)"
            )
            origin = decode_json(line, Origin, problem)
            self.origins[origin.key] = origin
            self.records[origin.key] = decode_json(line, cast(type[Record], Record), problem)
        if whole != content:
            with writing(self._path):
                write_atomically(self._path, whole)

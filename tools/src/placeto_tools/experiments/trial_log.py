"""The finished trials of an experiment, a line each."""

import json
import os
from pathlib import Path

from placeto_graphs import write_atomically
from placeto_tools.errors import InputError
from placeto_tools.errors import reading
from placeto_tools.errors import writing
from placeto_tools.experiments.trials import Record


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

    Raises
    ------
    InputError
        When another line than the last is not what was written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: dict[str, Record] = {}
        if path.exists():
            self._read()

    def add(self, key: str, record: Record) -> None:
        """Append a trial, and return when the disk has it."""
        line = json.dumps({"key": key, **record}, ensure_ascii=False, allow_nan=False)
        with writing(self._path), self._path.open("ab") as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.records[key] = record

    def _read(self) -> None:
        with reading(self._path):
            content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                record = json.loads(line)
                key = record.pop("key")
            except (ValueError, AttributeError, KeyError, TypeError):
                raise InputError(
                    f"{self._path}, line {number}: expected a finished trial; --force begins anew"
                ) from None
            self.records[key] = record
        if whole != content:
            with writing(self._path):
                write_atomically(self._path, whole)

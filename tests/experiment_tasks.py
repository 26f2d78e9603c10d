"""Trials of no experiment, to look at how trials run."""

import os
import signal
from dataclasses import dataclass
from typing import ClassVar

from placeto.trials.records import Episode, Record
from placeto.trials.trials import Watch, Workspace
from placeto_policy import PolicyError


@dataclass(frozen=True)
class Count:
    """Counts the files of the folder, and adds one."""

    kind: ClassVar[str] = "count"

    number: int

    def run(self, workspace: Workspace, watch: Watch) -> Record:  # noqa: ARG002
        found = len(list(workspace.path.glob("*.done")))
        (workspace.path / f"{self.number}.done").touch()
        return Episode(cost=found, steps=[])


@dataclass(frozen=True)
class Fail:
    """Meets something that one of the packages refuses."""

    kind: ClassVar[str] = "fail"

    def run(self, workspace: Workspace, watch: Watch) -> Record:  # noqa: ARG002
        raise PolicyError("policy: expected a better one, got this")


@dataclass(frozen=True)
class Wrong:
    """Has a mistake in its code."""

    kind: ClassVar[str] = "wrong"

    def run(self, workspace: Workspace, watch: Watch) -> Record:  # noqa: ARG002
        raise ValueError("a mistake")


@dataclass(frozen=True)
class Die:
    """Is killed, as by a system that runs out of memory."""

    kind: ClassVar[str] = "die"

    def run(self, workspace: Workspace, watch: Watch) -> Record:  # noqa: ARG002
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

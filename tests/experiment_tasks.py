"""Trials of no experiment, to look at how trials run; processes import them by name."""

import os
import signal
from dataclasses import dataclass
from typing import ClassVar, Literal

from placeto.trials.records import Episode, TrialRecord
from placeto.trials.trials import Watch, Workspace
from placeto_policy import PolicyError


@dataclass(frozen=True)
class Count:
    """Counts the files of the folder, and adds one, unless something ends it."""

    kind: ClassVar[str] = "count"

    number: int
    ends: Literal["", "refused", "mistaken", "killed"] = ""

    def run(self, workspace: Workspace, watch: Watch) -> TrialRecord:  # noqa: ARG002
        if self.ends == "refused":
            raise PolicyError("policy: expected a better one, got this")
        if self.ends == "mistaken":
            raise ValueError("a mistake")
        if self.ends == "killed":  # as by a system that runs out of memory
            os.kill(os.getpid(), signal.SIGKILL)
        found = len(list(workspace.path.glob("*.done")))
        (workspace.path / f"{self.number}.done").touch()
        return Episode(cost=found, steps=[])

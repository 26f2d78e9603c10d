"""Trials of no experiment, to look at how trials run; processes import them by name."""

import os
import signal
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from placeto.trials.placing_tasks import PlaceByName
from placeto.trials.records import Episode, Placed, TrialRecord
from placeto.trials.trials import Graph, Watch, Workspace
from placeto_baselines import Limits
from placeto_policy import PolicyError


@dataclass(frozen=True)
class Count:
    """Counts the files of the folder, and adds one, unless something ends it."""

    kind: ClassVar[str] = "count"

    index: int
    ends: Literal["", "refused", "mistaken", "killed"] = ""

    def run(self, workspace: Workspace, watch: Watch) -> TrialRecord:  # noqa: ARG002
        if self.ends == "refused":
            raise PolicyError("policy: expected a better one, got this")
        if self.ends == "mistaken":
            raise ValueError("a mistake")
        if self.ends == "killed":  # as by a system that runs out of memory
            os.kill(os.getpid(), signal.SIGKILL)
        num_files = len(list(workspace.path.glob("*.done")))
        (workspace.path / f"{self.index}.done").touch()
        return Episode(cost=num_files, steps=[])


def placed(**values: Any) -> Placed:
    """Return what a search came to in twenty placements and two seconds, with other values."""
    usual: dict[str, Any] = {"runtime": 4.0, "cost": 4.0, "fits": True, "seconds": 2.0}
    usual |= {
        "evaluations": 20,
        "evaluations_to_best": 20,
        "curve": [(1, 9.0), (10, 5.0), (20, 4.0)],
    }
    return Placed(**{**usual, "peak_memory": [1], "placement": [0], **values})


def place(name: str = "placeto", **named: Any) -> PlaceByName:
    """Return the task of a placer on a graph ``x``, with ten evaluations."""
    values: dict[str, Any] = {"label": "a", "graph": Graph("x"), "seed": 0, "limits": Limits(10)}
    return PlaceByName(name=name, **values | named)

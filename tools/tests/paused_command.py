"""The ``placeto`` command, which waits before an update of a training for a test to let it go on.

Processes that it starts with `multiprocessing` read this file as well, and wait there too.
"""

import os
import time
from pathlib import Path

from placeto_policy import Trainer, UpdateSummary
from placeto_tools.main import placeto

FOLDER = Path(os.environ["PLACETO_PAUSE_FOLDER"])
UPDATES = int(os.environ["PLACETO_PAUSE_UPDATES"])
update = Trainer.update


def update_when_let(trainer: Trainer) -> UpdateSummary:
    """Make an update; before it say that so many are done, and wait."""
    if trainer.updates == UPDATES:
        (FOLDER / "waits").touch()
        while not (FOLDER / "goes-on").exists():
            time.sleep(0.005)
    return update(trainer)


Trainer.update = update_when_let  # type: ignore[assignment, method-assign]
if __name__ == "__main__":
    placeto(prog_name="placeto")

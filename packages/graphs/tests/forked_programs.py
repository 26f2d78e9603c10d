"""Programs that run in processes of their own, each forked from one that has compiled a function.

That process has imported Numba, which takes longer than all else, and nothing of this project.
"""

import multiprocessing
import os
import sys
from multiprocessing import forkserver
from pathlib import Path

import numba
import pytest

BEGIN = """
import os, sys, numba
os.environ["NUMBA_CACHE_DIR"] = {cache!r}
numba.config.reload_config()
sys.path[:0] = {sources!r}
sys.stdout = open({output!r}, "w")
"""

numba.njit(lambda number: number + 1)(1)
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload([__name__])


class Program:
    """A running program; what it prints are values of Python."""

    def __init__(self, code: str, sources: list[Path], cache: Path, output: Path) -> None:
        self.output = output
        begin = BEGIN.format(
            cache=str(cache), sources=[str(folder) for folder in sources], output=str(output)
        )
        with pytest.MonkeyPatch.context() as patched:  # it finds this module, too
            patched.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
            forkserver.ensure_running()
        self.process = processes.Process(target=exec, args=(f"{begin}\n{code}", {}))
        self.process.start()

    def result(self) -> list[str]:
        self.process.join(120)
        assert self.process.exitcode == 0
        return self.output.read_text().split()

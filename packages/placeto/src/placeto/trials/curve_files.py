"""Learning curves from the folders that ``placeto train`` and ``placeto compare`` write."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError, reading
from placeto.json_files import decode_json, read_json
from placeto.training.run_folder import LOG
from placeto.trials.comparison import ComparisonReport
from placeto.trials.records import Curve

RESULTS = "results.json"
WRITER = "`placeto compare`"
Curves = dict[str, list[NDArray[np.float64]]]


def read_curves(folders: Sequence[Path]) -> Curves:
    """Return the curves float64[K, 2] of each placer or run in some folders, for each seed."""
    of_folders = {folder: _read(folder) for folder in folders}
    names = [name for curves in of_folders.values() for name in curves]
    return {
        name if names.count(name) == 1 else f"{folder}: {name}": of_seeds
        for folder, curves in of_folders.items()
        for name, of_seeds in curves.items()
    }


def _read(folder: Path) -> Curves:
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a folder of `placeto train` or `placeto compare`")
    if (folder / RESULTS).is_file():
        return _of_comparison(folder / RESULTS)
    if (folder / LOG).is_file():
        return _of_training(folder / LOG)
    raise InputError(f"{folder}: expected {RESULTS} or {LOG} in it, got neither")


def _of_comparison(path: Path) -> Curves:
    curves: Curves = {}
    names: list[str] = []
    for problem in read_json(path, ComparisonReport, WRITER).problems:
        names.append(f"{problem.source} on {problem.cluster}")
        others = names.count(names[-1]) - 1  # two sources may have one name
        name = f"{names[-1]} ({others + 1})" if others else names[-1]
        for placer in problem.placers:
            if placer.searches and placer.runs:
                title = f"{placer.title}, {name}"
                curves[title] = [_array(run.curve) for run in placer.runs]
    return curves


def _of_training(path: Path) -> Curves:
    with reading(path):
        lines = path.read_bytes().splitlines()
    problem = f"{path}: expected what `placeto train` writes"
    rows = [decode_json(line, _Update, problem) for line in lines]
    if not rows:
        raise InputError(f"{path}: expected at least one update, got none")
    curve = _array([(row.evaluations, row.best_runtime) for row in rows])
    return {path.parent.name or str(path.parent): [curve]}


class _Update(msgspec.Struct):
    evaluations: int
    best_runtime: float


def _array(rows: Curve) -> NDArray[np.float64]:
    return np.array(rows, np.float64).reshape(-1, 2)

"""Learning curves from the folders that ``placeto train`` and ``placeto compare`` write."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_tools.errors import InputError
from placeto_tools.errors import reading
from placeto_tools.placing.placers import SCHEMES
from placeto_tools.training.run_folder import LOG

RESULTS = "results.json"
Curves = dict[str, list[NDArray[np.float64]]]


def read_curves(folder: Path) -> Curves:
    """Return the curves float64[K, 2] of each scheme or run.

    Parameters
    ----------
    folder
        A folder of a training or of a comparison.

    Raises
    ------
    InputError
        When it is neither, or its files are not what they must be.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a folder of `placeto train` or `placeto compare`")
    if (folder / RESULTS).is_file():
        return _of_comparison(folder / RESULTS)
    if (folder / LOG).is_file():
        return _of_training(folder / LOG)
    raise InputError(f"{folder}: expected {RESULTS} or {LOG} in it, got neither")


def read_results(path: Path) -> Any:
    """Return the problems that a file of ``placeto compare`` reports.

    Parameters
    ----------
    path
        Its ``results.json``.

    Raises
    ------
    InputError
        When it cannot be read, or is no such file.
    """
    with reading(path):
        text = path.read_bytes()
    try:
        return json.loads(text)["problems"]
    except (ValueError, TypeError, KeyError) as error:
        raise _not_a_comparison(path, error) from None


def _not_a_comparison(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: expected what `placeto compare` writes: {error!r}")


def _of_comparison(path: Path) -> Curves:
    curves: Curves = {}
    problems = read_results(path)
    try:
        for problem in problems:
            place = f"{problem['source']} on {problem['cluster']}"
            for scheme in problem["schemes"]:
                if SCHEMES[scheme["name"]].budget and scheme["runs"]:
                    found = [_array(run["curve"]) for run in scheme["runs"]]
                    curves[f"{scheme['title']}, {place}"] = found
    except (ValueError, TypeError, KeyError) as error:
        raise _not_a_comparison(path, error) from None
    return curves


def _of_training(path: Path) -> Curves:
    with reading(path):
        lines = path.read_bytes().splitlines()
    try:
        rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        curve = _array([[row["evaluations"], row["best_runtime"]] for row in rows])
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: expected what `placeto train` writes: {error!r}") from None
    if not len(curve):
        raise InputError(f"{path}: expected at least one update, got none")
    return {path.parent.name or str(path.parent): [curve]}


def _array(rows: Any) -> NDArray[np.float64]:
    return np.array(rows, np.float64).reshape(-1, 2)

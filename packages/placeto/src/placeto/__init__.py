"""Device placement of PyTorch models from Python, with everything else that needs no screen.

`place` finds where the ops of a model run best, and `place_module` trains a model there;
`read_problem`, `make_placer` and `compare` do what the command does with any source, and
`load_model_graph`, `family_graph` and `capture_step` give graphs of known models. Begin to read in
``placing/place_model.py``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placeto.placed_module import PlacedModule, place_module
    from placeto.placing.place_model import ModelPlacement, place
    from placeto.placing.placers import make_placer
    from placeto.problems.making import read_problem
    from placeto.problems.models import capture_step, family_graph, load_model_graph
    from placeto.trials.comparison import compare

__version__ = "0.3.0"

__all__ = [
    "ModelPlacement",
    "PlacedModule",
    "capture_step",
    "compare",
    "family_graph",
    "load_model_graph",
    "make_placer",
    "place",
    "place_module",
    "read_problem",
]
_MODULES = {
    "ModelPlacement": "placing.place_model",
    "PlacedModule": "placed_module",
    "capture_step": "problems.models",
    "compare": "trials.comparison",
    "family_graph": "problems.models",
    "load_model_graph": "problems.models",
    "make_placer": "placing.placers",
    "place": "placing.place_model",
    "place_module": "placed_module",
    "read_problem": "problems.making",
}  # of the names that are imported when they are first used


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the import of the package needs no PyTorch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

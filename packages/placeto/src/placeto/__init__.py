"""Device placement of PyTorch models from Python, with everything else that needs no screen.

`place` finds where the ops of a model run best; `load_model_graph`, `family_graph` and
`capture_step` give graphs of known models; `PlacedModule` trains a placed model. Begin to read in
``placing/model_placement.py``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placeto.placing.model_placement import ModelPlacement, place
    from placeto.problems.models import capture_step, family_graph, load_model_graph

__version__ = "0.3.0"

_MODULES = {
    "ModelPlacement": "placing.model_placement",
    "capture_step": "problems.models",
    "family_graph": "problems.models",
    "load_model_graph": "problems.models",
    "place": "placing.model_placement",
}
__all__ = ["ModelPlacement", "capture_step", "family_graph", "load_model_graph", "place"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the import of the package needs no PyTorch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"placeto.{_MODULES[name]}"), name)

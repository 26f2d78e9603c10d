"""Libraries that only some placers need, and that a user installs when needed."""

import importlib
from types import ModuleType

from placeto_baselines.errors import BaselineError


def require(module: str, extra: str) -> ModuleType:
    """Import a module that an extra of this package brings.

    Parameters
    ----------
    module
        What to import.
    extra
        The extra of ``placeto-baselines`` that installs it.

    Raises
    ------
    BaselineError
        When it is not installed; the message is the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the library is there, and something else is missing
        raise BaselineError(
            f"{module} is not installed: pip install 'placeto-baselines[{extra}]'"
        ) from None

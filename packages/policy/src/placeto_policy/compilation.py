"""How loops that torch cannot express well are compiled; only the kernels import this module."""

from collections.abc import Callable
from typing import ParamSpec
from typing import TypeVar
from typing import cast

import numba

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Sums may be taken in any order and products fused into them; NaN and infinity keep their meaning.
REORDER = {"contract", "nsz", "reassoc"}


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile a function with Numba on its first call, and keep the code on disk.

    The compiled code runs without the interpreter lock.
    """
    try:
        compiled_function = numba.njit(cache=True, nogil=True, fastmath=REORDER)(function)
    except RuntimeError:
        # Neither the package's folder nor the user's cache folder can be written.
        compiled_function = numba.njit(nogil=True, fastmath=REORDER)(function)
    return cast(Callable[Parameters, Result], compiled_function)

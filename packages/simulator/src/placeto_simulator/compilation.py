"""How the event loop is compiled; only the modules that need it import this one.

Numba takes half a second to import, and importing `placeto_simulator` compiles nothing.
"""

from collections.abc import Callable
from typing import ParamSpec
from typing import TypeVar
from typing import cast

import numba

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile a function with Numba on its first call, and keep the code on disk.

    The compiled code runs without the interpreter lock. Numba compiles anew when the file of the
    function changes, but not when that of a function changes that it calls: after such a change,
    remove the package's ``__pycache__``.
    """
    try:
        compiled_function = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # Neither the package's folder nor the user's cache folder can be written.
        compiled_function = numba.njit(nogil=True)(function)
    return cast(Callable[Parameters, Result], compiled_function)

"""How loops that NumPy cannot express are compiled."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import ParamSpec
from typing import TypeVar
from typing import cast

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compiled(
    function: Callable[Parameters, Result], *, fastmath: AbstractSet[str] = frozenset()
) -> Callable[Parameters, Result]:
    """Compile a function with Numba on its first call, and keep the code on disk.

    The compiled code runs without the interpreter lock. Numba takes half a second to import, so
    that modules with compiled functions are best imported by the functions that need them. Numba
    compiles anew when the file of the function changes, but not when that of a function changes
    that it calls: after such a change, remove the ``__pycache__`` of the package.

    Parameters
    ----------
    function
        What is compiled; arrays, numbers and named tuples of them go in and out.
    fastmath
        What LLVM may do to floating-point arithmetic, such as ``{"contract", "reassoc"}``.

    Examples
    --------
    >>> import numpy as np
    >>> @compiled
    ... def total(values):
    ...     result = 0.0
    ...     for value in values:
    ...         result += value
    ...     return result
    >>> total(np.ones(3))
    3.0
    """
    import numba  # noqa: PLC0415

    flags = set(fastmath) or False
    try:
        compiled_function = numba.njit(cache=True, nogil=True, fastmath=flags)(function)
    except RuntimeError:
        # Neither the package's folder nor the user's cache folder can be written.
        compiled_function = numba.njit(nogil=True, fastmath=flags)(function)
    return cast(Callable[Parameters, Result], compiled_function)

"""How loops that NumPy cannot express are compiled."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from time import time
from typing import Any, ParamSpec, TypeVar, cast

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
# Of what may be compiled nothing is read before this: it is the first module of its package.
IMPORT_BEGAN = time()  # seconds since the epoch, as the times of files


def compiled(
    function: Callable[Parameters, Result], *, fastmath: AbstractSet[str] = frozenset()
) -> Callable[Parameters, Result]:
    """Compile a function with Numba on its first call, and keep the code on disk.

    The compiled code runs without the interpreter lock. Numba takes half a second to import, so
    that modules with compiled functions are best imported by the functions that need them.

    The code of a function in a package is kept in ``placeto/compiled`` in the user's cache folder
    (``$XDG_CACHE_HOME`` or ``~/.cache`` on Linux), or ``compiled`` in ``$NUMBA_CACHE_DIR``. What
    is kept there is of no use once any source file of the package changes, or of `placeto_graphs`:
    a function may call compiled functions of these two packages, and of no other. A function that
    is not in a package, or when that folder cannot be written, is compiled in each process.

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

    from placeto_graphs.code_cache import (  # noqa: PLC0415
        code_cache,
        name_closure,
    )

    name_closure(function)
    dispatcher: Any = numba.njit(nogil=True, fastmath=set(fastmath) or False)(function)
    if dispatcher is not function:  # as it is with NUMBA_DISABLE_JIT
        dispatcher._cache = code_cache(function, set(fastmath))
    return cast(Callable[Parameters, Result], dispatcher)

"""The one error of this package."""


class SimulationError(ValueError):
    """A problem that cannot be simulated; the message is one line that says why.

    Examples
    --------
    >>> raise SimulationError("graph: expected at most 536870911 ops, got 600000000")
    Traceback (most recent call last):
    ...
    placeto_simulator.errors.SimulationError: graph: expected at most 536870911 ops, got 600000000
    """

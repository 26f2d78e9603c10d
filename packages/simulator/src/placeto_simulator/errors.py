"""The one error of this package."""


class SimulationError(ValueError):
    """A placement that cannot be simulated.

    The message is one line that names the placement, the group, the device and what was expected.

    Examples
    --------
    >>> raise SimulationError("placements[0, 3]: expected a device from 0 to 1, got 2")
    Traceback (most recent call last):
    ...
    placeto_simulator.errors.SimulationError: placements[0, 3]: expected a device from 0 to 1, got 2
    """

"""The one error of this package."""


class WorkloadError(ValueError):
    """A model, size or name that this package cannot work with, said in one line.

    Examples
    --------
    >>> from placeto_workloads import WorkloadError
    >>> raise WorkloadError("steps: expected an integer from 1, got 0")
    Traceback (most recent call last):
    ...
    placeto_workloads.errors.WorkloadError: steps: expected an integer from 1, got 0
    """

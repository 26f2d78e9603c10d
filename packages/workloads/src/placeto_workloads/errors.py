"""The one error of this package."""


class WorkloadError(ValueError):
    """A model, input, op or name that this package cannot work with, said in one line.

    Examples
    --------
    >>> from placeto_workloads import WorkloadError
    >>> raise WorkloadError("kind: expected one of cpu, k80, got 'abacus'")
    Traceback (most recent call last):
    ...
    placeto_workloads.errors.WorkloadError: kind: expected one of cpu, k80, got 'abacus'
    """

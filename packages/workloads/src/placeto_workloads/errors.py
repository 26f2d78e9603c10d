"""The one error of this package, and its one warning."""


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


class WorkloadWarning(UserWarning):
    """What this package had to assume, said in one line.

    Examples
    --------
    >>> import warnings
    >>> from placeto_workloads import WorkloadWarning
    >>> warnings.simplefilter("ignore", WorkloadWarning)
    """

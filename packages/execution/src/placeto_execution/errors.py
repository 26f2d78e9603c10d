"""The one error of this package."""


class ExecutionError(ValueError):
    """A step that cannot be run, or an op that failed, said in one line.

    Examples
    --------
    >>> raise ExecutionError("devices[1]: expected cpu:NUMBER or cuda:NUMBER, got 'tpu:0'")
    Traceback (most recent call last):
    ...
    placeto_execution.errors.ExecutionError: devices[1]: expected cpu:NUMBER or cuda:NUMBER, got ...
    """

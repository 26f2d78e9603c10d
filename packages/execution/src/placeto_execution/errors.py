"""The one error of this package."""


class ExecutionError(ValueError):
    """A step that cannot be run, or an op that failed, said in one line."""

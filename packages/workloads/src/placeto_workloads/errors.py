"""The one error of this package."""


class WorkloadError(ValueError):
    """A model, size, name or device kind that this package cannot work with."""

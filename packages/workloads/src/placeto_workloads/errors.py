"""The one error of this package."""


class WorkloadError(ValueError):
    """A model, size or name that this package cannot work with, said in one line."""

"""The one error of this package, its one warning, and an error of a step that has no place yet."""


class CaptureError(ValueError):
    """A model, input, op or name that this package cannot work with, said in one line."""


class CaptureWarning(UserWarning):
    """An assumption that this package had to make, said in one line."""


class StepError(CaptureError):
    """A part of a step that cannot be captured, whose place is not known yet."""

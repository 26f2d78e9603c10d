"""The one error of this package, its one warning, and an error of a step that has no place yet."""


class CaptureError(ValueError):
    """A model, input, op or name that this package cannot work with, said in one line.

    Examples
    --------
    >>> from placeto_capture import CaptureError
    >>> raise CaptureError("kind: expected one of cpu, k80, got 'abacus'")
    Traceback (most recent call last):
    ...
    placeto_capture.errors.CaptureError: kind: expected one of cpu, k80, got 'abacus'
    """


class CaptureWarning(UserWarning):
    """An assumption that this package had to make, said in one line.

    Examples
    --------
    >>> import warnings
    >>> from placeto_capture import CaptureWarning
    >>> warnings.simplefilter("ignore", CaptureWarning)
    """


class StepError(Exception):
    """A part of a step that cannot be captured: a `CaptureError` whose place is not known yet."""

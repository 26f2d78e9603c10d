"""Hyperparameters from a command line, and from the file of a run."""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING
from typing import Any

from placeto_tools.errors import InputError

if TYPE_CHECKING:
    from placeto_policy import Settings


def parse_settings(pairs: Sequence[tuple[str, str]], updates: int | None) -> "Settings":
    """Return the hyperparameters of a training.

    Parameters
    ----------
    pairs
        Names and values, as given; the others keep their defaults.
    updates
        How many updates are made, if that is given.

    Raises
    ------
    InputError
        When a name is unknown, or a value no number where one is needed.
    """
    from placeto_policy import Settings  # noqa: PLC0415 (torch takes seconds to import)

    kinds = {field.name: field.type for field in fields(Settings)}
    values: dict[str, Any] = {} if updates is None else {"updates": updates}
    for name, text in pairs:
        if name not in kinds:
            raise InputError(f"--set {name}: expected one of {', '.join(kinds)}")
        kind = kinds[name]
        try:
            values[name] = kind(text) if kind in {int, float} else text
        except ValueError:
            raise InputError(f"--set {name}: expected a number, got {text!r}") from None
    return Settings(**values)


def restored_settings(values: Mapping[str, Any]) -> "Settings":
    """Return the hyperparameters that a run was begun with.

    Raises
    ------
    InputError
        When there are others than there should be.
    """
    from placeto_policy import Settings  # noqa: PLC0415 (torch takes seconds to import)

    known = {field.name for field in fields(Settings)}
    if values.keys() != known:
        different = ", ".join(sorted(values.keys() ^ known))
        raise InputError(f"settings: expected the hyperparameters of this release, not {different}")
    return Settings(**values)

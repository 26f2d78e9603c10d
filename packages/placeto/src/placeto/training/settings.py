"""Hyperparameters of a training: those of a preset or a policy, changed by name."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import msgspec

from placeto.errors import InputError, check_once
from placeto_graphs.errors import not_among

if TYPE_CHECKING:
    from _typeshed import DataclassInstance  # pants: no-infer-dep

    from placeto_policy import PlacementPolicy, Settings

# What the network is made of, and what it sees.
NETWORK = (
    "embedding",
    "message_rounds",
    "messages",
    "hidden_units",
    "node_features",
    "device_features",
)

SettingsType = TypeVar("SettingsType", bound="DataclassInstance")


def parse_settings(
    pairs: Sequence[tuple[str, str]], updates: int | None, preset_name: str | None
) -> "Settings":
    """Return the hyperparameters of a training: those of a preset, with others in their place."""
    from placeto_policy import preset  # noqa: PLC0415 (torch takes seconds to import)

    values = {} if updates is None else {"updates": updates}
    if values and "updates" in dict(pairs):
        raise InputError("--hparam updates: excludes --updates")
    return changed_fields(preset(preset_name or "default"), pairs, values)


def changed_fields(
    settings: SettingsType,
    pairs: Sequence[tuple[str, str]],
    values: Mapping[str, Any],
    *,
    option: str = "--hparam",
) -> SettingsType:
    """Return a dataclass of hyperparameters with other values, some as texts of ``option``."""
    kinds = {field.name: field.type for field in fields(settings)}
    check_once([name for name, _ in pairs], f"{option} ")
    chosen = dict(values)
    for name, text in pairs:
        if name not in kinds:
            raise InputError(f"{option} {name}: expected one of {', '.join(kinds)}")
        try:
            chosen[name] = msgspec.convert(text, kinds[name], strict=False)
        except msgspec.ValidationError:
            texts = get_args(kinds[name])
            expected = not_among(text, texts) if texts else f"expected a number, got {text!r}"
            raise InputError(f"{option} {name}: {expected}") from None
    return replace(settings, **chosen)


def with_network_of(
    policy: "PlacementPolicy", settings: "Settings", pairs: Sequence[tuple[str, str]]
) -> "Settings":
    """Return hyperparameters with the network of a policy; refuse pairs that say otherwise."""
    network = {name: getattr(policy.settings, name) for name in NETWORK}
    for name, _ in pairs:
        if name in NETWORK and getattr(settings, name) != network[name]:
            raise InputError(
                f"--hparam {name}: expected {network[name]!r}, as in the policy of --from, "
                f"got {getattr(settings, name)!r}"
            )
    return replace(settings, **network)


def restored_settings(values: Mapping[str, Any]) -> "Settings":
    """Return the hyperparameters that a run was begun with; `InputError` if others are needed."""
    from placeto_policy import Settings  # noqa: PLC0415 (torch takes seconds to import)

    names = {field.name for field in fields(Settings)}
    if values.keys() != names:
        different = ", ".join(sorted(values.keys() ^ names))
        raise InputError(
            f"settings: expected the hyperparameters of this release, got others in {different}; "
            "train with --force to begin anew"
        )
    return Settings(**values)

"""Which scopes of a model are layers and branches, as its author would say it."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.errors import BaselineError

NOWHERE = -1


@dataclass(frozen=True)
class ExpertScopes:
    r"""What an expert reads in the scopes of a model's ops: data that comes with the model.

    Each is a regular expression, matched at the beginning of a scope, or None. An op that several
    match follows the first of them.

    Attributes
    ----------
    branch : text or None
        With two groups: what names a module, and what names one of its parallel branches. The
        branches of each module go to the devices in turn, in the order of their first ops.
    layer : text or None
        With one group, the number of the layer. Layer ``l`` goes to device ``l``, of encoder and
        decoder alike (Wu et al. 2016); more layers than devices are shared out in
        order, so that neighbours stay together.
    with_last_layer : text or None
        What stays with the last layer: the attention and the softmax of a translation model.

    Raises
    ------
    BaselineError
        When a text is not a regular expression, or has another number of groups.

    Examples
    --------
    >>> inception = ExpertScopes(branch=r"(Mixed_\w+)\.(branch\w+)")
    >>> inception.devices(["stem", "Mixed_5b.branch1x1.conv", "Mixed_5b.branch_pool"], 2)
    array([-1,  0,  1])
    >>> translation = ExpertScopes(
    ...     layer=r"(?:encoder|decoder)\.layers\.(\d+)", with_last_layer=r"attention|softmax"
    ... )
    >>> translation.devices(["encoder.layers.0", "decoder.layers.1.gates", "softmax"], 2)
    array([0, 1, 1])
    """

    branch: str | None = None
    layer: str | None = None
    with_last_layer: str | None = None

    def __post_init__(self) -> None:
        for field, groups in (("branch", 2), ("layer", 1), ("with_last_layer", 0)):
            text = getattr(self, field)
            if text is not None:
                _check_pattern(field, text, groups)

    def devices(self, scopes: list[str] | tuple[str, ...], num_devices: int) -> NDArray[np.int64]:
        """Return int64[V], the device of each op of given scopes, or -1.

        Parameters
        ----------
        scopes : V texts
            The scope of each op.
        num_devices
            The number of devices.

        Raises
        ------
        BaselineError
            When what stands for the number of a layer is no number.
        """
        layers = [self._layer(scope) for scope in scopes]
        num_layers = max(layers, default=NOWHERE) + 1
        device_of = np.full(len(scopes), NOWHERE)
        turn: dict[str, dict[str, int]] = {}
        for op, (scope, layer) in enumerate(zip(scopes, layers, strict=True)):
            match = re.match(self.branch, scope) if self.branch else None
            if match:
                branches = turn.setdefault(match[1], {})
                device_of[op] = branches.setdefault(match[2], len(branches)) % num_devices
            elif layer != NOWHERE:
                device_of[op] = _device_of_layer(layer, num_layers, num_devices)
            elif num_layers and self.with_last_layer and re.match(self.with_last_layer, scope):
                device_of[op] = _device_of_layer(num_layers - 1, num_layers, num_devices)
        return device_of

    def _layer(self, scope: str) -> int:
        match = re.match(self.layer, scope) if self.layer else None
        if not match:
            return NOWHERE
        if match[1] is None or not match[1].isdecimal():
            raise BaselineError(
                f"layer: expected a pattern whose group is the number of a layer, "
                f"got {match[1]!r} in {scope!r}"
            )
        return int(match[1])


def _device_of_layer(layer: int, num_layers: int, num_devices: int) -> int:
    return layer if num_layers <= num_devices else layer * num_devices // num_layers


def _check_pattern(field: str, text: str, groups: int) -> None:
    try:
        found = re.compile(text).groups
    except (re.error, RecursionError, OverflowError, TypeError) as error:
        raise BaselineError(
            f"{field}: expected a regular expression, got {text!r}: {error}"
        ) from None
    if found < groups:
        raise BaselineError(f"{field}: expected {groups} groups in {text!r}, got {found}")

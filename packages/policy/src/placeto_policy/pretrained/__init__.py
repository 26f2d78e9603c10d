"""The bundled pretrained policy."""

from importlib.resources import as_file, files

from placeto_policy.checkpoint import load_policy
from placeto_policy.policy import PlacementPolicy

WEIGHTS = "general.safetensors"


def load_pretrained() -> PlacementPolicy:
    """Return the bundled pretrained policy, for any number and kind of devices.

    It was trained on graphs and clusters of many kinds. ``CARD.md`` in its folder describes its
    training, and how well it places other graphs.

    Examples
    --------
    >>> from placeto_policy import PlacetoPlacer
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> problem = two_chains()
    >>> placer = PlacetoPlacer(policy=load_pretrained())  # a rollout, and each device alone
    >>> placer.place(problem, BusiestDevice(problem)).evaluations
    3
    """
    with as_file(files(__package__) / WEIGHTS) as path:
        return load_policy(path)

"""The policy in the box, for every graph and cluster."""

from importlib.resources import as_file, files

from placeto_policy.checkpoint import load_policy
from placeto_policy.policy import PlacementPolicy

WEIGHTS = "general.safetensors"


def load_pretrained() -> PlacementPolicy:
    """Return the policy that comes with this package, trained on graphs and clusters of many kinds.

    It places any problem at once. ``CARD.md`` beside its weights says what it was trained on, and
    how well it places what it was not.

    Examples
    --------
    >>> from placeto_policy import PlacetoPlacer
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> problem = two_chains()
    >>> placer = PlacetoPlacer(policy=load_pretrained())
    >>> placer.place(problem, BusiestDevice(problem)).evaluations
    1
    """
    with as_file(files(__package__) / WEIGHTS) as path:
        return load_policy(path)

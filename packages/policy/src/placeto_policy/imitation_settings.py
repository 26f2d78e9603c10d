"""How a policy learns from demonstrations."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ImitationSettings:
    """The hyperparameters of learning from demonstrations.

    Attributes
    ----------
    graphs, states : int
        From how many demonstrations, and from how many states on the way to each, a step learns.
    own_graphs, own_passes, own_states : int
        For how many problems the policy makes passes of its own in a step, how many of each, and
        from how many states of each pass it learns.
    learning_rate : float
        Of Adam, when it begins; it rises over the first 50 steps, and falls to a twentieth.
    misplaced : floats
        Shares of the placed groups that are not where the demonstration has them: each state draws
        one of these.
    max_gradient_norm : float
        The gradient is scaled down to this norm.

    Examples
    --------
    >>> ImitationSettings(states=8).learning_rate
    0.002
    """

    graphs: int = 3
    states: int = 24
    own_graphs: int = 1
    own_passes: int = 6
    own_states: int = 8
    learning_rate: float = 2e-3
    misplaced: tuple[float, ...] = (0.0, 0.0, 0.02, 0.05)
    max_gradient_norm: float = 1.0

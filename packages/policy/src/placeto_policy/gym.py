"""`gym_environment`: a Gymnasium environment of a problem, if Gymnasium is installed."""

from typing import TYPE_CHECKING, Any

from placeto_graphs import Evaluator, PlacementProblem
from placeto_policy.errors import PolicyError

if TYPE_CHECKING:
    from placeto_policy.gymnasium_environment import GymnasiumEnvironment


def gym_environment(
    problem: PlacementProblem, evaluator: Evaluator, **options: Any
) -> "GymnasiumEnvironment":
    """Return an environment in which an agent for Gymnasium can learn to place a problem.

    Needs the extra ``gym``. ``gymnasium.make`` knows it by
    ``"placeto_policy.gymnasium_environment:placeto/Placement-v0"``, with the same arguments: those
    of `placeto_policy.gymnasium_environment.GymnasiumEnvironment`, which describes observations and
    rewards.

    Raises
    ------
    PolicyError
        When Gymnasium is not installed, or the evaluator is of another problem.

    Examples
    --------
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> problem = two_chains()
    >>> environment = gym_environment(problem, BusiestDevice(problem))
    >>> _ = environment.reset()
    >>> for device in [0, 1, 0, 1, 0, 1]:  # the groups of both chains in turn
    ...     observation, reward, terminated, truncated, info = environment.step(device)
    >>> terminated, info["cost"]
    (True, 3.0)
    """
    try:
        from placeto_policy.gymnasium_environment import GymnasiumEnvironment  # noqa: PLC0415
    except ImportError as error:
        raise PolicyError(
            "gymnasium: expected it to be installed, as `pip install placeto-policy[gym]` does"
        ) from error
    return GymnasiumEnvironment(problem, evaluator, **options)

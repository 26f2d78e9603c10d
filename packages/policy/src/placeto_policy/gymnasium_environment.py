"""The decision process over placements as a Gymnasium environment."""

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from placeto_graphs import SECONDS_PER_BYTE, Evaluator, PlacementProblem, SchedulingEvaluator
from placeto_policy.environment import PlacementEnvironment
from placeto_policy.errors import PolicyError
from placeto_policy.settings import DeviceFeaturesName, NodeFeaturesName

NAME = "placeto/Placement-v0"
Observation = dict[str, Any]


class GymnasiumEnvironment(gymnasium.Env[Observation, np.int64]):
    """One episode at a time on one problem of G groups and D devices.

    An episode visits each group once, in topological order. An action is the device of the current
    group. A device that cannot run the group leaves it where it is; ``action_mask`` has the devices
    that can.

    The reward is the decrease of the cost by the action, as a fraction of the cost at the start of
    the episode. The cost is the memory-penalised runtime.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (as Gymnasium has it)

    def __init__(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        memory_penalty: float = SECONDS_PER_BYTE,
        device_features: DeviceFeaturesName = "loads",
    ) -> None:
        if evaluator.problem is not problem and evaluator.problem != problem:
            raise PolicyError("evaluator: expected one of the problem, got one of another")
        can_schedule = isinstance(evaluator, SchedulingEvaluator)
        self._node_features: NodeFeaturesName = (
            "costs-times-and-schedule" if can_schedule else "costs-and-times"
        )
        self._device_features: DeviceFeaturesName = device_features
        self._environment = PlacementEnvironment(
            evaluator,
            memory_penalty=memory_penalty,
            device_features=device_features,
            node_features=self._node_features,
        )
        self._last = self._begin()
        num_groups, num_devices = problem.num_groups, problem.num_devices
        self.action_space = spaces.Discrete(num_devices)
        self.observation_space = spaces.Dict(
            {
                "groups": _box(self._last["groups"].shape),
                "devices": _box(self._last["devices"].shape),
                "current": spaces.Discrete(num_groups),
                "placement": spaces.MultiDiscrete(np.full(num_groups, num_devices)),
                "action_mask": spaces.MultiBinary(num_devices),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode with everything on one device."""
        super().reset(seed=seed, options=options)
        self._last = self._begin()
        return self._last, self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move the current group to a device.

        Returns
        -------
        observation, reward, terminated, truncated, info
            ``info["cost"]`` is the memory-penalised runtime in seconds, ``info["placement"]`` the
            device of each group, int32[G].
        """
        environment = self._environment
        if environment.is_over:
            raise PolicyError("step: expected a reset after the last group, got an action")
        num_devices = environment.graph_features.num_devices
        if not 0 <= action < num_devices:
            raise PolicyError(
                f"action: expected a device from 0 to {num_devices - 1}, got {action}"
            )
        current = int(self._last["current"])
        can_run = bool(self._last["action_mask"][action])
        device = int(action) if can_run else int(environment.placement[0, current])
        reward = float(environment.step(np.array([device]))[0]) / self._cost_at_start
        is_over = environment.time == environment.num_groups
        if is_over:  # no group is current: the rest stays as it was
            placement = environment.placement[0].astype(np.int64)
            self._last = deepcopy(self._last) | {"placement": placement}
        else:
            self._last = self._observation()
        return self._last, reward, is_over, False, self._info()

    def action_masks(self) -> NDArray[np.bool_]:
        """Return bool[D], the devices that can run the current group."""
        return np.asarray(self._last["action_mask"], np.bool_)

    def _begin(self) -> Observation:
        self._environment.reset(num_episodes=1)
        self._cost_at_start = max(float(self._environment.costs[0]), np.finfo(np.float64).tiny)
        return self._observation()

    def _observation(self) -> Observation:
        states = self._environment.states()
        current = int(states.current[0])
        features = states.features(self._node_features)[:, :, 0]
        return {
            "groups": features.T.contiguous().numpy(),
            "devices": states.devices(self._device_features)[0].numpy(),
            "current": np.int64(current),
            "placement": self._environment.placement[0].astype(np.int64),
            "action_mask": states.single_graph.allowed[current].numpy().astype(np.int8),
        }

    def _info(self) -> dict[str, Any]:
        return {
            "cost": float(self._environment.costs[0]),
            "placement": self._environment.placement[0].copy(),
        }


def _box(shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


gymnasium.register(id=NAME, entry_point=f"{__name__}:{GymnasiumEnvironment.__name__}")

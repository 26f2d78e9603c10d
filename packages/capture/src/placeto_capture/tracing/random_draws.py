"""Which draws of random numbers are the same one, as where activations are computed again."""

import torch
from torch.utils._python_dispatch import _disable_current_modes


class RandomDraws:
    """Numbers the draws of a step by the state that the generator of random numbers is in.

    On fake tensors nothing is drawn, so that the generator has to be moved on here. What sets it
    back, as `torch.utils.checkpoint` does before it computes again, gets the same numbers again.
    """

    def __init__(self) -> None:
        self._number_of_state: dict[bytes, int] = {}

    def next(self) -> int:
        """Return the number of a draw, and let the generator go on."""
        with _disable_current_modes():
            state = torch.get_rng_state().numpy().tobytes()
            torch.rand(())
        return self._number_of_state.setdefault(state, len(self._number_of_state))

"""What is measured of a step says as much as its simulation does."""

import numpy as np
import pytest

from placeto_execution.measuring.profiles import StepProfile


def test_the_time_between_ops_is_shared_by_those_that_compute() -> None:
    """Four ops of which one computes nothing: 3 s of ops and twice 0.5 s between them."""
    seconds = np.array([[0.0, 1.0, 1.0, 1.0]] * 3)
    profile = StepProfile(op_seconds=seconds, runtimes=np.full(3, 4.0))
    assert profile.between_ops == pytest.approx(0.5)

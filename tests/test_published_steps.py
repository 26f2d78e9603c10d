"""The cost model gives the step times that its efficiencies were fitted to (docs/costs.md)."""

import numpy as np
import pytest

from placeto import load_model_graph
from placeto_capture import cost_model
from placeto_graphs import DEVICE_KINDS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "model", "published"),
    [
        ("k80", "inception-v3", 1.56),
        ("k80", "nasnet", 1.28),
        ("cpu", "inception-v3", 12.5),
        ("cpu", "nasnet", 37.5),
    ],
)
def test_a_step_on_one_device_takes_about_as_long_as_published(
    kind: str, model: str, published: float
) -> None:
    seconds = cost_model(load_model_graph(model), kind)
    runtime = seconds.sum() + np.count_nonzero(seconds) * DEVICE_KINDS[kind].op_overhead
    assert runtime == pytest.approx(published, rel=0.02)

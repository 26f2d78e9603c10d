"""Steps in micro-batches, simulated: pipelines take as long, and hold as much, as GPipe says."""

import numpy as np
import pytest
from gpipe_pipelines import Pipeline
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 8),
    st.integers(1, 32),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["fifo", "backward-first"]),
)
def test_no_step_is_faster_than_gpipe(
    stages: int, count: int, backward_seconds: float, ops_per_layer: int, queue: str
) -> None:
    pipeline = Pipeline(stages, count, backward_seconds, ops_per_layer=ops_per_layer, queue=queue)
    seconds = pipeline.simulated().runtime[0]
    least = (count + stages - 1) * (1 + backward_seconds)
    assert seconds >= least
    loses_nothing = queue == "backward-first" or ops_per_layer == 1
    if loses_nothing and backward_seconds != 0.5:
        assert seconds == least


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(2, 32), st.sampled_from([1, 2]), st.sampled_from([1, 3]))
def test_schedules_take_and_hold_what_they_say(
    stages: int, count: int, backward: int, ops_per_layer: int
) -> None:
    """Outputs of 1 kB, of which a stage holds one for each op and micro-batch, and a few more."""
    expected = {"gpipe": [count] * stages}
    expected["1f1b"] = [min(count, stages - stage) for stage in range(stages)]
    for schedule, held in expected.items():
        pipeline = Pipeline(stages, count, backward, 1e-6, ops_per_layer, schedule=schedule)
        costs = pipeline.simulated()
        least = (count + stages - 1) * (1 + backward)
        assert least <= costs.runtime[0] <= least + 1e-4
        outputs = costs.peak_memory[0] / 1000
        assert (ops_per_layer * np.array(held) <= outputs).all()
        assert (outputs <= ops_per_layer * np.array(held) + min(count, 3) + 2).all()


@pytest.mark.parametrize("stages", [2, 4])
def test_memory_grows_with_the_micro_batches_in_flight(stages: int) -> None:
    """First in, first out starts all; backward first, until the first of them comes back."""
    for count in (16, 32):
        fifo, backward_first = (
            Pipeline(stages, count, 1.0, transfer_seconds=1e-6, queue=queue).simulated()
            for queue in ("fifo", "backward-first")
        )
        assert fifo.peak_memory[0, 0] > 1000 * count
        assert backward_first.peak_memory[0, 0] == 1000 * (3 * stages - 1)

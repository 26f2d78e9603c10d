"""Models by name."""

from typing import Any

import pytest

from placeto_workloads import WorkloadError, training_step


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("resnet", {}, "name: expected one of inception-v3, nasnet, nmt-2, nmt-4, got 'resnet'"),
        ("nmt-2", {"image_size": 3}, "nmt-2: expected sizes among steps, batch_size, units, voc"),
        ("nmt-2", {"layers": 3}, "nmt-2: expected sizes among .*, got 'layers'"),  # its name has it
        ("nmt-2", {"steps": 1.5}, "steps: expected an integer from 1 to"),
    ],
)
def test_what_is_not_known_is_refused(name: str, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        training_step(name, **sizes)

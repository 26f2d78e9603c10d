"""Names that moved between packages are found where they were, with a warning."""

import pytest

import placeto
import placeto_capture
import placeto_graphs
import placeto_workloads


@pytest.mark.parametrize(
    ("old", "package", "new"),
    [
        ("capture", placeto_capture, "capture"),
        ("cost_models", placeto_capture, "cost_models"),
        ("DEVICE_KINDS", placeto_graphs, "DEVICE_KINDS"),
        ("load", placeto, "load_model_graph"),
    ],
)
def test_a_name_that_moved_is_found_with_a_warning(old: str, package: object, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"^placeto_workloads\.{old} is \w+\.{new}$"):
        found = getattr(placeto_workloads, old)
    assert found is getattr(package, new)


def test_a_name_that_never_was_is_not_found() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'captures'"):
        _ = placeto_workloads.captures  # type: ignore[attr-defined]

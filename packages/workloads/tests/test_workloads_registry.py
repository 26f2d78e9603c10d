"""Models by name."""

import pytest

from placeto_workloads import MODELS, WorkloadError, training_step


def test_the_published_sizes_are_the_defaults() -> None:
    nmt = {"steps": 32, "batch_size": 128, "units": 2400, "vocabulary_size": 32000}
    assert {name: dict(model.sizes) for name, model in MODELS.items()} == {
        "inception-v3": {"batch_size": 64, "image_size": 299, "num_classes": 1000},
        "nasnet": {
            "batch_size": 64,
            "image_size": 224,
            "num_classes": 1000,
            "cells_per_stage": 4,
            "penultimate_filters": 1056,
            "stem_filters": 32,
        },
        "nmt-2": nmt,
        "nmt-4": nmt,
    }


def test_every_model_says_what_it_is() -> None:
    assert tuple(MODELS) == ("inception-v3", "nasnet", "nmt-2", "nmt-4")
    for name, model in MODELS.items():
        assert model.name == name
        assert len(model.description) > 20
        assert "\n" not in model.description


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        WorkloadError,
        match=r"name: expected one of inception-v3, nasnet, nmt-2, nmt-4, got 'resnet'",
    ):
        training_step("resnet")


@pytest.mark.parametrize("size", ["image_size", "layers", "device_count"])
def test_an_unknown_size_lists_the_known_ones(size: str) -> None:
    known = "steps, batch_size, units, vocabulary_size"
    with pytest.raises(WorkloadError, match=f"nmt-2: expected sizes among {known}, got '{size}'"):
        training_step("nmt-2", **{size: 3})  # type: ignore[arg-type]


def test_a_size_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(WorkloadError, match="steps: expected an integer from 1 to"):
        training_step("nmt-2", steps=1.5)  # type: ignore[arg-type]

"""Small transformers: what is captured of them is what PyTorch runs."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from small_transformers import SMALL
from torch import nn

from capture_checks import check_parameter_bytes, check_replay, compared
from captured_models import Case
from placed_runs import check_placements
from placeto_workloads import library_step

pytest.importorskip("transformers")


class ByPosition(nn.Module):
    """Calls a model with keyword arguments, in the order of their names."""

    def __init__(self, model: nn.Module, keywords: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.names = list(keywords)

    def forward(self, *values: Any) -> Any:
        return self.model(**dict(zip(self.names, values, strict=True)))


def small(name: str, **more: Any) -> Case:
    step = library_step(
        f"transformers:{name}",
        **{"batch_size": 2, "device": "cpu", "seed": 3, **SMALL[name], **more},
    )
    keywords = step.example_inputs
    return Case(ByPosition(step.model, keywords), tuple(keywords.values()))


def lengths(name: str) -> dict[str, int]:
    return {} if name in {"vit", "convnext"} else {"sequence_length": 6}


@pytest.mark.filterwarnings("ignore")  # of the library
@pytest.mark.parametrize("name", sorted(SMALL.keys() - {"bart", "electra"}))  # as t5 and bert
def test_a_replayed_step_of_a_small_transformer(name: str) -> None:
    step = compared(small(name, **lengths(name)))
    check_replay(step, num_orders=1)
    check_parameter_bytes(step)


@pytest.mark.filterwarnings("ignore")  # of the library
@pytest.mark.parametrize("name", ["t5", "mixtral"])
def test_every_placement_of_a_small_transformer_gives_what_pytorch_gives(name: str) -> None:
    check_placements(compared(small(name, **lengths(name))), num_placements=4)


def test_on_the_meta_device_weights_take_no_memory() -> None:
    step = library_step("transformers:llama", batch_size=1, sequence_length=4)
    weights = list(step.model.parameters())
    assert sum(weight.numel() for weight in weights) == step.model.num_parameters() > 6e9  # type: ignore[operator]
    assert all(weight.is_meta for weight in weights)
    assert not step.model.config.use_cache  # type: ignore[union-attr]


def test_the_seed_fixes_weights_and_inputs_and_nothing_else() -> None:
    before = torch.get_rng_state()
    first, again = small("bert", sequence_length=6), small("bert", sequence_length=6)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, first.inputs, again.inputs))
    assert all(map(torch.equal, first.model.parameters(), again.model.parameters()))

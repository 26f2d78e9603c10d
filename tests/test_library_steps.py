"""Small models of libraries and of this project: what is captured of them is what PyTorch runs."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from capture_checks import check_parameter_bytes, check_replay, check_tensors, compared
from captured_models import Case
from placeto_capture import capture
from placeto_capture.tracing.default_loss import default_loss
from placeto_workloads import TrainingStep, family, family_names, library_step, training_step
from small_transformers import DETECTOR

EXPERTS = {
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_heads": 2,
    "vocab_size": 30,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_sparse_encoder_layers": 1,
    "num_sparse_decoder_layers": 1,
    "num_experts": 3,
    "expert_capacity": 12,
}
PICTURES = {"block_out_channels": [32, 32], "layers_per_block": 1, "sample_size": 8}
BLOCKS = {
    "down_block_types": ["DownEncoderBlock2D"] * 2,
    "up_block_types": ["UpDecoderBlock2D"] * 2,
}
PATCHES = {"num_attention_heads": 2, "attention_head_dim": 6, "num_layers": 1, "patch_size": 2}
TEXT = {"cross_attention_dim": 12, "caption_channels": 8, "norm_num_groups": 1}
CROSSED = {
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "cross_attention_dim": 8,
    "attention_head_dim": 4,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 4,
    "projection_class_embeddings_input_dim": 30,
}


class WithLoss(nn.Module):
    """Calls the model of a step with its keywords, and its loss."""

    def __init__(self, step: TrainingStep) -> None:
        super().__init__()
        self.model = step.model
        self.keywords: Mapping[str, Any] = step.example_inputs
        self.loss_fn = step.loss_fn

    def forward(self) -> Any:
        outputs = self.model(**self.keywords)
        return outputs if self.loss_fn is None else self.loss_fn(outputs)


def small(source: str, **settings: Any) -> Case:
    step = library_step(source, batch_size=2, device="cpu", seed=3, **settings)
    return Case(WithLoss(step), ())


@pytest.mark.filterwarnings("ignore")  # of the library
def test_a_detector_that_looks_for_infinities() -> None:
    step = compared(small("transformers:conditional_detr", **DETECTOR))
    check_replay(step, num_orders=1)


@pytest.mark.filterwarnings("ignore")
def test_experts_in_a_loop_multiply_each_word_once() -> None:
    """A router's words go where its scores say in eager PyTorch: as many FLOPs as drawn ones."""
    example = small("transformers:switch_transformers", sequence_length=6, **EXPERTS)
    graph = capture(example.model, ())
    with FlopCounterMode(display=False) as counter:
        default_loss(example.model()).backward()  # type: ignore[no-untyped-call]
    products = np.isin(graph.op_types, ["aten.mm", "aten.addmm", "aten.bmm"])
    assert graph.flops[products].sum() == counter.get_total_flops()


def small_diffusers(name: str, **settings: Any) -> Case:
    pytest.importorskip("diffusers")
    return small(f"diffusers:{name}", **settings)


@pytest.mark.filterwarnings("ignore")
def test_the_loss_of_a_network_with_a_codebook_reaches_all_weights() -> None:
    network = small_diffusers("VQModel", **PICTURES, **BLOCKS, num_vq_embeddings=6)
    step = compared(network)
    check_replay(step, num_orders=1)
    assert all(weights.grad is not None for weights in network.model.parameters())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("PixArtTransformer2DModel", {**PATCHES, **TEXT, "use_additional_conditions": True}),
        ("UNet2DConditionModel", {**PICTURES, **CROSSED}),
    ],
)
def test_networks_that_are_told_the_size_of_the_picture(
    name: str, settings: Mapping[str, Any]
) -> None:
    network = small_diffusers(name, **{"sample_size": 8, **settings})
    assert "added_cond_kwargs" in network.model.keywords  # type: ignore[operator]
    check_replay(compared(network), num_orders=1)


SMALL: dict[str, dict[str, int]] = {
    "inception-v3": {"batch_size": 2, "image_size": 75},
    "nasnet": {"batch_size": 2, "image_size": 32, "cells_per_stage": 1},
    "nmt-2": {"steps": 3, "batch_size": 4, "units": 6, "vocabulary_size": 9},
    "ptb": {"batch_size": 2, "steps": 4, "units": 4, "vocabulary_size": 10},
    "cifar10": {"batch_size": 2, "image_size": 8, "filters": 4, "cells_per_stage": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_step_of_a_model_or_family_is_what_pytorch_runs(name: str) -> None:
    if name in family_names():
        graph = family(name).training[0]
        small = replace(graph, sizes={**graph.sizes, **SMALL[name]})
        step = small.training_step(device="cpu", seed=0)
    else:
        step = training_step(name, **SMALL[name], device="cpu", seed=0)
    assert step.loss_fn is None
    # Adam would divide the rounding errors of gradients that are zero by themselves.
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    step_as_run = compared(Case(step.model, step.example_inputs), optimizer)
    check_replay(step_as_run, num_orders=1)
    check_tensors(step_as_run)
    check_parameter_bytes(step_as_run)
    steps_in_time = {path for path, _ in step.model.named_modules() if "step" in path}
    assert steps_in_time <= set(step_as_run.graph.scopes)

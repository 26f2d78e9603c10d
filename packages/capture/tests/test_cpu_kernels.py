"""Kernels for CPUs of what PyTorch has for GPUs: as autograd has it of their formulas."""

import math
from typing import Any

import pytest
import torch

from placeto_capture.tracing import cpu_kernels

aten = cpu_kernels.aten
ROWS, KEYS, WIDTH = 5, 6, 4


def normal(*size: int) -> torch.Tensor:
    return torch.randn(*size, dtype=torch.float32)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
@pytest.mark.parametrize("has_bias", [False, True])
def test_attention_is_its_formula_and_drops_the_same_in_both_directions(
    is_causal: bool, dropout_p: float, has_bias: bool
) -> None:
    torch.manual_seed(0)
    query, key = normal(2, 3, ROWS, WIDTH), normal(2, 3, KEYS, WIDTH)
    bias = normal(2, 3, ROWS, KEYS) if has_bias else None
    value = torch.eye(KEYS).expand(2, 3, KEYS, KEYS)  # the result are the weights

    result, sums, *seeds = aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, dropout_p, is_causal
    )
    dropout_factors = (result != 0).float() / (1 - dropout_p)
    inputs = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    learned = None if bias is None else bias.clone().requires_grad_()
    scores = inputs[0] @ inputs[1].transpose(2, 3) / math.sqrt(WIDTH)
    scores = scores if learned is None else scores + learned
    if is_causal:
        scores = scores.masked_fill(torch.ones(ROWS, KEYS).triu(1).bool(), -math.inf)
    expected = (scores.softmax(-1) * dropout_factors) @ inputs[2]
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(sums[..., :ROWS], scores.exp().sum(-1).log())
    if dropout_p:
        assert 0.2 < (dropout_factors == 0).float().mean() - is_causal * 0.4 < 0.7

    gradient = normal(2, 3, ROWS, KEYS)
    gradients = aten._scaled_dot_product_efficient_attention_backward(
        gradient, query, key, value, bias, result, sums, *seeds, dropout_p, [True] * 4, is_causal
    )
    leaves = [*inputs, *([] if learned is None else [learned])]
    expected_gradients = torch.autograd.grad(expected, leaves, gradient)
    for gradient_found, gradient_right in zip(gradients, expected_gradients, strict=False):
        torch.testing.assert_close(gradient_found, gradient_right)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
def test_attention_on_a_gpu_is_that_on_a_cpu(is_causal: bool, has_mask: bool) -> None:
    """The function that it calls has a kernel for CPUs here."""
    query = normal(2, 3, ROWS, WIDTH)
    key, value = (normal(2, 3, KEYS, WIDTH) for _ in range(2))
    mask = normal(2, 1, ROWS, KEYS) if has_mask else None
    options: Any = {"attn_mask": mask, "scale": 0.3}
    inputs = query, key, value, 0.0, is_causal
    expected = aten._scaled_dot_product_flash_attention_for_cpu(*inputs, **options)
    attended = cpu_kernels._attention_on_gpu(*inputs, **options)
    torch.testing.assert_close(attended, expected)
    backward: Any = normal(2, 3, ROWS, WIDTH), query, key, value, *expected, 0.0, is_causal
    torch.testing.assert_close(
        cpu_kernels._attention_on_gpu_backward(*backward, **options),
        aten._scaled_dot_product_flash_attention_for_cpu_backward(*backward, **options),
    )

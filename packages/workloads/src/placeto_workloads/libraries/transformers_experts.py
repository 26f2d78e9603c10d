"""How the experts of transformers' models are captured.

A mixture of experts either loops over those that were chosen, which depends on values, or
multiplies all in one product of groups. PyTorch's own op for that has no shapes for float32 yet;
the library brings another one for such cases, which is used here, with the FLOPs that it performs.
"""

import importlib
from typing import Any
from unittest import mock

import torch
from torch.utils.flop_counter import flop_registry
from torch.utils.flop_counter import register_flop_formula

NAME = "placeto"


def use_grouped_products(config: Any) -> None:
    """Let a configuration make models whose experts are captured in products of groups.

    Parameters
    ----------
    config
        A configuration of the transformers library.
    """
    moe = importlib.import_module("transformers.integrations.moe")
    if not hasattr(moe, "_can_use_grouped_mm"):
        return
    if torch.ops.transformers.grouped_mm_fallback not in flop_registry:
        register_flop_formula(torch.ops.transformers.grouped_mm_fallback)(_product_flops)
        backward = torch.ops.transformers.grouped_mm_fallback_backward
        register_flop_formula(backward)(_backward_flops)
    moe.ALL_EXPERTS_FUNCTIONS.register(NAME, _experts)
    config._experts_implementation = NAME


def _experts(*args: Any, **keywords: Any) -> Any:
    moe = importlib.import_module("transformers.integrations.moe")
    with mock.patch.object(moe, "_can_use_grouped_mm", _never):
        return moe.grouped_mm_experts_forward(*args, **keywords)


def _never(*_args: Any) -> bool:
    return False


def _product_flops(
    rows: tuple[int, ...], weights: tuple[int, ...], *_args: Any, **_keywords: Any
) -> int:
    return 2 * rows[0] * weights[1] * weights[2]


def _backward_flops(
    rows: tuple[int, ...], weights: tuple[int, ...], *_args: Any, **_keywords: Any
) -> int:
    return 2 * _product_flops(rows, weights)

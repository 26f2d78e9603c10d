"""A training step on fake tensors of a GPU, as PyTorch runs it without any of this project.

A build for CPUs has what decides there: the dispatcher with CUDA's autocast, autograd's formulas,
and shapes and dtypes of results. What it lacks is written down here: which kernel attention takes,
the layout of cuDNN's convolutions, and an engine of autograd without streams.
"""

import ctypes
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
DEVICE_TYPES: Any = torch._C._autograd.DeviceType
# Functions with kernels for GPUs that PyTorch takes apart where it is built without these.
WHOLE_ON_GPUS = "native_channel_shuffle", "mish_backward", "silu_backward"
MAKES_ROOM = {"aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty_strided"}
# Autograd writes into zeros in place, but for a dispatch mode it makes new tensors.
PUTS = {"aten.index_put", "aten.scatter", "aten.scatter_add"}
# What is compared of ops whose further results are of one kernel: so many tensors.
NUM_COMPARED = {"attention": 1, "attention_backward": 3, "aten._embedding_bag": 1}
NORMS = "aten.native_batch_norm", "aten.native_group_norm", "aten.native_layer_norm"

Made = tuple[str, tuple[tuple[torch.dtype, tuple[int, ...]], ...]]
Inputs = tuple[Any, ...] | Mapping[str, Any]


def described(op_type: str, tensors: list[tuple[torch.dtype, tuple[int, ...]]]) -> Made:
    """Return an op and the dtype and shape of each tensor that it makes, as far as comparable.

    Statistics of a normalisation whose weights are narrow are so on a CPU alone: an eighth of a
    per cent of its values, if these are 1,024 in a row. They are not compared.
    """
    if "scaled_dot_product" in op_type:
        op_type = "attention_backward" if op_type.endswith("backward") else "attention"
    if op_type in NORMS and tensors[0][0] != torch.float32:
        tensors = tensors[:1]
    return op_type, tuple(tensors[: NUM_COMPARED.get(op_type)])


class MadeTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps each op that makes tensors with memory of their own, or changes some."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Made] = []
        self.is_backward = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        op_type = str(func.overloadpacket)
        is_view = torch.Tag.inplace_view in func.tags
        if func.namespace != "aten" or op_type in MAKES_ROOM or is_view:
            return result
        arguments = {_storage(leaf) for leaf in _tensors((args, kwargs))}
        new = [leaf for leaf in _tensors(result) if _storage(leaf) not in arguments]
        if self.is_backward and op_type in PUTS:
            self.ops.append((f"{op_type}_", ()))
        elif new or func._schema.is_mutable:
            self.ops.append(described(op_type, [(t.dtype, tuple(t.shape)) for t in new]))
        return result


class CudnnLayouts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lays out results of convolutions as cuDNN does: channels last if images or filters are so."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (aten.convolution.default, aten.convolution_backward.default):
            return result
        images, filters = args[:2] if func is aten.convolution.default else args[1:3]
        if images.dim() < 4:
            return result
        last = torch.channels_last if images.dim() == 4 else torch.channels_last_3d
        is_last = any(
            tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous()
            for tensor in (images, filters)
        )
        layout = last if is_last else torch.contiguous_format
        return tree_map_only(
            Tensor, lambda t: t.contiguous(memory_format=layout) if t.dim() > 1 else t, result
        )


def attention_of_gpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Run the kernel that a GPU takes: flash attention, or the one for float32 and masks.

    The latter takes no heads that share keys: these are PyTorch's own single ops.
    """
    is_wide = query.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")
    if enable_gqa and (attn_mask is not None or is_wide):
        return torch._C._nn.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True
        )
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(dtype)
    if attn_mask is None and query.dtype != torch.float32:
        attended, *_ = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )
        return attended
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            lowest = torch.scalar_tensor(-torch.inf, dtype=query.dtype, device="cuda")
            attn_mask = torch.where(attn_mask, 0.0, lowest)
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    keeps_sums = torch.is_grad_enabled() and query.requires_grad
    attended, *_ = aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, keeps_sums, dropout_p, is_causal, scale=scale
    )
    return attended


@torch.no_grad()
def run_backward(ready: list[Any], gradient: Tensor) -> None:
    """Run the nodes of autograd behind the one that is ready, and let go of each then.

    Of the nodes to which all gradients have come the one that was made last is next, as in
    PyTorch's engine, which itself asks for the streams of a GPU. A node that nothing refers to any
    more frees the tensors that it has saved. Only the list may refer to the first one.
    """
    missing = _counts_of_gradients(ready[0])
    gradients: defaultdict[Any, dict[int, Tensor]] = defaultdict(dict)
    gradients[_key(ready[0])] = {0: gradient}
    del gradient
    while ready:
        ready.sort(key=lambda ready_node: ready_node._sequence_nr())
        node = ready.pop()
        arrived = gradients.pop(_key(node), {})
        sent: Any = (None,) * len(node.next_functions)
        if hasattr(node, "variable"):
            node.variable.grad = _laid_out_like(node.variable, arrived[0])
        elif arrived:
            sent = node(*(arrived.get(place) for place in range(len(node._input_metadata))))
            sent = list(sent) if isinstance(sent, tuple) else [sent]
        del arrived
        for index, (target, place) in enumerate(node.next_functions):
            if target is None:
                continue
            if sent[index] is not None:
                made, key = target._input_metadata[place], _key(target)
                new = sent[index]
                if new.shape != torch.Size(made.shape):
                    new = new.sum_to_size(made.shape)
                new = new.to(made.dtype)
                before = gradients[key].pop(place, None)
                gradients[key][place] = new if before is None else before + new
                del new, before
            missing[_key(target)] -= 1
            if not missing[_key(target)]:
                ready.append(target)
        del node, sent


def _counts_of_gradients(root: Any) -> Counter[Any]:
    """Return how many gradients come to each node, some of them none."""
    counts: Counter[Any] = Counter()
    unseen = [root]
    while unseen:
        for target, _ in unseen.pop().next_functions:
            if target is not None:
                counts[_key(target)] += 1
                if counts[_key(target)] == 1:
                    unseen.append(target)
    return counts


def _key(node: Any) -> Any:
    """Return what tells a node from others, and keeps none alive."""
    return (id(node.variable),) if hasattr(node, "variable") else node._sequence_nr()


def _laid_out_like(weight: Tensor, gradient: Tensor) -> Tensor:
    """Return a gradient in the layout of its weight: a copy, if it has another one."""
    sizes = zip(weight.shape, gradient.stride(), weight.stride(), strict=True)
    if all(stride == expected for size, stride, expected in sizes if size > 1):
        return gradient
    return gradient.new_empty_strided(weight.shape, weight.stride()).copy_(gradient)


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Let there be fake tensors of a GPU, also for autograd, on a machine that has none."""
    library = ctypes.CDLL(str(next(Path(torch.__file__).parent.glob("lib/*c10.*"))))
    guards = (ctypes.c_void_p * len(DEVICE_TYPES.__members__)).in_dll(library, GUARDS)
    gpu, meta = int(DEVICE_TYPES.CUDA), int(DEVICE_TYPES.Meta)
    guard_before, has_kernel = guards[gpu], torch._C._dispatch_has_kernel_for_dispatch_key
    kernels: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        guards[gpu] = guard_before or guards[meta]
        for name in WHOLE_ON_GPUS:
            if not has_kernel(f"aten::{name}", "CUDA"):
                kernels.impl(name, mock.Mock(), "CUDA")  # fake tensors do not come to it
        with (
            FakeTensorMode(),
            mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False),
            mock.patch("torch.cuda.is_bf16_supported", return_value=True),
            mock.patch.object(F, "scaled_dot_product_attention", attention_of_gpu),
        ):
            yield
    finally:
        kernels._destroy()
        guards[gpu] = guard_before


def on_gpu(model: nn.Module, inputs: Inputs) -> tuple[nn.Module, Inputs]:
    """Return a model and its inputs with fake tensors of a GPU; inside of `fake_gpu`."""
    fakes: dict[int, Tensor] = {}

    def moved(tensor: Tensor) -> Tensor:
        if id(tensor) not in fakes:
            fake = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda"
            )
            is_weight = isinstance(tensor, nn.Parameter)
            fakes[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_weight else fake
        return fakes[id(tensor)]

    with _disable_current_modes():
        model = deepcopy(model).train()
    for module in model.modules():
        tables: list[dict[str, Any]] = [module._parameters, module._buffers]
        for tensors in tables:
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = moved(tensor)
    return model, tree_map_only(Tensor, moved, inputs)


def train(
    model: nn.Module,
    inputs: Inputs,
    loss_fn: Callable[[Any], Tensor],
    autocast: torch.dtype | None,
    before_backward: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Run a model on fake tensors forward and backward; return what a loop has in variables."""
    arguments, keywords = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    with torch.autocast("cuda", autocast) if autocast else nullcontext():
        outputs = model(*arguments, **keywords)
        loss = loss_fn(outputs)
    held = [tensor.untyped_storage() for tensor in _tensors((outputs, loss))]
    before_backward()
    ready, gradient = [loss.grad_fn], torch.ones_like(loss)
    del outputs, loss
    run_backward(ready, gradient)
    return held


def ops_on_gpu(
    model: nn.Module,
    inputs: Inputs,
    loss_fn: Callable[[Any], Tensor],
    autocast: torch.dtype | None,
) -> tuple[list[Made], Counter[Made]]:
    """Return what a training step runs forward, in order, and backward, in any order."""
    recorder = MadeTensors()
    forward: list[Made] = []

    def turn() -> None:
        forward.extend(recorder.ops)
        recorder.ops, recorder.is_backward = [], True

    with fake_gpu():
        fakes = on_gpu(model, inputs)
        with CudnnLayouts(), recorder:  # type: ignore[no-untyped-call]
            train(*fakes, loss_fn, autocast, turn)
    return forward, Counter(recorder.ops)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address

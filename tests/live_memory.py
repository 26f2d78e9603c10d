"""The oracle of peak memory: what PyTorch's allocator hands out while a step runs on the CPU."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from memory_loops import Loop
from memory_steps import MemoryStep
from torch.utils import _pytree as pytree


def peak_bytes(step: MemoryStep) -> int:
    """Return the most bytes of tensors during a step, after one that makes the optimizer's state.

    The step is that of a training loop, which has the batch, the outputs and the loss in variables,
    or one of inference without gradients.
    """
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(0)
        model, batch, target = step.make()
        if not step.is_training:
            with torch.no_grad():
                model.eval()
                return _peak(lambda: model(*batch), [model.state_dict(), *batch])
        optimizer = step.optimizer([*model.parameters()])
        for group in optimizer.param_groups:
            group.update({name: False for name in ("foreach", "fused") if group.get(name) is None})

        def train() -> tuple[Any, torch.Tensor]:
            optimizer.zero_grad()
            for each in batch:
                each.grad = None
            outputs = model(*batch)
            loss = step.loss(outputs, target)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return outputs, loss

        state = [dict(optimizer.state), model.state_dict(keep_vars=True)]
        return _peak(train, [*state, *batch, target])


def peak_bytes_of_loop(loop: Callable[[], Loop]) -> int:
    """Return the most bytes of tensors during a step of a loop, after one of before."""
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(0)
        made = loop()
        weights = [weight for module in made.modules for weight in module.parameters()]
        there = [*weights, *made.batch, *map(vars, weights)]
        return _peak(lambda: made.step(*made.batch), there)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let kernels be the same on all machines: which one runs depends on the number of threads."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _peak(run: Callable[[], object], there: list[Any]) -> int:
    """Return the most bytes while something runs a second time; it begins with some tensors."""
    tensors = [leaf for leaf in pytree.tree_leaves(there) if isinstance(leaf, torch.Tensor)]
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    gc.collect()
    gc.disable()
    try:
        with torch.autograd.profiler.profile(use_device=None, profile_memory=True) as profile:
            run()
            with torch.autograd.profiler.record_function("second"):
                kept = run()
    finally:
        gc.enable()
    del kept
    events = sorted(profile.kineto_results.events(), key=lambda event: event.start_ns())
    (second,) = (event.start_ns() for event in events if event.name() == "second")
    held = most = sum(storage.nbytes() for storage in storages.values())
    for event in events:
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held) if event.start_ns() > second else held
    return most

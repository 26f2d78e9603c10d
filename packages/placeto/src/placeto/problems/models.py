"""The graphs of models, captured once and kept in the user's cache folder; and steps that run."""

from typing import Any

import torch

from placeto.problems.cache import cached_graph
from placeto_capture import Target, capture
from placeto_graphs import OpGraph
from placeto_workloads import MODELS, FamilyMember, TrainingStep, training_step
from placeto_workloads.registry import checked_sizes


def load_model_graph(name: str, target: Target = "gpu", /, **sizes: int) -> OpGraph:
    """Return the graph of one training step of a registered model, with Adam.

    It is captured once and kept in the user's cache folder: ``$PLACETO_CACHE_DIR/graphs``, else
    ``placeto/graphs`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. Another version of PyTorch or of
    the source captures anew.

    Parameters
    ----------
    name
        One of `placeto_workloads.MODELS`.
    target
        Device whose kernels run, ``"gpu"`` or ``"cpu"``, as `placeto_capture.capture` takes it.
    **sizes
        Other sizes than the published ones; ``placeto_workloads.MODELS[name].sizes`` lists them.

    Raises
    ------
    placeto_workloads.WorkloadError
        If there is no such model or size, or the sizes make no network.
    placeto_capture.CaptureError
        If there is no such target.

    Examples
    --------
    >>> from placeto import load_model_graph
    >>> graph = load_model_graph("nmt-2", steps=4, batch_size=8, units=16, vocabulary_size=100)
    >>> "encoder.layer1.step3" in graph.scopes
    True
    """
    if name in MODELS:
        sizes = checked_sizes(name, MODELS[name].sizes, sizes)
    return cached_graph(
        name,
        {**sizes, "target": target},
        lambda: capture_step(training_step(name, device="meta", seed=0, **sizes), target),
    )


def family_graph(member: FamilyMember) -> OpGraph:
    """Return the graph of a training step of a family graph, from the cache if it was captured.

    Examples
    --------
    >>> from placeto import family_graph
    >>> from placeto_workloads import family
    >>> nmt = family("nmt", units=8, vocabulary_size=10)
    >>> nmt.grouping(family_graph(nmt.test[0])).num_groups
    160
    """
    parameters: dict[str, Any] = {**member.sizes, "architecture": member.architecture}
    return cached_graph(
        f"family-{member.family}", parameters, lambda: capture_step(member.training_step())
    )


def capture_step(
    step: TrainingStep,
    target: Target = "gpu",
    *,
    autocast: torch.dtype | None = None,
) -> OpGraph:
    """Return the graph of a training step, with Adam unless it has another optimizer.

    Parameters
    ----------
    step
        The step.
    target, autocast
        As of `placeto_capture.capture`.

    Examples
    --------
    >>> from placeto import capture_step
    >>> from placeto_workloads import training_step
    >>> step = training_step("nmt-2", steps=2, batch_size=2, units=8, vocabulary_size=10)
    >>> "aten.addmm" in capture_step(step).op_types
    True
    """
    return capture(**step._asdict(), target=target, autocast=autocast)

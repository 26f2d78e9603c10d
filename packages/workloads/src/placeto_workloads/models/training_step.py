"""A model with what one training step of it reads, and how one is built of checked sizes."""

import inspect
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple, ParamSpec

import torch
from torch import Tensor, nn

from placeto_graphs import TokenCache
from placeto_workloads.errors import WorkloadError

LARGEST_SIZE = 2**24  # of each size of a model: a larger one is a mistake

LossFunction = Callable[[Any], Tensor]
OptimizerFactory = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
Parameters = ParamSpec("Parameters")


class TrainingStep(NamedTuple):
    """A model, the inputs of one step, and how its outputs become a loss.

    It is the tuple that a factory of a user's own returns, too.

    Attributes
    ----------
    model
        Model, in training mode.
    example_inputs
        Positional arguments of the model as a tuple, or its keyword arguments as a mapping. On the
        meta device they have shapes but no content, as the model has, and take no memory.
    loss_fn
        Function from outputs to a scalar; None if the model returns the loss itself.
    optimizer
        Function from parameters to an optimizer; None for Adam.
    mode
        Kind of step: ``"training"``, or ``"inference"`` for the forward pass alone.
    mask_fraction
        Fraction of all elements that masks of unknown values pick, above 0 and up to 1; None
        refuses such masks.
    updates
        Order of the updates: ``"after-backward"``, or ``"as-ready"`` for that of TensorFlow, which
        updates each weight as soon as its gradient is there.
    parameter_bytes
        Bytes that parameters and inputs are held in, by name, if these are not those of their
        dtype, as with quantized weights and caches; for inference only.
    experts_per_token
        Number of experts that each token goes to in a mixture of experts.
    cache
        What a step of inference keeps of earlier tokens.

    Examples
    --------
    >>> from placeto_workloads import inception_v3
    >>> step = inception_v3(batch_size=8)
    >>> [tuple(tensor.shape) for tensor in step.example_inputs]
    [(8, 3, 299, 299), (8,)]
    >>> sum(weights.numel() for weights in step.model.parameters())
    23834568
    """

    model: nn.Module
    example_inputs: Any
    loss_fn: LossFunction | None = None
    optimizer: OptimizerFactory | None = None
    mode: str = "training"
    mask_fraction: float | None = None
    updates: str = "after-backward"
    parameter_bytes: Mapping[str, int] | None = None
    experts_per_token: int = 1
    cache: TokenCache | None = None


class Classification(nn.Module):
    """A network of float32[batch, 3, height, width] with the cross-entropy of its logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.loss(self.network(images), labels)
        return loss


def whole_number(name: str, value: Any, minimum: int = 1) -> int:
    """Return one size after checking it: an integer, no bool, from ``minimum`` to 16,777,216."""
    try:
        integer = operator.index(value)
    except TypeError:
        integer = minimum - 1
    if not minimum <= integer <= LARGEST_SIZE or isinstance(value, bool):
        raise WorkloadError(
            f"{name}: expected an integer from {minimum} to {LARGEST_SIZE}, got {value!r}"
        )
    return integer


def default_sizes(
    build: Callable[..., TrainingStep], fixed: Collection[str] = ()
) -> dict[str, int]:
    """Return the sizes that a factory takes, but the fixed ones, with their defaults."""
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(build).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        and parameter.name not in {"device", "seed", *fixed}
    }


def checked_sizes(
    owner: str, defaults: Mapping[str, int], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Return all sizes by name, those of ``sizes`` instead of the defaults, each checked."""
    for name in sizes:
        if name not in defaults:
            raise WorkloadError(
                f"{owner}: expected sizes among {', '.join(defaults)}, got {name!r}"
            )
    return {name: whole_number(name, sizes.get(name, defaults[name])) for name in defaults}


class _NoNetworkError(Exception):
    """The sizes of a factory make no network."""


def of_checked_sizes(
    build: Callable[Parameters, TrainingStep],
) -> Callable[Parameters, TrainingStep]:
    """Decorate a factory: sizes have to be whole numbers of at least 1, and make a network."""
    defaults = default_sizes(build)

    @wraps(build)
    def checked(*args: Parameters.args, **arguments: Parameters.kwargs) -> TrainingStep:
        sizes = {
            name: whole_number(name, arguments.get(name, default))
            for name, default in defaults.items()
        }
        arguments.update(sizes)
        try:
            return build(*args, **arguments)
        except _NoNetworkError as error:
            size_text = ", ".join(f"{name}={value}" for name, value in sizes.items())
            raise WorkloadError(
                f"{size_text}: expected sizes that make a network, got: {error}"
            ) from error

    return checked


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw random numbers of the CPU from a seed, and leave the caller's as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def build_training_step(
    make_model: Callable[[], nn.Module],
    make_inputs: Callable[[], tuple[Tensor, ...]],
    *,
    device: torch.device | str,
    seed: int,
) -> TrainingStep:
    """Build a step on a device, after its shapes were tried on the meta device.

    Its updates have the order of TensorFlow, in which the paper measured. Weights and inputs are
    equal on every device but meta, where they have none. The state of PyTorch's random numbers is
    left as it was.
    """
    with torch.device("meta"), torch.no_grad():
        try:
            step = TrainingStep(make_model(), make_inputs(), updates="as-ready")
            step.model(*step.example_inputs)
        except (RuntimeError, ValueError) as error:
            raise _NoNetworkError(str(error).splitlines()[0]) from error
    if torch.device(device).type == "meta":
        return step
    with seeded(seed):
        model, inputs = make_model(), make_inputs()
    return step._replace(
        model=model.to(device), example_inputs=tuple(tensor.to(device) for tensor in inputs)
    )


def build_classification_step(
    make_network: Callable[[], nn.Module],
    batch_size: int,
    image_size: int,
    num_classes: int,
    *,
    device: torch.device | str,
    seed: int,
) -> TrainingStep:
    """Build a step of a network of square images; see `build_training_step`."""

    def make_inputs() -> tuple[Tensor, ...]:
        images = torch.randn(batch_size, 3, image_size, image_size)
        return images, torch.randint(num_classes, (batch_size,))

    return build_training_step(
        lambda: Classification(make_network()), make_inputs, device=device, seed=seed
    )

"""Files of weights: what their headers say of a model, and the bytes of each of its parameters.

Only headers are read, never the weights behind them. Here are those of safetensors;
`gguf_files` has the others.
"""

import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from placeto_graphs import error_line
from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.loading import import_library, read_json

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
BITS = re.compile("(?:BF|F|I|U|C)([0-9]+)(?:_.+)?")  # BF16, F8_E4M3, I32
FLOATS = ("BF16", "F16", "F32", "F64")  # of weights that are not quantized
# In files the experts of a layer are tensors of their own, in models they are one.
EXPERT = re.compile(r"(?P<experts>.+\.experts)\.[0-9]+\.(?P<part>\w+)(?:\..+)?")
PART_OF_EXPERTS = {
    **dict.fromkeys(("gate_proj", "up_proj", "w1", "w3"), "gate_up_proj"),
    **dict.fromkeys(("down_proj", "w2"), "down_proj"),
}
# What wrappers of PyTorch put before the names of what they wrap.
WRAPPERS = re.compile(
    r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|module)\."
)
OLD_NAMES = {".block_sparse_moe.": ".mlp."}


class StoredTensor(NamedTuple):
    """A tensor in a file: its shape, as in PyTorch, and its bytes with the scales of blocks."""

    shape: tuple[int, ...]
    num_bytes: int


class StoredModel:
    """A model in files of weights: its configuration, as in a ``config.json``, and its tensors."""

    def __init__(
        self, path: Path, config: dict[str, Any], tensors: Mapping[str, StoredTensor]
    ) -> None:
        self.path = path
        self.config = config
        self.tensors = tensors

    def parameter_bytes(self, model: nn.Module) -> Mapping[str, int]:
        """Return the bytes of each parameter of the model that is built of the configuration."""
        raise NotImplementedError

    def missing_tensor(self, parameter: str, unused: list[str]) -> WorkloadError:
        """Return the error of a parameter that no tensor holds."""
        got = f"none, but {unused[0]}, which is no parameter" if unused else "none"
        return WorkloadError(f"{self.path}: expected a tensor of {parameter}, got {got}")

    def warn_of_unused(self, unused: list[str]) -> None:
        """Warn of tensors that are no parameters."""
        if unused:
            num_bytes = sum(self.tensors[name].num_bytes for name in unused)
            warnings.warn(
                f"{self.path}: {len(unused)} tensors of {num_bytes:,} bytes are no parameters of "
                f"the model and count nothing, such as {unused[0]}",
                stacklevel=3,
            )


def shape_text(shape: Iterable[object]) -> str:
    """Return a shape as text, such as ``4096 x 128``."""
    return " x ".join(str(size) for size in shape) or "()"


class SafetensorsModel(StoredModel):
    """The model in safetensors files, with the ``config.json`` beside them."""

    def __init__(self, path: Path) -> None:
        folder, files = _files(path)
        if not (folder / CONFIG).is_file():
            raise WorkloadError(f"{path}: expected the {CONFIG} of the model beside it, got none")
        config = read_json(folder / CONFIG)
        config.pop("quantization_config", None)  # it says nothing that the tensors do not
        tensors: dict[str, StoredTensor] = {}
        self._plain: set[str] = set()
        for file in files:
            for name, dtype, tensor in _read(file):
                if name in tensors:
                    raise WorkloadError(f"{file}: expected {name} in one file of the model alone")
                tensors[name] = tensor
                if dtype in FLOATS:
                    self._plain.add(name)
        super().__init__(path, config, tensors)

    def parameter_bytes(self, model: nn.Module) -> dict[str, int]:
        parameters = dict(model.named_parameters(remove_duplicate=False))
        prefix = f"{getattr(model, 'base_model_prefix', '')}."
        tensors_of: dict[str, list[str]] = {}
        unused: list[str] = []
        for name in self.tensors:
            plain = WRAPPERS.sub("", name)
            without_model = plain.removeprefix("model.")  # which Lightning puts before names
            for spelling in (name, plain, prefix + plain, without_model):
                parameter = _parameter_of(spelling, parameters)
                if parameter is not None:
                    tensors_of.setdefault(parameter, []).append(name)
                    break
            else:
                unused.append(name)
        num_bytes: dict[nn.Parameter, int] = {}  # tied ones are one
        for parameter, names in tensors_of.items():
            weights = parameters[parameter]
            self._check_shape(parameter, tuple(weights.shape), names)
            count = sum(self.tensors[name].num_bytes for name in names)
            num_bytes[weights] = max(count, num_bytes.get(weights, 0))
        for name, weights in model.named_parameters():
            if weights not in num_bytes:
                raise self.missing_tensor(name, unused)
        self.warn_of_unused(unused)
        return {name: num_bytes[weights] for name, weights in model.named_parameters()}

    def _check_shape(self, parameter: str, shape: tuple[int, ...], names: list[str]) -> None:
        """Check the tensors of a parameter; of quantized ones nobody knows the shapes."""
        shapes = [self.tensors[name].shape for name in names]
        if not self._plain.issuperset(names) or shapes == [shape]:
            return
        if len(shapes) == 1 or prod(shape) != sum(map(prod, shapes)):
            raise WorkloadError(
                f"{self.path}: expected {parameter} of the shape {shape_text(shape)}, as {CONFIG} "
                f"says, got {' and '.join(map(shape_text, shapes))}"
            )


def _files(path: Path) -> tuple[Path, list[Path]]:
    """Return the folder of a model and the files of its weights."""
    if path.is_dir():
        if (path / INDEX).is_file():
            path /= INDEX
        elif (path / SINGLE).is_file():
            path /= SINGLE
        else:
            raise WorkloadError(f"{path}: expected {INDEX} or {SINGLE} in it, got neither")
    if not path.name.endswith(".json"):
        return path.parent, [path]
    places = read_json(path).get("weight_map")
    if not isinstance(places, Mapping) or not places:
        raise WorkloadError(f"{path}: expected a weight_map, got {places!r:.50}")
    names = dict.fromkeys(places.values())
    for name in names:
        if not isinstance(name, str) or name != Path(name).name:
            raise WorkloadError(f"{path}: expected names of files beside it, got {name!r:.50}")
    return path.parent, [path.parent / name for name in names]


def _read(path: Path) -> Iterator[tuple[str, str, StoredTensor]]:
    """Give the tensors of a file: name, dtype, and shape with bytes."""
    library = import_library("safetensors", "safetensors")
    if not path.is_file():
        raise WorkloadError(f"{path}: expected a safetensors file, got none")
    try:
        with library.safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                stored_slice = file.get_slice(name)
                shape, dtype = tuple(stored_slice.get_shape()), stored_slice.get_dtype()
                yield name, dtype, StoredTensor(shape, -(-prod(shape) * _bits(dtype) // 8))
    except (OSError, library.SafetensorError) as error:
        raise WorkloadError(
            f"{path}: expected a safetensors file, got {error_line(error)}"
        ) from error


def _bits(dtype: str) -> int:
    """Return the bits of an element: 16 of BF16, 8 of F8_E4M3 and of BOOL."""
    match = BITS.fullmatch(dtype)
    return int(match[1]) if match else 8


def _parameter_of(name: str, parameters: Collection[str]) -> str | None:
    """Return the parameter that a tensor belongs to.

    ``q_proj.qzeros`` belongs to ``q_proj.weight``, and ``mlp.experts.7.w1.weight`` and
    ``mlp.experts.gate_up_proj_scales`` to ``mlp.experts.gate_up_proj``.
    """
    for old, new in OLD_NAMES.items():
        name = name.replace(old, new)
    if name in parameters:
        return name
    match = EXPERT.fullmatch(name)
    if match and match["part"] in PART_OF_EXPERTS:
        name = f"{match['experts']}.{PART_OF_EXPERTS[match['part']]}"
        return name if name in parameters else None
    without_kind = name
    while "_" in without_kind.rpartition(".")[2]:
        without_kind = without_kind.rpartition("_")[0]
        if without_kind in parameters:
            return without_kind
    module = name
    while module := module.rpartition(".")[0]:
        for parameter in (module, f"{module}.weight"):
            if parameter in parameters:
                return parameter
    return None

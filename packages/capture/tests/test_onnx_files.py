"""ONNX files: what is captured of the file is what is captured of the module."""

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from placeto_capture import CaptureError, capture, program_step
from placeto_graphs import OpGraph
from written_programs import convolutions

onnx = pytest.importorskip("onnx")
helper = pytest.importorskip("onnx.helper")
reference = pytest.importorskip("onnx.reference")
FLOAT = 1


def perceptron() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid())
    return model.eval(), (torch.randn(3, 6),)


def written(path: Path, model: nn.Module, inputs: tuple[torch.Tensor, ...], **options: Any) -> Path:
    """Write a model as ONNX, without the libraries that the newer exporter needs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, inputs, str(path), dynamo=False, **options)
    return path


def made(
    path: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[int | str, ...]],
    initializers: Sequence[Any] = (),
    *,
    version: int = 18,
) -> Path:
    """Write a graph of some nodes, whose last one gives the output."""
    infos = [helper.make_tensor_value_info(n, FLOAT, s) for n, s in inputs.items()]
    output = helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, None)
    graph = helper.make_graph(nodes, "graph", infos, [output], list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    path.write_bytes(model.SerializeToString())
    return path


def without_names(graph: OpGraph) -> tuple[Any, ...]:
    return (
        graph.op_types,
        graph.phases.tolist(),
        graph.flops.tolist(),
        graph.bytes_accessed.tolist(),
        graph.parameter_bytes.tolist(),
        graph.tensor_bytes.tolist(),
        graph.edges.tolist(),
    )


@pytest.mark.parametrize("make", [perceptron, lambda: convolutions(training=False)])
def test_a_file_is_captured_as_its_module_is(
    tmp_path: Path, make: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]
) -> None:
    model, inputs = make()
    step = program_step(written(tmp_path / "model.onnx", model, inputs))
    assert [tuple(t.shape) for t in step.example_inputs] == [tuple(t.shape) for t in inputs]
    graph = capture(*step)
    for module in model.modules():  # what a file for inference leaves out
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    expected = capture(model.eval(), inputs, mode="inference")
    assert without_names(capture(step.model, step.example_inputs, mode="inference")) == (
        without_names(expected)
    )
    scopes = set(graph.scopes) - {"", "loss", "optimizer"}
    assert scopes == set(expected.scopes) - {""}
    weights = sum(weight.nbytes for weight in model.parameters())
    assert sum(weight.nbytes for weight in step.model.parameters()) == weights


def test_training_a_file_is_training_its_module(tmp_path: Path) -> None:
    model, inputs = perceptron()
    graph = capture(*program_step(written(tmp_path / "model.onnx", model, inputs)))
    assert without_names(graph) == without_names(capture(model, inputs))


def test_open_dimensions_are_asked_for_and_given(tmp_path: Path) -> None:
    model, inputs = perceptron()
    options = {"input_names": ["rows"], "dynamic_axes": {"rows": {0: "batch"}}}
    path = written(tmp_path / "model.onnx", model, inputs, **options)
    with pytest.raises(CaptureError, match=r"dimension 0 of rows: --set batch=N$"):
        program_step(path)
    for sizes in ({"batch_size": 7}, {"batch": 7}):
        graph = capture(*program_step(path, **sizes))
        assert without_names(graph) == without_names(capture(model, torch.ones(7, 6)))
    with pytest.raises(CaptureError, match=r"leaves open \(batch\), got 'width'$"):
        program_step(path, batch=7, width=3)


def op(name: str, inputs: str, **attributes: Any) -> Any:
    return helper.make_node(name, inputs.split(), ["result"], **attributes)


def numbers(name: str, *values: int) -> Any:
    return helper.make_tensor(name, 7, [len(values)], values)


SHAPE = (2, 4, 6, 6)
IMAGE = {"x": SHAPE}
TWO = {"x": SHAPE, "y": (4, 1, 6)}
# Each against the reference implementation of the onnx library.
OPS: dict[str, tuple[Any, Mapping[str, tuple[int, ...]], list[Any]]] = {
    "average pooling": (
        op("AveragePool", "x", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 0]),
        IMAGE,
        [],
    ),
    "clipping": (op("Clip", "x low"), IMAGE, [helper.make_tensor("low", 1, [], [0.25])]),
    "concatenation": (op("Concat", "x x", axis=2), IMAGE, []),
    "convolution": (
        op("Conv", "x w", pads=[1, 0, 2, 0], strides=[2, 1], group=2),
        {"x": SHAPE, "w": (6, 2, 3, 2)},
        [],
    ),
    "cumulative sum": (op("CumSum", "x axis"), IMAGE, [helper.make_tensor("axis", 7, [], [1])]),
    "depth to space": (op("DepthToSpace", "x", blocksize=2), IMAGE, []),
    "division": (op("Div", "x y"), TWO, []),
    "einsum": (op("Einsum", "x x", equation="abcd,abed->abce"), IMAGE, []),
    "expansion": (op("Expand", "y shape"), {"y": (4, 1, 6)}, [numbers("shape", 2, 4, 6, 6)]),
    "flattening": (op("Flatten", "x", axis=2), IMAGE, []),
    "gather": (op("Gather", "x places", axis=1), IMAGE, [numbers("places", 3, 0, 3)]),
    "matrix product": (
        op("Gemm", "a b c", transA=1, alpha=0.5, beta=2.0),
        {"a": (3, 4), "b": (3, 5), "c": (5,)},
        [],
    ),
    "hard sigmoid": (op("HardSigmoid", "x"), IMAGE, []),
    "layer normalisation": (
        op("LayerNormalization", "x w b", axis=2),
        {"x": SHAPE, "w": (6, 6), "b": (6, 6)},
        [],
    ),
    "leaky": (op("LeakyRelu", "x", alpha=0.3), IMAGE, []),
    "largest pooling": (
        op("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
        IMAGE,
        [],
    ),
    "padding": (op("Pad", "x pads"), IMAGE, [numbers("pads", 0, 1, 0, 2, 0, 0, 3, 0)]),
    "mean": (op("ReduceMean", "x axes", keepdims=0), IMAGE, [numbers("axes", 1, -1)]),
    "squares": (op("ReduceSumSquare", "x"), IMAGE, []),
    "reshaping": (op("Reshape", "x shape"), IMAGE, [numbers("shape", 0, -1, 3)]),
    "slices": (
        op("Slice", "x starts ends axes steps"),
        IMAGE,
        [
            numbers("starts", 1, -1),
            numbers("ends", 4, -(2**60)),
            numbers("axes", 1, 3),
            numbers("steps", 2, -1),
        ],
    ),
    "softmax": (op("Softmax", "x", axis=1), IMAGE, []),
    "space to depth": (op("SpaceToDepth", "x", blocksize=3), IMAGE, []),
    "squeezing": (op("Squeeze", "y axes"), {"y": (4, 1, 6)}, [numbers("axes", 1)]),
    "transposition": (op("Transpose", "x", perm=[0, 2, 3, 1]), IMAGE, []),
    "transposed convolution": (
        op("ConvTranspose", "x w", strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
        {"x": SHAPE, "w": (4, 3, 3, 3)},
        [],
    ),
    "triangle": (op("Trilu", "x", upper=0), IMAGE, []),
    "unsqueezing": (op("Unsqueeze", "y axes"), {"y": (4, 6)}, [numbers("axes", 0, -1)]),
}


@pytest.mark.parametrize("name", OPS)
def test_an_op_gives_what_the_reference_gives(tmp_path: Path, name: str) -> None:
    node, shapes, constants = OPS[name]
    path = made(tmp_path / "model.onnx", [node], shapes, constants)
    random = np.random.default_rng(7)
    values = {key: random.standard_normal(s).astype(np.float32) for key, s in shapes.items()}
    (expected,) = reference.ReferenceEvaluator(str(path)).run(None, values)
    given = [torch.from_numpy(value) for value in values.values()]
    result = program_step(path).model(*given)
    torch.testing.assert_close(result, torch.from_numpy(np.array(expected)), rtol=1e-4, atol=1e-5)


def test_shapes_that_are_computed_are_known(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["rows"], axis=0),
        helper.make_node("Concat", ["rows", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["scores"]),
    ]
    weight = helper.make_tensor("w", 1, [144, 3], np.zeros(432, np.float32))
    constants = [numbers("first", 0), numbers("rest", -1), weight]
    path = made(tmp_path / "model.onnx", nodes, {"x": ("batch", 4, 6, 6)}, constants)
    step = program_step(path, batch_size=5)
    types = Counter(capture(*step).op_types)
    assert types["aten.mm"] == 2  # one there, one back
    assert [tuple(weight.shape) for weight in step.model.parameters()] == [(144, 3)]


def _external(path: Path) -> Path:
    tensor = helper.make_tensor("w", 1, [4], [0.0] * 4)
    tensor.ClearField("float_data")
    tensor.data_location = 1
    tensor.external_data.add(key="location", value="../../secret")
    return made(path, [helper.make_node("Add", ["x", "w"], ["y"])], {"x": (2, 4)}, [tensor])


def test_no_other_file_is_read(tmp_path: Path) -> None:
    step = program_step(_external(tmp_path / "model.onnx"))
    assert step.model.get_parameter("w").is_meta


HOSTILE: dict[str, tuple[Any, list[Any], str]] = {
    "an op of others": (
        helper.make_node("Run", ["x"], ["y"], domain="evil"),
        [],
        "known, got 'evil::Run'",
    ),
    "an unknown op": (helper.make_node("ImageDecoder", ["x"], ["y"]), [], "got 'ImageDecoder'"),
    "a graph within": (
        helper.make_node(
            "If",
            ["x"],
            ["y"],
            then_branch=helper.make_graph([], "a", [], []),
            else_branch=helper.make_graph([], "b", [], []),
        ),
        [],
        "got 'If'",
    ),
    "a name of code": (
        helper.make_node("Add", ["x", "w"], ["y"], name='/x"); import os; ("/Add'),
        [helper.make_tensor('w"); import os; ("', 8, [1], [b"text"])],
        "expected a dtype of numbers",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_op_on_tensors_is_refused(tmp_path: Path, what: str) -> None:
    node, constants, message = HOSTILE[what]
    path = made(tmp_path / "model.onnx", [node], {"x": (2, 3)}, constants)
    with pytest.raises(CaptureError) as caught:
        capture(*program_step(path))
    assert message in str(caught.value)


@pytest.mark.parametrize("size", [2**40, -1])
def test_a_constant_that_would_fill_the_memory_is_refused(tmp_path: Path, size: int) -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["many"]),
        helper.make_node("Add", ["x", "many"], ["y"]),
    ]
    path = made(tmp_path / "model.onnx", nodes, {"x": (2, 3)}, [numbers("size", size)])
    step = program_step(path)
    with pytest.raises(CaptureError, match="ConstantOfShape"):
        capture(step.model, step.example_inputs, mode="inference")


def test_names_in_a_file_are_only_names(tmp_path: Path) -> None:
    name = '0.weight"); open("sprung", "w"); ("'
    weight = helper.make_tensor(name, 1, [3], [0.0] * 3)
    node = helper.make_node("Mul", ["x", name], ["y"], name=f"/{name}/Mul")
    step = program_step(made(tmp_path / "model.onnx", [node], {"x": (2, 3)}, [weight]))
    assert [key for key, _ in step.model.named_parameters()] == ["initializer_0"]
    assert "aten.mul" in capture(*step).op_types


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"PK\x03\x04", b"{}"])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=r"model\.onnx: expected an ONNX file, got"):
        program_step(path)


def test_a_damaged_file_ends_in_one_line(tmp_path: Path) -> None:
    path = written(tmp_path / "model.onnx", *perceptron())
    content = path.read_bytes()
    for place in range(0, len(content), len(content) // 100):
        for spoilt in (content[:place], content[:place] + b"\xff" + content[place + 1 :]):
            path.write_bytes(spoilt)
            with suppress(CaptureError):
                capture(*program_step(path))


def test_the_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "model.onnx", *perceptron())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(CaptureError, match=r"pip install 'placeto-capture\[onnx\]'$"):
        program_step(path)

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
from torch.nn import functional

from captured_models import Function
from placeto_capture import CaptureError, capture, program_step
from placeto_capture.programs.onnx_file import OF_CONSTANTS, TRANSLATED
from placeto_graphs import OpGraph
from written_programs import convolutions

onnx = pytest.importorskip("onnx")
helper = pytest.importorskip("onnx.helper")
numpy_helper = pytest.importorskip("onnx.numpy_helper")
onnx_cases = pytest.importorskip("onnx.backend.test.case.node")
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


def written_graph(
    path: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[int | str | None, ...] | None],
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


def test_open_dimensions_are_asked_for_and_given(tmp_path: Path) -> None:
    model, inputs = perceptron()
    options = {"input_names": ["rows"], "dynamic_axes": {"rows": {0: "batch"}}}
    path = written(tmp_path / "model.onnx", model, inputs, **options)
    with pytest.raises(CaptureError, match=r"dimension 0 of rows: --set batch=N$"):
        program_step(path)
    for sizes in ({"batch_size": 7}, {"batch": 7}):
        graph = capture(*program_step(path, trust=False, **sizes))
        assert without_names(graph) == without_names(capture(model, torch.ones(7, 6)))
    with pytest.raises(CaptureError, match=r"leaves open \(batch\), got 'width'$"):
        program_step(path, batch=7, width=3)


def test_the_batch_is_the_first_dimension_and_given_once(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((6, 6), np.float32), "weight")
    product = [helper.make_node("MatMul", ["rows", "weight"], ["scores"])]
    both = written_graph(tmp_path / "both.onnx", product, {"rows": ("N", "S", 6)}, [weight])
    (rows,) = program_step(both, batch_size=7, S=3).example_inputs
    assert rows.shape == (7, 3, 6)
    with pytest.raises(CaptureError, match=r"leaves open \(N, S\), got 'batch_size'$"):
        program_step(both, batch_size=7, N=4, S=3)
    words = written_graph(tmp_path / "words.onnx", product, {"rows": (1, "S", 6)}, [weight])
    with pytest.raises(CaptureError, match=r"leaves open \(S\), got 'batch_size'$"):
        program_step(words, batch_size=7)
    named = written_graph(tmp_path / "named.onnx", product, {"rows": ("path", 6)}, [weight])
    assert program_step(named, path=2).example_inputs[0].shape == (2, 6)


def test_scales_of_images_are_no_weights(tmp_path: Path) -> None:
    # Without variables, which would keep in memory what the file does not.
    model = Function(lambda x: functional.interpolate(x, scale_factor=2.0).clamp(0.0, 6.0))
    inputs = (torch.randn(2, 3, 8, 8),)
    path = written(tmp_path / "model.onnx", model, inputs, opset_version=11)
    as_initializers(path)
    step = program_step(path)
    assert not [*step.model.parameters()]
    assert without_names(capture(step.model, step.example_inputs, mode="inference")) == (
        without_names(capture(model, inputs, mode="inference"))
    )


def as_initializers(path: Path) -> None:
    """Write constants as initializers, as the exporter of torch.export does."""
    model = onnx.load(path)
    constants = [node for node in model.graph.node if node.op_type == "Constant"]
    for node in constants:
        value = node.attribute[0].t
        value.name = node.output[0]
        model.graph.initializer.append(value)
        model.graph.node.remove(node)
    onnx.save(model, path)


def test_weights_may_be_constants_of_nodes(tmp_path: Path) -> None:
    model, inputs = convolutions()
    path = written(tmp_path / "model.onnx", model, inputs)
    expected = capture(*program_step(path))
    file = onnx.load(path)
    for value in reversed(file.graph.initializer):
        file.graph.node.insert(0, helper.make_node("Constant", [], [value.name], value=value))
    del file.graph.initializer[:]
    onnx.save(file, path)
    graph = capture(*program_step(path))
    assert graph.parameter_bytes.sum() == expected.parameter_bytes.sum() > 0
    assert without_names(graph) == without_names(expected)


def test_scales_of_old_files_are_an_attribute(tmp_path: Path) -> None:
    node = helper.make_node("Upsample", ["x"], ["y"], mode="nearest", scales=[1.0, 1.0, 2.0, 3.0])
    path = written_graph(tmp_path / "model.onnx", [node], {"x": (1, 1, 1, 2)}, version=7)
    picture = program_step(path).model(torch.tensor([[[[1.0, 2.0]]]]))
    assert picture.tolist() == [[[[1, 1, 1, 2, 2, 2]] * 2]]


def test_what_was_exported_for_training_trains(tmp_path: Path) -> None:
    model, inputs = convolutions(training=True)
    training = torch.onnx.TrainingMode.TRAINING
    path = written(
        tmp_path / "model.onnx", model, inputs, training=training, do_constant_folding=False
    )
    graph, expected = capture(*program_step(path)), capture(model, inputs)
    for op_type in ("native_batch_norm", "native_dropout", "native_batch_norm_backward"):
        assert graph.op_types.count(f"aten.{op_type}") == 1
    # The exported file has no count of batches.
    assert graph.flops.sum() == pytest.approx(expected.flops.sum(), rel=0.01)
    norm = graph.op_names.index(next(n for n in graph.op_names if n.endswith("running_mean")))
    assert graph.op_types[norm] == "buffer"


def whole_numbers(name: str, *values: int) -> Any:
    return helper.make_tensor(name, 7, [len(values)], values)


# Ops that are in no case of the onnx library with attributes that are read, and cases that
# have several right results: PyTorch's running variance is that of a sample.
NOT_SHOWN = {"LayerNormalization", "Upsample"}
NOT_UNIQUE = (
    "test_batchnorm_epsilon_training_mode",
    "test_batchnorm_example_training_mode",
    "test_top_k_same_values",
    "test_training_dropout",
)
COMPUTED = {  # indices that count from the end
    "test_gather_negative_indices",
    "test_gather_elements_negative_indices",
    "test_scatter_elements_with_negative_indices",
    "test_scatternd",
}


@pytest.mark.filterwarnings("ignore")  # of NumPy, about what the cases compute
def test_every_op_gives_what_the_onnx_library_expects_or_is_refused(tmp_path: Path) -> None:
    op_types, checked = {*TRANSLATED, *OF_CONSTANTS}, set()
    for example in onnx_cases.collect_testcases(None):
        types = {node.op_type for node in example.model.graph.node}
        if not types <= op_types or not example.data_sets or example.name.startswith(NOT_UNIQUE):
            continue
        inputs, expected = example.data_sets[0]
        for are_computed in (False, True) if example.name in COMPUTED else (False,):
            arrays = [np.array(value) for value in inputs]
            file = onnx.ModelProto.FromString(example.model.SerializeToString())
            arrays = arrays if are_computed else with_constants(file, arrays)
            (tmp_path / "model.onnx").write_bytes(file.SerializeToString())
            try:
                outputs = program_step(tmp_path / "model.onnx").model(
                    *map(torch.from_numpy, arrays)
                )
            except (ValueError, TypeError, LookupError, RuntimeError):
                continue
            outputs = list(outputs.values()) if isinstance(outputs, dict) else [outputs]
            for value, right in zip(outputs, expected, strict=False):
                assert value.shape == np.shape(right), example.name
                if "Resize" not in types:  # which rounds places as PyTorch does
                    np.testing.assert_allclose(value, right, 1e-3, 1e-4, err_msg=example.name)
            checked |= {example.name} if are_computed else types
    assert op_types - checked == NOT_SHOWN
    assert checked >= COMPUTED


def with_constants(model: Any, values: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Make constants of whole numbers but the first, such as axes; return the other inputs."""
    arrays = []
    for index, (info, value) in enumerate(zip(list(model.graph.input), values, strict=True)):
        if index and value.dtype.kind == "i":
            model.graph.initializer.append(numpy_helper.from_array(value, info.name))
            model.graph.input.remove(info)
        else:
            arrays.append(np.array(value))
    return arrays


def test_indices_beyond_the_end_are_refused(tmp_path: Path) -> None:
    rows, indices = torch.ones(3, 2), torch.full((1, 2), 3)
    node = helper.make_node("GatherElements", ["x", "numbers"], ["y"], axis=0)
    shapes = {"x": (3, 2), "numbers": (1, 2)}
    model = program_step(written_graph(tmp_path / "model.onnx", [node], shapes)).model
    assert model(rows, -indices).tolist() == [[1.0, 1.0]]
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        model(rows, indices)


def test_shapes_that_are_computed_are_known(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["rows"], axis=0),
        helper.make_node("Concat", ["rows", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["scores"]),
    ]
    weight = helper.make_tensor("w", 1, [144, 3], np.zeros(432, np.float32))
    constants = [whole_numbers("first", 0), whole_numbers("rest", -1), weight]
    path = written_graph(tmp_path / "model.onnx", nodes, {"x": ("batch", 4, 6, 6)}, constants)
    step = program_step(path, batch_size=5)
    types = Counter(capture(*step).op_types)
    assert types["aten.mm"] == 2  # one there, one back
    assert [tuple(weight.shape) for weight in step.model.parameters()] == [(144, 3)]


def test_no_other_file_is_read(tmp_path: Path) -> None:
    tensor = helper.make_tensor("w", 1, [4], [0.0] * 4)
    tensor.ClearField("float_data")
    tensor.data_location = 1
    tensor.external_data.add(key="location", value="../../secret")
    add = helper.make_node("Add", ["x", "w"], ["y"])
    step = program_step(written_graph(tmp_path / "model.onnx", [add], {"x": (2, 4)}, [tensor]))
    assert step.model.get_parameter("w").is_meta


@pytest.mark.parametrize(("domain", "op_type"), [("evil", "Run"), ("", "ImageDecoder"), ("", "If")])
def test_what_is_no_op_on_tensors_is_refused(tmp_path: Path, domain: str, op_type: str) -> None:
    path = tmp_path / "model.onnx"
    written_graph(path, [helper.make_node(op_type, ["x"], ["y"], domain=domain)], {"x": (2, 3)})
    with pytest.raises(CaptureError, match=f"known, got '{domain and 'evil::'}{op_type}'$"):
        program_step(path)


@pytest.mark.parametrize("size", [2**40, -1])
def test_a_constant_that_would_fill_the_memory_is_refused(tmp_path: Path, size: int) -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["many"]),
        helper.make_node("Add", ["x", "many"], ["y"]),
    ]
    path = written_graph(
        tmp_path / "model.onnx", nodes, {"x": (2, 3)}, [whole_numbers("size", size)]
    )
    step = program_step(path)
    with pytest.raises(CaptureError, match="ConstantOfShape"):
        capture(step.model, step.example_inputs, mode="inference")


def test_names_in_a_file_are_only_names(tmp_path: Path) -> None:
    name = '0.weight"); open("sprung", "w"); ("'
    weight = helper.make_tensor(name, 1, [3], [0.0] * 3)
    node = helper.make_node("Mul", ["x", name], ["y"], name=f"/{name}/Mul")
    step = program_step(written_graph(tmp_path / "model.onnx", [node], {"x": (2, 3)}, [weight]))
    assert [key for key, _ in step.model.named_parameters()] == ["initializer_0"]
    assert "aten.mul" in capture(*step).op_types


def test_a_damaged_file_ends_in_one_line(tmp_path: Path) -> None:
    path = written(tmp_path / "model.onnx", *perceptron())
    content = path.read_bytes()
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(CaptureError, match=r"model\.onnx: expected an ONNX file, got"):
        program_step(path)
    for place in range(0, len(content), len(content) // 100):
        for spoilt in (content[:place], content[:place] + b"\xff" + content[place + 1 :]):
            path.write_bytes(spoilt)
            with suppress(CaptureError):
                capture(*program_step(path))


def test_the_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "model.onnx", *perceptron())
    monkeypatch.delitem(sys.modules, "placeto_capture.programs.onnx_file")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(CaptureError, match=r"pip install 'placeto-capture\[onnx\]'$"):
        program_step(path)

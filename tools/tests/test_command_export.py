"""``placeto export``: files for other libraries, and the lines that go with them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from command_runs import build_profile, fail, invoke, succeed, succeed_json
from dispatched_models import dispatch_on_cpu, forward_on_fake_gpus
from exported_models import (
    Chain,
    Mixed,
    drawn,
    features,
    mean_square,
    problem_of_ops,
    saved,
)
from layer_models import by_layer, decoder


def test_accelerate_dispatches_a_model_which_trains(tmp_path: Path) -> None:
    model, inputs = Mixed(), features(4, 3)
    problem = problem_of_ops(Mixed(), inputs, "3xv100")
    paths, output = saved(tmp_path, problem, drawn(problem, 0)), tmp_path / "map.json"
    text = succeed("export", *paths, "--to", "accelerate", "-o", output)
    modules = json.loads(output.read_text())
    main_device = int(text.split("main_device=")[1].split(")")[0])
    assert set(modules.values()) == {0, 1, 2}
    expected = model(inputs)
    mean_square(expected).backward()  # type: ignore[no-untyped-call]
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    dispatch_on_cpu(model, modules)
    outputs = model(inputs)
    torch.testing.assert_close(outputs, expected)
    mean_square(outputs).backward()  # type: ignore[no-untyped-call]
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, gradients[name])
    model = Mixed().eval()
    dispatch_on_cpu(model, modules)
    forward_on_fake_gpus(model, modules, main_device, [inputs])


@pytest.mark.parametrize("form", ["vllm", "llama.cpp"])
def test_a_step_of_training_is_no_server(tmp_path: Path, form: str) -> None:
    problem = problem_of_ops(Chain(), features(4), "2xv100")
    files = saved(tmp_path, problem, np.zeros(problem.num_groups, np.int32))
    error = fail("export", *files, "--to", form)
    assert "PROBLEM: expected a step of inference, as " in error
    assert "got one of training; build the model with --mode decode or " in error


def test_wrong_input_is_one_line(tmp_path: Path) -> None:
    profile, output = build_profile(tmp_path), tmp_path / "map.json"
    for options, error in (
        (["acelerate", "-o", output], "expected accelerate, or another of torch, vllm, "),
        (["dot", "-o", output], "expected a name that ends in .dot or .gv"),
        (["accelerate", "--force"], "--force: needs -o"),
        (["dot", "--objective=throughput"], "--objective: excludes --to dot"),
        (["torch", "-o", output], "expected a name that ends in .py"),
        (["torch"], "expected ops whose scopes are names of modules"),
    ):
        assert error in fail("export", profile, "v100:0", "--to", *options)
    assert not output.exists()


def test_the_command_prints_or_writes_the_line_for_vllm(tmp_path: Path) -> None:
    problem = decoder(8, 400, 8, 60, cluster="1xcpu+3xv100")
    export = ["export", *saved(tmp_path, problem, by_layer(problem, [3, 1, 1, 1])), "--to", "vllm"]
    result = invoke(*export)
    assert ": as placed\nSimulated step: " in result.stderr
    report = succeed_json(*export, "-o", tmp_path / "serve.sh", "--objective=throughput")
    assert (tmp_path / "serve.sh").read_text() == result.stdout
    assert "remark" not in report
    assert (report["partition"], report["objective"]) == ([1, 3], "time per sample")

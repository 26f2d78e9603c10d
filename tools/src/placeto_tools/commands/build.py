"""``placeto build``."""

from pathlib import Path

import click

from placeto.errors import writing
from placeto.placing.reports import precision_text
from placeto.problems.making import problem_of, read_source
from placeto.problems.options import ProblemOptions
from placeto.problems.sources import JSON_SUFFIXES
from placeto.texts import counted
from placeto_graphs import save_problem
from placeto_tools.options import Command, result_options
from placeto_tools.problem_options import problem_options
from placeto_tools.screen import show_report, showing_progress


@click.command(cls=Command)
@click.argument("source", metavar="MODEL")
@problem_options
@result_options("Problem file to write: .json, or .json.gz to compress it.", *JSON_SUFFIXES)
def build(source: str, options: ProblemOptions, output: Path, as_json: bool) -> None:
    """Make a problem file from a model and devices.

    By default the problem has two K80 GPUs and 128 groups. MODEL is one of these:

    \b
    inception-v3       a registered model; `placeto models` lists them
    nmt:7              a graph of a family
    transformers:gpt2  a model of transformers, timm, torchvision or diffusers
    my_module:make     your function that returns a model and example inputs
    model.pt2          an exported program; model.onnx: an ONNX file
    model.gguf         weights of a language model; also model.safetensors
    problem.json.gz    a problem file
    graph.txt          a PipeDream profile
    graph.json         an input of dnn-partitioning

    Your function may also return a loss function, an optimizer and a mode.

    \b
    placeto build inception-v3 --cluster 2xk80 --groups 128 -o problem.json.gz
    placeto build nmt-2 --batch-size 64 --set steps=16 -o nmt.json.gz
    placeto build inception-v3 --cluster 4xk80 --micro-batches 8 -o pipeline.json.gz
    placeto build my_model:make --cluster 1xcpu+2xv100 -o mine.json.gz
    placeto build transformers:llama --set num_hidden_layers=8 --batch-size 4 -o llama.json.gz
    placeto build nmt-4 --cluster "2x(4xv100)" --link nvlink+infiniband-hdr -o machines.json.gz
    """
    with showing_progress(source):
        problem = problem_of(read_source(source, options), options)
    with writing(output):
        save_problem(problem, output)
    ops, groups = problem.graph.num_ops, problem.num_groups
    devices, precision = problem.cluster.device_names, precision_text(problem.graph)
    report = {"output": str(output), "ops": ops, "groups": groups, "devices": devices}
    line = f"{output}: {counted(ops, 'op')} in {counted(groups, 'group')} on {', '.join(devices)}"
    text = f"{line}, {precision}" if precision else line
    show_report(report | {"precision": precision}, text, as_json=as_json)

"""The lines of the documentation are accepted by the command, and do what they say.

Every line in a block of code that begins with ``placeto`` is parsed with the command's own options,
so that a page cannot show one that is gone. The lines of the pages of `RUN` are also run, in the
order of the page and in a folder of its own, with the options of `SHORTER` behind them; where an
option is given twice the last one counts. Experiments run in packages/experiments/tests.
"""

import importlib.util
import re
import runpy
import shlex
import sys
from pathlib import Path

import click
import pytest

import experiment_plugin  # noqa: F401
from command_runs import PROGRAM, blocks, succeed, write_tables
from placeto_tools.main import placeto
from placeto_workloads import LIBRARIES
from weight_files import CONFIGS, write_gguf

SHOWING = ("README.md", "tools/README.md", "packages/*/README.md", "docs/*.md", "lab/notes/*.md")
PAGES = sorted(page for pattern in SHOWING for page in Path().glob(pattern))
# test_first_steps.py runs what the tutorial and the guides print. What other pages show takes
# minutes even at its shortest: comparisons of the largest models, and the check of ninety others.
RUN = (
    *("docs/exporting.md", "docs/measuring.md", "docs/models.md", "docs/placing.md"),
    *("docs/own-graphs.md", "docs/serving.md", "docs/training.md", "tools/README.md"),
)
# Pages whose large models my_model.py of the tutorial stands in for.
WITH_LARGE_MODELS = ("docs/placing.md", "docs/training.md")
LARGE_MODEL = re.compile(r"inception-v3|nmt-\d|nmt:\d+")
SHORTER = {
    "calibrate": ["--steps=1", "--most-bytes=1000000"],
    "compare": ["--max-evaluations=100", "--groups=16"],
    "place": ["--force"],  # a page may show several ways to make the same file
    "profile": ["--steps=2"],
    "run": ["--steps=2"],
    "train": ["--updates=1", "--granularities=1", "--hparam=workers=2"],
}
# Sizes of the models that a page serves.
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
# What a page takes to be there, besides my_model.py of the tutorial, made small.
BEFORE = {
    "docs/exporting.md": [
        "placeto build transformers:llama --mode decode --cluster 2xk80 -o problem.json.gz "
        + " ".join(f"--set {name}={size}" for name, size in SMALL.items()),
        "placeto place problem.json.gz --placer heft -o placement.json",
    ],
    "tools/README.md": [
        "placeto build my_model:make --cluster 2xk80 -o problem.json.gz",
        "placeto place problem.json.gz --placer heft -o placement.json",
    ],
}


def commands(page: Path) -> list[list[str]]:
    """Return the arguments of each line of a page that runs ``placeto``."""
    code_blocks = [*blocks(page), *blocks(page, "console")]
    lines = "".join(code_blocks).replace("\\\n", " ").splitlines()
    return [
        shlex.split(PROGRAM.sub("", line.strip()), comments=True)
        for line in lines
        if PROGRAM.match(line.strip())
    ]


def parse(arguments: list[str]) -> None:
    """Let the command's own parser read the arguments, without running anything."""
    command: click.Command = placeto
    while isinstance(command, click.Group):
        _, subcommand, arguments = command.resolve_command(click.Context(command), arguments)
        assert subcommand is not None
        command = subcommand
    command.make_context(command.name, list(arguments))


def is_for_here(arguments: list[str]) -> bool:
    """Return whether this machine runs a line: no experiment, and its library is installed."""
    libraries = {argument.split(":")[0] for argument in arguments} & set(LIBRARIES)
    return arguments[0] != "experiment" and all(map(importlib.util.find_spec, libraries))


def stand_in(argument: str, model: str) -> str:
    """Return the argument, or a module with a small model of its own for that of a large one."""
    if argument.startswith("encoder="):  # a module of these, and one of the small model
        return argument.replace("encoder", "left", 1)
    if not LARGE_MODEL.fullmatch(argument):
        return argument
    module = re.sub(r"\W", "_", argument)
    width = 32 + sum(argument.encode()) % 32  # other models have other graphs
    Path(f"{module}.py").write_text(model.replace("width=32", f"width={width}"))
    return f"{module}:make"


def shortened(arguments: list[str]) -> list[str]:
    """Return the arguments with those behind them that make the run a short one."""
    shorter = SHORTER.get(arguments[0], [])
    if "--seconds" in arguments:  # no other limit beside it
        shorter = [*(option for option in shorter if "evaluations" not in option), "--seconds=0.2"]
    resized = []
    for argument in arguments:
        name = argument.partition("=")[0]
        resized.append(f"{name}={SMALL[name]}" if name in SMALL else argument)
    return resized + shorter


SHOWN = [(page, line) for page in PAGES for line in commands(page) if line != ["--help"]]


@pytest.mark.parametrize(
    ("page", "arguments"), SHOWN, ids=[f"{page}: {shlex.join(line)}" for page, line in SHOWN]
)
def test_the_command_accepts_a_line(page: Path, arguments: list[str]) -> None:  # noqa: ARG001
    parse(arguments)


def test_the_modules_that_lines_run_are_there() -> None:
    text = "\n".join(block for page in PAGES for block in blocks(page))
    modules = re.findall(r"(?:python|torchrun) .*-m (placeto[\w.]*)", text)
    files = re.findall(r"(?:\./pants run|python) ((?:lab|packages|tests|tools)/[\w/]+\.py)", text)
    assert [file for file in files if not Path(file).is_file()] == []
    assert modules
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_the_lines_of_a_page_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(name).resolve()
    model = blocks(Path("docs/tutorial.md"), "python")[0].replace("width=1024", "width=32")
    placer = blocks(Path("docs/write-a-placer.md"), "python")[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)  # other tests have one, too
    Path("my_model.py").write_text(model)
    write_tables(page)
    for block in blocks(page, "python"):
        named = re.match(r"# (\w+\.py)\n", block)
        if named:  # a script that the page lets its reader run
            Path(named[1]).write_text(block)
            runpy.run_path(named[1])
    Path("coordinate_descent.py").write_text(placer)
    config = {**CONFIGS["llama"], "max_position_embeddings": 8192}
    write_gguf(Path("model.gguf"), "llama", config)
    preparations = [shlex.split(line)[1:] for line in BEFORE.get(name, [])]
    if not all(is_for_here(line) for line in preparations):
        pytest.skip("needs a library that is not installed")
    for line in preparations:
        succeed(*line)
    lines = [line for line in commands(page) if is_for_here(line)]
    assert lines
    for line in lines:
        large = name in WITH_LARGE_MODELS
        arguments = [stand_in(argument, model) if large else argument for argument in line]
        succeed(*shortened(arguments))
        assert "-o" not in line or Path(line[line.index("-o") + 1]).exists()

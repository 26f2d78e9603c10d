"""The oldest and the newest versions that the packages' ranges admit work, together.

Ranges are those of every package and extra, but for torch and what needs one build of it: that is
linked as it is here. The newest are what pip takes today.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import experiment_plugin  # noqa: F401
from command_runs import blocks, profile
from fresh_environments import (
    FOLDERS,
    PROJECTS,
    link_library,
    make_environment,
    make_wheels,
    pip,
    run,
)

PINNED = ("torch", "torchvision")
MODELS = ("diffusers", "timm")  # libraries that bring others, some of them large
INSTALLED = (
    *("placeto-capture[onnx]", "placeto-policy[gym]", "placeto-tools"),
    *("placeto-experiments", "placeto-workloads[transformers]"),
)
# Besides what READMEs show, commands of which each runs one library more.
RUN = """
import json, os, shlex, sys
import onnx
from placeto_tools.main import placeto

blocks, commands = json.load(open(sys.argv[1]))
for name, block in blocks.items():
    exec(compile(block, name, "exec"), {})
os.mkdir("commands")
os.chdir("commands")
x, y = (onnx.helper.make_tensor_value_info(name, 1, [4, 4]) for name in "xy")
weight = onnx.helper.make_tensor("w", 1, [4, 4], [0.5] * 16)
node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
graph = onnx.helper.make_graph([node], "product", [x], [y], [weight])
onnx.save(onnx.helper.make_model(graph), "product.onnx")
for line in commands.strip().splitlines():
    placeto(shlex.split(line), standalone_mode=False)
"""
COMMANDS = """
build ../graph.txt -o problem.json.gz
build product.onnx --cluster 2xv100 -o product.json
build transformers:llama --mode decode --context 8 --set num_hidden_layers=1 -o llama.json
calibrate --devices cpu:0,cpu:1 --steps 1 --most-bytes 1000000 -o cluster.toml
place problem.json.gz --placer metis -o metis.json
place problem.json.gz --placer scotch -o scotch.json
export problem.json.gz scotch.json --to dot -o groups.dot
export problem.json.gz scotch.json --to graphml -o groups.graphml
plot placement problem.json.gz scotch.json -o placement.png
report problem.json.gz metis.json scotch.json -o report.html
train problem.json.gz --updates 1 -o run
"""


def libraries() -> dict[str, set[str]]:
    """Return the range, or ranges, that packages and extras state of each library."""
    stated: dict[str, set[str]] = defaultdict(set)
    for project in (pyproject["project"] for pyproject in PROJECTS.values()):
        extras = project.get("optional-dependencies", {}).values()
        for text in (*project["dependencies"], *(text for extra in extras for text in extra)):
            requirement = Requirement(text)
            stated[requirement.name].add(str(requirement.specifier))
    beside = {*PINNED, *MODELS, *FOLDERS}
    return {name: ranges for name, ranges in stated.items() if name not in beside}


def oldest() -> list[str]:
    """Return the lower bound of each library as the one version that is asked for."""
    return [
        f"{name}=={bound.version}"
        for name, ranges in libraries().items()
        for bound in SpecifierSet(",".join(ranges))
        if bound.operator == ">="
    ]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    arguments = ("index", "versions", "msgspec", "--retries=1", "--timeout=20")
    if run(sys.executable, "-m", "pip", *arguments, cwd=folder, code=None).returncode != 0:
        pytest.skip("pip reaches no index from which it could install libraries")
    return make_wheels(folder)


@pytest.mark.slow
@pytest.mark.parametrize("age", ["oldest", "newest"])
def test_the_lines_of_readmes_run(
    age: str, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if age == "oldest" and sys.version_info >= (3, 13):
        pytest.skip("NumPy 2.0 and SciPy 1.13 have no wheels for it")
    python, library = make_environment(tmp_path / "environment")
    link_library("torch", library)
    requirements = oldest() if age == "oldest" else list(libraries())
    options = ("--only-binary=:all:", "--find-links", wheels)
    pip(python, "install", *options, *INSTALLED, *requirements, cwd=tmp_path)
    # Compiled code of other versions of Numba would take the place of that of this one.
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "compiled"))
    readme_blocks = {
        f"{folder.name}/README.md, block {index}": block
        for folder in FOLDERS.values()
        for index, block in enumerate(blocks(folder / "README.md", "python"))
    }
    assert len(readme_blocks) >= len(FOLDERS) - 1  # those of the command are in a shell
    (tmp_path / "graph.txt").write_text(profile())
    (tmp_path / "given.json").write_text(json.dumps([readme_blocks, COMMANDS]))
    run(python, "-I", "-c", RUN, "given.json", cwd=tmp_path)
    assert any((tmp_path / "commands" / "run" / "tensorboard").iterdir())

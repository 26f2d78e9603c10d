"""Models of libraries, from capture to a simulated placement: ``python lab/model_check.py``.

The table is that of docs/models.md. ``--only TEXT`` selects models whose names contain the text.
Each model is checked in a process of its own, which runs this module and may fail, hang or take
too much memory. Ctrl-C leaves out the rest.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from placeto import capture_step
from placeto.errors import one_line
from placeto.placing.place_problem import search_problem
from placeto.problems.making import make_problem
from placeto.problems.sources import LIBRARY, Source, parse_sizes
from placeto.texts import TextTable, seconds_text
from placeto_baselines import MultilevelSearch
from placeto_graphs import DEFAULT_RULES, parse_cluster
from placeto_simulator import Simulator
from placeto_workloads import MODELS, library_step, training_step

CLUSTER = "4xv100"
MEMORY_LIMIT = 12 * 10**9  # bytes of a process; beyond, it fails with a MemoryError
Report = dict[str, Any]

SMALL_BATCH = 4


def _all(library: str, names: str, sizes: str = f"batch_size={SMALL_BATCH}") -> list[str]:
    return [f"{library}:{name} {sizes}" for name in names.split()]


# Sources of `placeto build` with values of its ``--set``: each kind of architecture, in the default
# sizes of the libraries.
CHECKED_MODELS = (
    *("inception-v3", "nasnet", "nmt-2", "nmt-4"),
    *_all(
        "timm",
        "resnet50 resnext50_32x4d seresnet50 densenet121 vgg16 efficientnet_b0 "
        "mobilenetv3_large_100 regnety_016 convnext_tiny vit_base_patch16_224 "
        "deit3_small_patch16_224 swin_tiny_patch4_window7_224 mixer_b16_224 coatnet_0_224 "
        "cait_xxs24_224 nfnet_f0 hrnet_w18",
    ),
    *_all(
        "torchvision",
        "alexnet googlenet resnet18 wide_resnet50_2 mnasnet1_0 shufflenet_v2_x1_0 squeezenet1_1 "
        "vit_b_16 swin_v2_t maxvit_t efficientnet_v2_s deeplabv3_resnet50 r3d_18 swin3d_t",
    ),
    *_all(
        "transformers",
        "gpt2 opt gpt_neo gptj falcon llama mistral qwen2 gemma2 phi3 bert deberta-v2 albert "
        "electra xlnet modernbert t5 bart pegasus mixtral qwen2_moe olmoe gpt_oss "
        "switch_transformers vit swin convnext segformer dinov2 mobilevit detr conditional_detr "
        "videomae dpt whisper wav2vec2 audio-spectrogram-transformer speech_to_text clip siglip "
        "llava layoutlm mamba2 recurrent_gemma",
    ),
    *_all("transformers", "mamba rwkv", f"batch_size={SMALL_BATCH} sequence_length=32"),
    *_all(
        "diffusers",
        "UNet2DModel UNet2DConditionModel AutoencoderKL VQModel DiTTransformer2DModel "
        "SD3Transformer2DModel PixArtTransformer2DModel",
    ),
)


def check_all(models: Sequence[str], *, search_seconds: float, time_limit: float) -> list[Report]:
    """Return the numbers of `check` for each model, or an ``error``; Ctrl-C leaves out the rest."""
    reports: list[Report] = []
    with suppress(KeyboardInterrupt):
        for count, model in enumerate(models, 1):
            report = _checked(_run(model, search_seconds, time_limit))
            reports.append({"model": model, **report})
            verdict = report.get("error") or f"{report['ops']:,} ops"
            print(f"{count} of {len(models)}: {model}: {verdict}", file=sys.stderr)
    return reports


def _checked(report: Report) -> Report:
    """Return an error for a model whose captured weights differ from those of the library."""
    if "error" in report or report["weight_bytes"] == report["captured_weight_bytes"]:
        return report
    return {
        "error": f"expected {report['weight_bytes']:,} bytes of weights, "
        f"got {report['captured_weight_bytes']:,}"
    }


def _run(model: str, search_seconds: float, time_limit: float) -> Report:
    command = [sys.executable, __file__, "--alone", model, "--seconds", f"{search_seconds}"]
    try:
        process = subprocess.run(  # noqa: S603 (this module)
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=time_limit,
            check=False,
        )
        report: Report = json.loads(process.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"expected at most {time_limit:.0f} s, and took longer"}
    except (ValueError, IndexError):
        return {"error": f"the process ended with exit code {process.returncode}"}
    return report


COLUMNS = (
    "model",
    ">ops",
    ">parameters",
    ">TFLOP",
    ">capture",
    ">memory",
    ">groups",
    ">one V100",
    ">four V100s",
)


def model_table(reports: Sequence[Report]) -> TextTable:
    """Return the table of models, with the error of those that failed."""
    return TextTable("", COLUMNS, [_row(report) for report in reports])


def success_line(reports: Sequence[Report]) -> str:
    """Return the number of models that succeeded, as a line."""
    done = sum("error" not in report for report in reports)
    share = 100 * done / len(reports) if reports else 0.0
    return f"{done} of {len(reports)} models ({share:.1f} %) from capture to a simulated placement."


def _row(report: Report) -> list[str]:
    if "error" in report:
        return [report["model"], report["error"], *[""] * (len(COLUMNS) - 2)]
    return [
        report["model"],
        f"{report['ops']:,}",
        f"{report['parameters']:,}",
        f"{report['flops'] / 1e12:.3g}",
        f"{report['seconds']:.1f} s",
        f"{report['memory'] / 1e9:.1f} GB",
        str(report["groups"]),
        _runtime(report, "one_device"),
        _runtime(report, "searched"),
    ]


def _runtime(report: Report, key: str) -> str:
    """Return a runtime, with a star if it does not fit the memory."""
    return seconds_text(report[key]) + ("" if report[f"{key}_fits"] else "*")


def check(model: str, seconds: float) -> Report:
    """Return the numbers of a model, after so many seconds of search."""
    source, *settings = model.split()
    of_library = LIBRARY.fullmatch(source) is not None
    make = library_step if of_library else training_step
    step = make(source, **parse_sizes([setting.partition("=")[::2] for setting in settings]))
    rules = DEFAULT_RULES if of_library else MODELS[source].colocation_rules
    began = time.monotonic()
    graph = capture_step(step)
    capture_seconds = time.monotonic() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    weights = list(step.model.parameters())
    # Without the state of the optimizer, which is no tensor.
    is_weight = np.array([op_type == "parameter" for op_type in graph.op_types])
    report = {
        "ops": graph.num_ops,
        "parameters": sum(weight.numel() for weight in weights),
        "flops": float(graph.flops.sum()),
        "seconds": capture_seconds,
        "memory": memory,
        "weight_bytes": sum(weight.nbytes for weight in weights),
        "captured_weight_bytes": int(graph.tensor_bytes[is_weight[graph.tensor_producer]].sum()),
    }
    problem = make_problem(Source(source, graph, rules=rules), parse_cluster(CLUSTER))
    alone = Simulator(problem).evaluate(np.zeros((1, problem.num_groups), np.int32))
    finest = search_problem(problem)
    result = MultilevelSearch(seconds).place(finest, Simulator(finest), seed=0)
    return report | {
        "groups": problem.num_groups,
        "one_device": float(alone.runtime[0]),
        "one_device_fits": int(alone.peak_memory[0, 0]) <= problem.cluster.devices[0].memory_bytes,
        "searched": result.runtime,
        "searched_fits": result.fits(problem.cluster),
    }


def check_alone(model: str, seconds: float) -> None:
    """Check a model; print its numbers or its error as JSON."""
    warnings.simplefilter("ignore")  # of costs that are not known: the table is of models
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    try:
        report = check(model, seconds)
    except Exception as error:
        report = {"error": one_line(error)}
    print(json.dumps(report))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="text in the names of the models")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds of a model")
    parser.add_argument("--seconds", type=float, default=10.0, help="CPU seconds of its search")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.alone:
        check_alone(options.alone, options.seconds)
        return
    chosen = [model for model in CHECKED_MODELS if options.only in model]
    reports = check_all(chosen, search_seconds=options.seconds, time_limit=options.time_limit)
    print(f"{model_table(reports).markdown()}\n\n{success_line(reports)}")


if __name__ == "__main__":
    main()

"""Two copies of a model in two processes of this machine, measured beside simulated.

``python lab/live_copies.py`` trains each model with a copy on each of two CPUs over gloo, with
`DistributedDataParallel` and with `fully_shard`, and one copy alone. Ops and links are measured, as
``placeto calibrate`` does, and the rate of an all-reduce of 25 MiB by gloo. All ratios are within
one pair of processes: rounds of each way take turns. The table is that of notes/live-copies.md.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from fidelity import SIZES, TWO_CPUS
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from placeto.exporting.formats import FORMATS
from placeto.placing.evaluators import STEP
from placeto.texts import TextTable
from placeto_capture import executable_step
from placeto_execution.calibration import Calibration
from placeto_execution.measuring import profile_in_place, with_overheads
from placeto_graphs import Cluster, Grouping, PlacementProblem, copied, sharded
from placeto_simulator import Simulator
from placeto_workloads import TrainingStep

PROFILE_RUNS = 7


class Layer(nn.Module):
    """A layer of a Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.layer(features)
        return result


def perceptron() -> TrainingStep:
    """Return products of few samples: many weights for their compute."""
    layers = [nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(6)]
    return _training(nn.Sequential(*layers), torch.randn(32, 512))


def convolutions() -> TrainingStep:
    """Return convolutions of images: few weights for their compute."""
    layers = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()) for _ in range(6)]
    return _training(nn.Sequential(*layers), torch.randn(4, 16, 32, 32))


def transformer() -> TrainingStep:
    """Return layers of a Transformer."""
    return _training(nn.Sequential(*(Layer() for _ in range(4))), torch.randn(4, 64, 128))


def _training(model: nn.Module, inputs: Tensor) -> TrainingStep:
    optimizer = partial(torch.optim.SGD, lr=1e-3)
    return TrainingStep(model, (inputs,), lambda outputs: outputs.square().mean(), optimizer)


MODELS = {make.__name__: make for make in (perceptron, convolutions, transformer)}
WAYS = ("alone", "apart", "copies", "shards")  # apart: both copies, which sum nothing
BUCKET_BYTES = 25 * 2**20
Seconds = dict[str, list[float]]


def measured(source: str, units: Sequence[str], rounds: int, steps: int) -> Seconds:
    """Return the seconds of a step in each way, medians of each round, and of an all-reduce."""
    with TemporaryDirectory() as folder:
        arguments = (Path(folder), source, units, rounds, steps)
        spawn(_measure, arguments, nprocs=2)  # type: ignore[no-untyped-call]
        return dict(torch.load(Path(folder, "seconds.pt")))


def _measure(
    rank: int, folder: Path, source: str, units: Sequence[str], rounds: int, steps: int
) -> None:
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    plain = _step(source, lambda model: model)
    step_of_way = {
        "alone": plain,
        "apart": plain,
        "copies": _step(source, DistributedDataParallel),
        "shards": _step(source, lambda model: _sharded(model, units)),
    }
    bucket = torch.zeros(BUCKET_BYTES // 4)
    step_of_way["all-reduce"] = lambda: dist.all_reduce(bucket)
    seconds: Seconds = {way: [] for way in step_of_way}
    for _ in range(rounds + 1):  # the first one warms up
        for way, step in step_of_way.items():
            dist.barrier()
            times = [] if way == "alone" and rank else [_seconds(step) for _ in range(steps)]
            seconds[way].append(float(np.median(times)) if times else 0.0)
    if rank == 0:
        torch.save({way: medians[1:] for way, medians in seconds.items()}, folder / "seconds.pt")
    dist.destroy_process_group()


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _sharded(model: nn.Module, units: Sequence[str]) -> nn.Module:
    for unit in units:
        fully_shard(model.get_submodule(unit))
    fully_shard(model)
    return model


def _step(source: str, wrapped: Callable[[nn.Module], nn.Module]) -> Callable[[], None]:
    """Return a function that trains one step of a copy."""
    torch.manual_seed(0)
    spec: Any = MODELS[source]()
    model = wrapped(spec.model)
    optimizer = spec.optimizer(model.parameters())

    def step() -> None:
        loss = spec.loss_fn(model(*spec.example_inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def profiled(source: str, cluster: Cluster) -> PlacementProblem:
    """Return the problem of a copy with measured times of its ops, all in one group."""
    step = executable_step(**MODELS[source]()._asdict(), target="cpu", results=[])
    profile = profile_in_place(step, "cpu:0", PROFILE_RUNS)
    graph = replace(step.graph, measured_time={"cpu": profile.seconds})
    return PlacementProblem(
        graph=graph,
        cluster=with_overheads(cluster, {"cpu": profile}),
        compute_time=np.stack([profile.seconds] * 2, axis=1),
        grouping=Grouping(group_of=np.zeros(graph.num_ops, np.int32), group_names=("all",)),
    )


def simulated(problem: PlacementProblem, rate: float) -> dict[str, float]:
    """Return the seconds of a step in each way, where collectives reach a rate in B/s."""
    cluster = problem.cluster
    fraction, apart = np.ones((2, 2)), ~np.eye(2, dtype=np.bool_)
    fraction[apart] = np.minimum(rate / cluster.bandwidth[apart], 1.0)
    problem = replace(problem, cluster=replace(cluster, collective_fraction=fraction))
    problems = {"alone": problem, "copies": copied([problem] * 2), "shards": sharded([problem] * 2)}
    return {
        way: float(
            Simulator(whole, 1).runtimes(np.arange(whole.num_groups, dtype=np.int32)[None])[0]
        )
        for way, whole in problems.items()
    }


def main() -> None:
    """Print a row for each model and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help=f"by default {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="of each round")
    options = parser.parse_args()
    cells = []
    calibration = Calibration(TWO_CPUS.names, executable_step, PROFILE_RUNS, TWO_CPUS.threads)
    cluster = calibration.cluster(calibration.links(SIZES), TWO_CPUS.kinds)
    for source in options.models or MODELS:
        problem = profiled(source, cluster)
        shards = sharded([problem] * 2)
        export = FORMATS["torch"].export(shards, np.arange(2, dtype=np.int32), STEP)
        units: Any = export.details["units"]
        seconds = measured(source, units, options.rounds, options.steps)
        rate = BUCKET_BYTES / float(np.median(seconds["all-reduce"]))  # 2 (k - 1) / k is 1
        by_gloo = simulated(problem, rate)
        by_links = simulated(problem, np.inf)
        alone = np.array(seconds["alone"])
        print(source, {way: float(np.median(times)) for way, times in seconds.items()}, flush=True)
        print(f"all-reduce {rate:.3g} B/s, link {problem.cluster.bandwidth[0, 1]:.3g} B/s")
        for way in WAYS[1:]:
            ratios = np.array(seconds[way]) / alone
            low, middle, high = np.percentile(ratios, [25, 50, 75])
            by_way = [
                f"{times[way] / times['alone']:.2f}" if way in times else ""
                for times in (by_links, by_gloo)
            ]
            cells.append([source, way, f"{middle:.2f}", f"{low:.2f}-{high:.2f}", *by_way])
    columns = ["model", "way", ">measured", ">quartiles", ">by links", ">by gloo's rate"]
    print(TextTable("", columns, cells).markdown())
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

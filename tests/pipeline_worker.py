"""One process of a pipeline: trains its stage of a `Chain` for a step, and keeps its gradients.

Arguments: its rank, a folder with ``stages.json``, as ``placeto export --to pipeline`` writes it.
"""

import json
import sys
from pathlib import Path

import torch
from exported_models import features, mean_square, seeded_chain
from torch import distributed
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline

MICRO_BATCHES = 2


def main(rank: int, folder: Path) -> None:
    """Run a step of GPipe on the CPU, with one process for each stage."""
    stages = json.loads((folder / "stages.json").read_text())
    last = len(stages["devices"]) - 1
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/processes", rank=rank, world_size=last + 1
    )
    inputs = features(4)
    pipe = pipeline(
        seeded_chain(),
        mb_args=(inputs.chunk(MICRO_BATCHES)[0],),
        split_spec=dict.fromkeys(stages["split_points"], SplitPoint.BEGINNING),
    )
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=lambda out, _: mean_square(out))
    if rank == 0:
        schedule.step(inputs)
    elif rank == last:
        schedule.step(target=torch.zeros(4, 2))
    else:
        schedule.step()
    gradients = {name: value.grad for name, value in stage.submod.named_parameters()}
    torch.save(gradients, folder / f"gradients{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

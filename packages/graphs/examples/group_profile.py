"""Read a profile in PipeDream's format, group its ops, and write a placement problem.

Without an argument it makes a small profile of its own: a network of blocks with three parallel
branches, as in Inception. With the path of a profile, it takes that one.
"""

import sys
import tempfile
from pathlib import Path

from placeto_graphs import (
    GraphError,
    PlacementProblem,
    colocate,
    colocate_by_id,
    load_pipedream_profile,
    load_problem,
    measured_compute_time,
    merge_and_colocate,
    parse_cluster,
    save_problem,
)

BLOCKS = 6
BRANCHES = (1, 3, 5)  # the width of the kernels of each branch
CHANNELS = 64
ACTIVATION_BYTES = 4 * 64 * CHANNELS * 28 * 28  # float32, batch 64, 28x28 pixels


def sample_profile() -> str:
    """Return a profile whose convolutions take time in proportion to their kernels."""
    lines: list[str] = []

    def layer(
        description: str, milliseconds: float, parameter_bytes: int, inputs: list[str]
    ) -> str:
        name = f"node{1 + sum(not line.startswith(chr(9)) for line in lines)}"
        lines.append(
            f"{name} -- {description} -- forward_compute_time={milliseconds:.3f}, "
            f"backward_compute_time={2 * milliseconds:.3f}, "
            f"activation_size={ACTIVATION_BYTES:.1f}, parameter_size={parameter_bytes:.1f}"
        )
        lines.extend(f"\t{source} -- {name}" for source in inputs)
        return name

    previous = layer("Input", 0, 0, [])
    for _ in range(BLOCKS):
        ends = []
        for width in BRANCHES:
            kernel = f"Conv2d({CHANNELS}, {CHANNELS}, kernel_size=({width}, {width}))"
            weights = 4 * CHANNELS * CHANNELS * width * width
            convolution = layer(kernel, 0.2 * width * width, weights, [previous])
            ends.append(layer("ReLU(inplace)", 0.05, 0, [convolution]))
        previous = layer("Concat(1)", 0.1, 0, ends)
    layer("Linear(in_features=64, out_features=1000)", 0.3, 4 * 64 * 1000, [previous])
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    """Print the groups of a profile and write the problem beside the sample."""
    folder = Path(tempfile.mkdtemp(prefix="placeto-"))
    if arguments:
        profile = Path(arguments[0])
    else:
        profile = folder / "sample_profile.txt"
        profile.write_text(sample_profile())
    graph = load_pipedream_profile(profile)
    cluster = parse_cluster("2xv100")
    grouping = merge_and_colocate(graph, colocate(graph, [colocate_by_id]), num_groups=12)
    problem = PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=measured_compute_time(graph, cluster),
        grouping=grouping,
    )
    save_problem(problem, folder / "problem.json.gz")
    groups = load_problem(folder / "problem.json.gz").group_graph

    print(f"{profile}: {graph}")
    print(f"{'group':>5}  {'first op':<18} {'ops':>4} {'time':>9} {'outputs':>10} {'weights':>9}")
    for group, name in enumerate(grouping.group_names):
        milliseconds = groups.compute_time[group, 0] * 1e3
        megabytes = groups.output_bytes[group] / 1e6
        kilobytes = groups.parameter_bytes[group] / 1e3
        print(
            f"{group:>5}  {name:<18} {len(grouping.members[group]):>4} "
            f"{milliseconds:>6.2f} ms {megabytes:>7.1f} MB {kilobytes:>6.1f} kB"
        )
    print(f"{groups.num_edges} edges between groups, {groups.edge_bytes.sum() / 1e6:.1f} MB")
    print(f"wrote {folder / 'problem.json.gz'}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (GraphError, OSError) as error:
        sys.exit(f"group_profile: {error}")

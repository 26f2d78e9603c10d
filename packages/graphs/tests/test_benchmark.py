import numpy as np

from placeto_graphs import OpGraph, benchmark, colocate


def test_random_graphs_are_connected_training_graphs_of_the_size_asked_for() -> None:
    fields = benchmark.random_training_graph_fields(2000, np.random.default_rng(1))
    graph = OpGraph(**fields)
    assert graph.num_ops == 2000
    assert 2.5 < graph.num_edges / graph.num_ops < 3.5
    read = np.unique(graph.edge_consumers)
    assert np.setdiff1d(np.arange(2000), read).tolist() == [0]
    assert colocate(graph).num_groups < 2000


def test_the_benchmark_has_every_stage_for_every_size() -> None:
    report = benchmark.measured(["--ops", "100", "200", "--groups", "8", "--repeats", "2"])
    lines = report.markdown().splitlines()
    assert lines[2] == "| stage | 100 ops | 200 ops |"
    stages = [line.split("|")[1].strip() for line in lines[4:]]
    assert stages == [
        "validate",
        "merge ops to 8",
        "colocate",
        "merge colocated to 8",
        "group graph",
        "reachability of 10,000",
        "save .json.gz",
        "load .json.gz",
    ]


def test_the_benchmark_gives_seconds_and_bytes() -> None:
    stages = benchmark.measured(["--ops", "100", "--repeats", "1"]).stages
    assert {stage.num_ops for stage in stages} == {100}
    assert all(stage.seconds > 0 and stage.peak_bytes > 1e6 for stage in stages)

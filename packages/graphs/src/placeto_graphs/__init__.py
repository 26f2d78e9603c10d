"""The typed schema of Placeto, its files, and the grouping of ops.

This is all that the other packages may use of it, and the only thing that they share.
"""

from placeto_graphs.best_so_far import BestSoFar
from placeto_graphs.clusters.devices import DEVICE_KINDS, LINK_NAMES, bytes_besides_tensors
from placeto_graphs.clusters.file import load_cluster, save_cluster
from placeto_graphs.clusters.spec import parse_cluster
from placeto_graphs.compilation import called_by_compiled, compiled
from placeto_graphs.copies.description import Copies, copies_of
from placeto_graphs.copies.division import BatchDivision
from placeto_graphs.copies.steps import copied, parts_of_batch, sharded
from placeto_graphs.digraphs import compress_rows
from placeto_graphs.errors import GraphError, error_line
from placeto_graphs.files.dnn_partitioning import load_dnn_partitioning
from placeto_graphs.files.pipedream import load_pipedream_profile
from placeto_graphs.files.placement_file import (
    load_copies,
    load_placement,
    load_placement_of_any_level,
    save_placement,
)
from placeto_graphs.files.problem_file import load_graph, load_problem, save_graph, save_problem
from placeto_graphs.files.storage import write_atomically
from placeto_graphs.grouping.colocation import (
    DEFAULT_RULES,
    NAMED_RULES,
    colocate,
    colocate_by_id,
    colocate_gradients,
    colocate_scopes,
    colocate_single_consumers,
    colocate_updates,
    names_of_rules,
    rules_of_names,
)
from placeto_graphs.grouping.contraction import contracted
from placeto_graphs.grouping.labels import grouping_of_labels
from placeto_graphs.grouping.merging import LEVEL_SIZES, merge_and_colocate, nested_groupings
from placeto_graphs.grouping.reachability import Reachability, reachability
from placeto_graphs.micro_batches.schedules import SCHEDULES, device_and_group_stages, scheduled
from placeto_graphs.micro_batches.steps import (
    micro_batched,
    micro_batched_problem,
    repeat_micro_batch_problem,
)
from placeto_graphs.networkx_conversion import from_networkx, groups_to_networkx, to_networkx
from placeto_graphs.protocols.evaluation import (
    MEMORY_PENALTY,
    SECONDS_PER_BYTE,
    CriticalEvaluator,
    Evaluator,
    GeneralEvaluator,
    Placer,
    SchedulingEvaluator,
    memory_penalised_runtime,
    placement_ranks,
)
from placeto_graphs.protocols.execution import DeviceStep, ExecutableStep
from placeto_graphs.protocols.moves import MoveEvaluator, Moves, Walks, check_moves, plain_walk
from placeto_graphs.schema.arrays import sums_by_key
from placeto_graphs.schema.cluster import Cluster, Device, DeviceKind, Efficiency
from placeto_graphs.schema.grouping import GroupGraph, Grouping, group_graph
from placeto_graphs.schema.op_graph import FREE_TYPE, OpGraph, Phase, TokenCache, columns_of_ops
from placeto_graphs.schema.problem import PlacementProblem, measured_compute_time
from placeto_graphs.schema.results import EvaluationBatch, PlacementResult, ScheduleBatch
from placeto_graphs.timeline import StepTimeline

__version__ = "0.3.0"

__all__ = [
    "DEFAULT_RULES",
    "DEVICE_KINDS",
    "FREE_TYPE",
    "LEVEL_SIZES",
    "LINK_NAMES",
    "MEMORY_PENALTY",
    "NAMED_RULES",
    "SCHEDULES",
    "SECONDS_PER_BYTE",
    "BatchDivision",
    "BestSoFar",
    "Cluster",
    "Copies",
    "CriticalEvaluator",
    "Device",
    "DeviceKind",
    "DeviceStep",
    "Efficiency",
    "EvaluationBatch",
    "Evaluator",
    "ExecutableStep",
    "GeneralEvaluator",
    "GraphError",
    "GroupGraph",
    "Grouping",
    "MoveEvaluator",
    "Moves",
    "OpGraph",
    "Phase",
    "PlacementProblem",
    "PlacementResult",
    "Placer",
    "Reachability",
    "ScheduleBatch",
    "SchedulingEvaluator",
    "StepTimeline",
    "TokenCache",
    "Walks",
    "bytes_besides_tensors",
    "called_by_compiled",
    "check_moves",
    "colocate",
    "colocate_by_id",
    "colocate_gradients",
    "colocate_scopes",
    "colocate_single_consumers",
    "colocate_updates",
    "columns_of_ops",
    "compiled",
    "compress_rows",
    "contracted",
    "copied",
    "copies_of",
    "device_and_group_stages",
    "error_line",
    "from_networkx",
    "group_graph",
    "grouping_of_labels",
    "groups_to_networkx",
    "load_cluster",
    "load_copies",
    "load_dnn_partitioning",
    "load_graph",
    "load_pipedream_profile",
    "load_placement",
    "load_placement_of_any_level",
    "load_problem",
    "measured_compute_time",
    "memory_penalised_runtime",
    "merge_and_colocate",
    "micro_batched",
    "micro_batched_problem",
    "names_of_rules",
    "nested_groupings",
    "parse_cluster",
    "parts_of_batch",
    "placement_ranks",
    "plain_walk",
    "reachability",
    "repeat_micro_batch_problem",
    "rules_of_names",
    "save_cluster",
    "save_graph",
    "save_placement",
    "save_problem",
    "scheduled",
    "sharded",
    "sums_by_key",
    "to_networkx",
    "write_atomically",
]

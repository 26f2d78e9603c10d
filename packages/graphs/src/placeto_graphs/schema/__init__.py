"""The typed schema: what the packages agree on."""

from placeto_graphs.schema.cluster import Cluster, Device
from placeto_graphs.schema.evaluation import EvaluationBatch, Evaluator, PlacementResult, Placer
from placeto_graphs.schema.group_graph import GroupGraph
from placeto_graphs.schema.grouping import Grouping
from placeto_graphs.schema.op_graph import OpGraph, Phase
from placeto_graphs.schema.problem import PlacementProblem

__all__ = [
    "Cluster",
    "Device",
    "EvaluationBatch",
    "Evaluator",
    "GroupGraph",
    "Grouping",
    "OpGraph",
    "Phase",
    "PlacementProblem",
    "PlacementResult",
    "Placer",
]

"""The typed schema: what the packages agree on."""

from placeto_graphs.schema.cluster import Cluster
from placeto_graphs.schema.cluster import Device
from placeto_graphs.schema.evaluation import EvaluationBatch
from placeto_graphs.schema.evaluation import Evaluator
from placeto_graphs.schema.evaluation import PlacementResult
from placeto_graphs.schema.evaluation import Placer
from placeto_graphs.schema.group_graph import GroupGraph
from placeto_graphs.schema.grouping import Grouping
from placeto_graphs.schema.op_graph import OpGraph
from placeto_graphs.schema.op_graph import Phase
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

"""The Placeto policy, which learns where to place groups of operations.

The package has the Markov decision process over placements, the graph embedding, the policy
network and the REINFORCE trainer. Costs come from an ``Evaluator`` only, so any simulator or
measurement can train a policy. Begin to read at `Settings`, `PlacetoPlacer` and `Trainer`.
"""

from placeto_policy.checkpoint import load_policy, resume_training, save_policy, save_training
from placeto_policy.embedding.message_passing import GraphEmbedding
from placeto_policy.environment import PlacementEnvironment, most_evaluations
from placeto_policy.errors import PolicyError
from placeto_policy.graph_features import GraphFeatures, graph_features_of
from placeto_policy.gym import gym_environment
from placeto_policy.logs import JsonLinesLog, TensorBoardLog
from placeto_policy.placer import PlacetoPlacer
from placeto_policy.policy import PlacementPolicy
from placeto_policy.pretrained import load_pretrained
from placeto_policy.settings import Settings, preset
from placeto_policy.states import States
from placeto_policy.trainer import Trainer, UpdateSummary
from placeto_policy.workers import join_processes

__version__ = "0.3.0"

__all__ = [
    "GraphEmbedding",
    "GraphFeatures",
    "JsonLinesLog",
    "PlacementEnvironment",
    "PlacementPolicy",
    "PlacetoPlacer",
    "PolicyError",
    "Settings",
    "States",
    "TensorBoardLog",
    "Trainer",
    "UpdateSummary",
    "graph_features_of",
    "gym_environment",
    "join_processes",
    "load_policy",
    "load_pretrained",
    "most_evaluations",
    "preset",
    "resume_training",
    "save_policy",
    "save_training",
]

"""The placers that Placeto is compared with.

All take the same problem and the same evaluator, so that results compare. Every placer minimises
the memory-penalised runtime, with the memory of the devices as the limits.
"""

from placeto_baselines.bounds.lower_bound import bound_parts, bounds_in_turn, lower_bound
from placeto_baselines.bounds.memory import least_excess, least_memory
from placeto_baselines.errors import BaselineError, StoppedSearchError
from placeto_baselines.expert import ExpertPlacer, ExpertScopes
from placeto_baselines.fixed import CpuOnly, RandomPlacer, SingleDevice
from placeto_baselines.partitioning import MetisPlacer, ScotchPlacer
from placeto_baselines.placement_trials import Limits
from placeto_baselines.rnn.placer import RnnPlacer, TrainedRnnPlacer
from placeto_baselines.rnn.settings import RnnSettings
from placeto_baselines.scheduling.baechi import MEtf, MSct, MTopo
from placeto_baselines.scheduling.list_schedulers import CriticalPathPlacer, Heft
from placeto_baselines.search.chains import LayerChain, Stages, best_chain, steepest_descent
from placeto_baselines.search.local_search import LocalSearch, exhaustive_search
from placeto_baselines.search.multilevel_search import MultilevelSearch
from placeto_baselines.search.portfolio import PortfolioSearch
from placeto_baselines.search.subsets import Choice

__version__ = "0.3.0"

__all__ = [
    "BaselineError",
    "Choice",
    "CpuOnly",
    "CriticalPathPlacer",
    "ExpertPlacer",
    "ExpertScopes",
    "Heft",
    "LayerChain",
    "Limits",
    "LocalSearch",
    "MEtf",
    "MSct",
    "MTopo",
    "MetisPlacer",
    "MultilevelSearch",
    "PortfolioSearch",
    "RandomPlacer",
    "RnnPlacer",
    "RnnSettings",
    "ScotchPlacer",
    "SingleDevice",
    "Stages",
    "StoppedSearchError",
    "TrainedRnnPlacer",
    "best_chain",
    "bound_parts",
    "bounds_in_turn",
    "exhaustive_search",
    "least_excess",
    "least_memory",
    "lower_bound",
    "steepest_descent",
]

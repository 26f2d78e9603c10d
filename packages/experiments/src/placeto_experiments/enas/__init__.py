"""Architectures as ENAS finds them (Pham et al. 2018).

The search spaces, the super-networks in which all architectures of a space share weights, the
controller that samples architectures, training that alternates between the two, and the sampler
that gives families the architectures that such a training passed through.
"""

from placeto_experiments.enas.checkpoint import resume_search, save_search, train
from placeto_experiments.enas.controller import Controller
from placeto_experiments.enas.images import ImageData, cifar10, shape_images
from placeto_experiments.enas.search import Search
from placeto_experiments.enas.settings import PUBLISHED, Settings
from placeto_experiments.enas.shared_images import SharedImageNetwork
from placeto_experiments.enas.shared_text import SharedLanguageModel
from placeto_experiments.enas.tasks import ImageTask, Task, TextTask
from placeto_experiments.enas.texts import TextData, grammar_text, penn_treebank
from placeto_workloads.families.controller_sampler import ControllerSampler
from placeto_workloads.families.search_spaces import ConvolutionalSpace, RecurrentSpace, SearchSpace
from placeto_workloads.families.trajectory import Trajectory, load_trajectory, save_trajectory

__all__ = [
    "PUBLISHED",
    "Controller",
    "ControllerSampler",
    "ConvolutionalSpace",
    "ImageData",
    "ImageTask",
    "RecurrentSpace",
    "Search",
    "SearchSpace",
    "Settings",
    "SharedImageNetwork",
    "SharedLanguageModel",
    "Task",
    "TextData",
    "TextTask",
    "Trajectory",
    "cifar10",
    "grammar_text",
    "load_trajectory",
    "penn_treebank",
    "resume_search",
    "save_search",
    "save_trajectory",
    "shape_images",
    "train",
]

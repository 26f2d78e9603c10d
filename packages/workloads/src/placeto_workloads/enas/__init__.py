"""Architectures as ENAS finds them (Pham et al. 2018).

The search spaces, the super-networks in which all architectures of a space share weights, the
controller that samples architectures, training that alternates between the two, and the sampler
that gives families the architectures that such a training passed through.
"""

from placeto_workloads.enas.checkpoint import resume_search
from placeto_workloads.enas.checkpoint import save_search
from placeto_workloads.enas.checkpoint import train
from placeto_workloads.enas.controller import Controller
from placeto_workloads.enas.images import ImageData
from placeto_workloads.enas.images import cifar10
from placeto_workloads.enas.images import shape_images
from placeto_workloads.enas.sampler import ControllerSampler
from placeto_workloads.enas.search import Search
from placeto_workloads.enas.search_spaces import ConvolutionalSpace
from placeto_workloads.enas.search_spaces import RecurrentSpace
from placeto_workloads.enas.search_spaces import SearchSpace
from placeto_workloads.enas.settings import PUBLISHED
from placeto_workloads.enas.settings import Settings
from placeto_workloads.enas.shared_images import SharedImageNetwork
from placeto_workloads.enas.shared_text import SharedLanguageModel
from placeto_workloads.enas.tasks import ImageTask
from placeto_workloads.enas.tasks import Task
from placeto_workloads.enas.tasks import TextTask
from placeto_workloads.enas.texts import TextData
from placeto_workloads.enas.texts import grammar_text
from placeto_workloads.enas.texts import penn_treebank
from placeto_workloads.enas.trajectory import Trajectory
from placeto_workloads.enas.trajectory import load_trajectory
from placeto_workloads.enas.trajectory import save_trajectory

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

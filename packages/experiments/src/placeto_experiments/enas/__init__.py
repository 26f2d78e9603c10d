"""Architectures as ENAS finds them (Pham et al. 2018); begin to read in ``search.py``.

The search spaces, and what families take from a training, stand in `placeto_workloads.families`.
"""

from placeto_experiments.enas.checkpoint import resume_search, save_search, train
from placeto_experiments.enas.controller import Controller
from placeto_experiments.enas.data import cifar10, grammar_text, penn_treebank, shape_images
from placeto_experiments.enas.search import PUBLISHED, Search, Settings
from placeto_experiments.enas.tasks import ImageTask, Task, TextTask

__all__ = [
    "PUBLISHED",
    "Controller",
    "ImageTask",
    "Search",
    "Settings",
    "Task",
    "TextTask",
    "cifar10",
    "grammar_text",
    "penn_treebank",
    "resume_search",
    "save_search",
    "shape_images",
    "train",
]

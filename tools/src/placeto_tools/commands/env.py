"""``placeto env``."""

import os
import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import click
import torch

import placeto
from placeto.texts import TextTable, bytes_text
from placeto_tools.options import Command, json_option
from placeto_tools.tables import show, show_json

OWN = (
    *("tools", "graphs", "simulator", "policy", "baselines", "capture", "workloads", "execution"),
    "experiments",
)
LIBRARIES = (
    *("numpy", "numba", "torch", "networkx", "click"),
    *("transformers", "timm", "torchvision", "diffusers", "onnx"),
)


@click.command(cls=Command)
@json_option
def env(as_json: bool) -> None:
    """Show versions and devices, for bug reports.

    \b
    placeto env
    placeto env --json
    """
    versions = {"python": platform.python_version(), "system": platform.platform()}
    versions |= {"placeto": placeto.__version__}
    versions |= {f"placeto-{name}": _own_version(f"placeto_{name}") for name in OWN}
    versions |= {name: _version(name) for name in LIBRARIES}
    devices = [_processor(), *map(_gpu, range(torch.cuda.device_count()))]
    if as_json:
        show_json({"versions": versions, "devices": devices})
        return
    show(
        TextTable("Versions", ["name", "version"], [list(row) for row in versions.items()]),
        TextTable(
            "Devices",
            ["device", "name", ">memory"],
            [
                [str(row["device"]), str(row["name"]), bytes_text(float(row["memory"]))]
                for row in devices
            ],
        ),
    )


def _own_version(module: str) -> str:
    try:
        return str(import_module(module).__version__)
    except ImportError:
        return "not installed"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> dict[str, str | int]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = f"{platform.machine()}, {cores} cores for this process"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"device": "cpu", "name": name, "memory": memory}


def _gpu(number: int) -> dict[str, str | int]:
    properties = torch.cuda.get_device_properties(number)
    return {
        "device": f"cuda:{number}",
        "name": properties.name,
        "memory": properties.total_memory,
    }

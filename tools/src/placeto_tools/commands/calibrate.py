"""``placeto calibrate``."""

from pathlib import Path
from typing import Any

import click

from placeto.errors import writing
from placeto.texts import TextTable, bytes_text, seconds_text
from placeto_capture import executable_step
from placeto_execution.calibration import Calibration
from placeto_execution.devices import RealDevices
from placeto_graphs import save_cluster
from placeto_tools.options import (
    Command,
    devices_options,
    number_option,
    result_options,
    steps_option,
)
from placeto_tools.screen import show_report, showing_progress, table_of

SIZES = (4, 4 << 10, 256 << 10, 16 << 20)  # bytes


@click.command(cls=Command)
@devices_options
@steps_option(7)
@number_option(
    "--most-bytes",
    minimum=SIZES[-2],
    default=SIZES[-1],
    metavar="BYTES",
    help=f"Size of the largest transferred tensor, in bytes, at least {SIZES[-2]}.",
)
@result_options("Cluster file to write: .toml.", ".toml")
def calibrate(
    devices: RealDevices, steps: int, most_bytes: int, output: Path, as_json: bool
) -> None:
    """Measure the devices of this machine into a cluster file.

    By default it measures two CPUs: times of transfers, and times between ops. The file holds the
    latency and bandwidth, from the smallest and the largest tensor, and the time between ops.

    \b
    placeto calibrate --devices cpu:0,cpu:1 -o cluster.toml
    """
    calibration = Calibration(devices.names, executable_step, steps, devices.threads)
    sizes = [size for size in SIZES if size < most_bytes] + [most_bytes // 4 * 4]
    with showing_progress() as progress:
        progress.update("transfers between devices ...")
        links = calibration.links(sizes)
        progress.update("time between ops ...")
        cluster = calibration.cluster(links, devices.kinds)
    with writing(output):
        save_cluster(cluster, output)
    measured = [
        {
            "device": device.name,
            "op_overhead": device.op_overhead,
            "memory_bytes": device.memory_bytes,
        }
        for device in cluster.devices
    ]
    transfers: list[dict[str, Any]] = [
        {
            "from": devices.names[link.source],
            "to": devices.names[link.destination],
            "bytes": link.num_bytes,
            "seconds": link.seconds,
        }
        for link in links
    ]
    tables = [
        table_of(
            str(output), measured, "device | >between ops: op_overhead | >memory: memory_bytes"
        ),
        TextTable(
            "Median time of a transfer",
            ["from", "to", *(f">{bytes_text(size)}" for size in sizes)],
            [[row["from"], row["to"], *map(seconds_text, row["seconds"])] for row in transfers],
        ),
    ]
    report = {"output": str(output), "devices": measured, "links": transfers}
    show_report(report, *(table for table in tables if table.rows), as_json=as_json)

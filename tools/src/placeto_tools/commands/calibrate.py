"""``placeto calibrate``."""

from pathlib import Path
from typing import Any

import click

from placeto.errors import writing
from placeto.outputs import check_file
from placeto.texts import TextTable, bytes_text, seconds_text
from placeto_capture import executable_step
from placeto_execution.devices import RealDevices
from placeto_execution.measuring.calibration import WORKS, Calibration
from placeto_graphs import save_cluster
from placeto_tools.options import (
    Command,
    devices_options,
    force_option,
    json_option,
    output_option,
    steps_option,
)
from placeto_tools.progress import showing_progress
from placeto_tools.tables import show, show_json

SIZES = (4, 4 << 10, 256 << 10, 16 << 20)  # bytes


@click.command(cls=Command)
@devices_options
@steps_option(7)
@click.option(
    "--most-bytes",
    type=click.IntRange(min=4),
    default=SIZES[-1],
    show_default=True,
    metavar="BYTES",
    help="Size of the largest transferred tensor, in bytes.",
)
@output_option("Cluster file to write: .toml.")
@json_option
@force_option
def calibrate(
    devices: RealDevices, steps: int, most_bytes: int, output: Path, as_json: bool, force: bool
) -> None:
    """Measure the devices of this machine into a cluster file.

    By default it measures two CPUs: times of transfers, times between ops, and the slowdown of ops
    while all devices are busy. The file holds the latency and bandwidth, from the smallest and the
    largest tensor, and the time between ops. It does not hold the slowdown, because simulated
    devices do not slow each other down.

    \b
    placeto calibrate --devices cpu:0,cpu:1 -o cluster.toml
    """
    check_file(output, force=force, suffixes=(".toml",))
    calibration = Calibration(devices.names, executable_step, steps, devices.threads)
    sizes = [size for size in SIZES if size < most_bytes] + [most_bytes // 4 * 4]
    with showing_progress() as progress:
        progress.update("transfers between devices ...")
        links = calibration.links(sizes)
        progress.update("time between ops ...")
        cluster = calibration.cluster(links, devices.kinds)
        slowdowns = []
        for what in WORKS:
            progress.update(f"alone and together: {what} ...")
            slowdowns.append(calibration.slowdown(what))
    with writing(output):
        save_cluster(cluster, output)
    report = {
        "output": str(output),
        "devices": [
            {
                "device": device.name,
                "op_overhead": device.op_overhead,
                "memory_bytes": device.memory_bytes,
            }
            for device in cluster.devices
        ],
        "links": [
            {
                "from": devices.names[link.source],
                "to": devices.names[link.destination],
                "bytes": list(link.num_bytes),
                "seconds": list(link.seconds),
            }
            for link in links
        ],
        "slowdowns": [
            {"what": each.what, "alone": each.alone, "together": each.together}
            for each in slowdowns
        ],
    }
    if as_json:
        show_json(report)
    else:
        show(*(table for table in _tables(report) if table.rows))


def _tables(report: dict[str, Any]) -> list[TextTable]:
    sizes = report["links"][0]["bytes"] if report["links"] else []
    return [
        TextTable(
            f"{report['output']}",
            ["device", ">between ops", ">memory"],
            [
                [row["device"], seconds_text(row["op_overhead"]), bytes_text(row["memory_bytes"])]
                for row in report["devices"]
            ],
        ),
        TextTable(
            "Median time of a transfer",
            ["from", "to", *(f">{bytes_text(size)}" for size in sizes)],
            [
                [
                    row["from"],
                    row["to"],
                    *(seconds_text(seconds) for seconds in row["seconds"]),
                ]
                for row in report["links"]
            ],
        ),
        TextTable(
            "Median time of an op",
            ["op", ">alone", ">while all are busy", ">ratio"],
            [
                [
                    row["what"],
                    seconds_text(row["alone"]),
                    seconds_text(row["together"]),
                    f"{row['together'] / row['alone']:.2f}",
                ]
                for row in report["slowdowns"]
            ],
        ),
    ]

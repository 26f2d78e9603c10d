"""``placeto calibrate``."""

from pathlib import Path
from typing import Any

import click

from placeto.errors import writing
from placeto.outputs import check_file
from placeto.texts import TextTable, bytes_text, seconds_text
from placeto_capture import executable_step
from placeto_execution.measuring.calibration import WORKS, Calibration
from placeto_execution.measuring.real_devices import RealDevices
from placeto_graphs import save_cluster
from placeto_tools.options import Command, devices_options, force_option, json_option, output_option
from placeto_tools.progress import showing_progress
from placeto_tools.tables import show, show_json

SIZES = (4, 4 << 10, 256 << 10, 16 << 20)  # bytes


@click.command(cls=Command)
@devices_options
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    help="Number of runs of each measured step that count, after one that does not.",
)
@click.option(
    "--most-bytes",
    type=click.IntRange(min=4),
    default=SIZES[-1],
    show_default=True,
    help="Size of the largest tensor that is sent, in bytes.",
)
@output_option("The cluster file: .toml.")
@json_option
@force_option
def calibrate(
    devices: RealDevices, runs: int, most_bytes: int, output: Path, as_json: bool, force: bool
) -> None:
    """Measure the devices of this machine into a cluster file.

    Measured are the time of a tensor from one device to another, the time between two ops, and how
    much slower ops are while all devices are busy. The file has the latency and the bandwidth of
    the smallest and the largest tensor. The last table is not in the file, as ops of a simulated
    device do not slow down those of others.

    \b
    placeto calibrate --devices cpu:0,cpu:1 -o cluster.toml
    """
    check_file(output, force=force, suffixes=(".toml",))
    calibration = Calibration(devices.names, executable_step, runs, devices.threads)
    sizes = [size for size in SIZES if size < most_bytes] + [most_bytes // 4 * 4]
    with showing_progress() as progress:
        progress.update("tensors from one device to another ...")
        links = calibration.links(sizes)
        progress.update("what lies between ops ...")
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
            "A tensor takes",
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
            "An op takes, on the median",
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

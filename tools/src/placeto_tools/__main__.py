"""The script ``placeto``, and ``python -m placeto_tools``, in which an early Ctrl-C is quiet."""

import signal
import sys


def placeto() -> None:
    """Run the command."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from placeto_tools.main import placeto as command  # noqa: PLC0415 (it takes a while)

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command(prog_name="placeto")


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, whose modules would hide those of libraries
    placeto()

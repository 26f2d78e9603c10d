"""What the launcher of several processes says of how they end; the processes need no torch."""

import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator

import pytest
from torch._C._distributed_c10d import TCPStore

from placeto.errors import LOST, InputError, LostRunError, RunError
from placeto.training import local_workers
from placeto.training.local_workers import Machines, run_workers

# The launcher leaves its files to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Take back the signals that the launcher catches, as its process is to end with it."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    for number, handler in before.items():
        if handler is not signal.getsignal(number):
            signal.signal(number, handler)
    gc.collect()  # while warnings of those files are ignored


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def run(first: str, second: str, machines: Machines | None = None) -> int:
    """Run two processes that wait for the signal by which the launcher ends them, or do better."""
    code = f"import os, signal, sys, time\n{first} if os.environ['RANK'] == '0' else {second}"
    return run_workers([sys.executable, "-c", code], 2, machines)


WAIT, KILL = "time.sleep(60)", "os.kill(os.getpid(), signal.SIGKILL)"


def test_the_first_to_be_killed_is_named() -> None:
    with pytest.raises(RunError, match=r"^worker 0 was ended by SIGKILL$"):
        run(KILL, WAIT)
    with pytest.raises(RunError, match=r"^worker 1 was ended by SIGKILL$"):
        run(WAIT, KILL)


def test_what_another_process_says_at_last_is_repeated() -> None:
    with pytest.raises(RunError, match=r"^worker 1 ended: it broke$"):
        run(WAIT, "sys.exit('it broke')")


def test_the_first_process_has_a_line_of_its_own() -> None:
    assert run("sys.exit(3)", WAIT) == 3
    assert run("None", "None") == 0


def test_what_the_first_process_has_said_is_not_repeated() -> None:
    """It left its error to the launcher, which ends it before it ends by itself."""
    error = '{"message": {"message": "it broke", "extraInfo": {"timestamp": "1"}}}'
    said = f"(open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{error}'), {WAIT})"
    assert run(said, "(time.sleep(0.5), sys.exit('another process went away'))") == 1


def test_options_of_the_command_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker resumes what the command has begun, where such an option is an error."""
    monkeypatch.setenv("PLACETO_TRAIN_SEED", "3")
    found = "sys.exit(int('PLACETO_TRAIN_SEED' in os.environ))"
    assert run(found, found) == 0
    assert os.environ["PLACETO_TRAIN_SEED"] == "3"


@pytest.mark.parametrize("second", [KILL, f"sys.exit({LOST})"])
def test_a_process_that_is_lost_ends_a_machine_so_that_it_can_resume(second: str) -> None:
    with pytest.raises(LostRunError, match="killed or lost"):
        run(WAIT, second, Machines(1, "127.0.0.1", free_port()))


def test_a_process_of_several_machines_that_failed_or_was_stopped_is_not_resumed() -> None:
    codes = [
        run(f"sys.exit({code})", WAIT, Machines(1, "127.0.0.1", free_port())) for code in (2, 130)
    ]
    assert codes == [2, 130]


def test_the_host_is_the_first_of_the_machines() -> None:
    """Launchers sort machines by these texts."""
    here, other = (Machines(2, host, 29500).local_address for host in ("127.0.0.1", "192.0.2.1"))
    assert here == "127.0.0.1"
    assert sorted([other, "zoo.example", "192.0.2.1"])[-1] == other
    with pytest.raises(InputError, match="--rendezvous not a host: "):
        Machines(2, "not a host", 29500).wait()


def test_another_service_on_the_port_of_the_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_workers, "SECONDS_TO_ANSWER", 0.3)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(RunError, match="another service uses this port"),
    ):
        Machines(2, "127.0.0.1", silent.getsockname()[1]).wait()


def test_a_machine_waits_for_nothing_else_than_a_store_or_a_free_port_of_its_own() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for port in (store.port, free_port()):
        Machines(2, "127.0.0.1", port).wait()

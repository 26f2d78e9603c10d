"""An emulated link carries one transfer at a time, the first that was offered first."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from placeto_execution.links import EmulatedLink, Transfer
from placeto_execution.queues import FirstInFirstOut, InOrder

durations = st.floats(0, 10)
offers = st.lists(st.tuples(durations, durations, durations), min_size=1, max_size=10)


def transfer(tensor: int, seconds: float, overhead: float) -> Transfer:
    return Transfer(tensor, 0, 1, 0, seconds, overhead, None)


@given(offers)
def test_first_in_first_out(given_offers: list[tuple[float, float, float]]) -> None:
    link = EmulatedLink(FirstInFirstOut())
    now = free_at = 0.0
    for tensor, (after, seconds, overhead) in enumerate(given_offers):
        now += after
        (carried,) = link.offer(transfer(tensor, seconds, overhead), now)
        assert carried.start == max(now, free_at)
        assert carried.end == carried.start + seconds
        free_at = carried.end + overhead


@given(offers, st.randoms(use_true_random=False))
def test_in_a_given_order(given_offers: list[tuple[float, float, float]], random: object) -> None:
    """Offered in any order, transfers are carried in the one that is given."""
    order = list(range(len(given_offers)))
    random.shuffle(order)  # type: ignore[attr-defined]
    link = EmulatedLink(InOrder(order, key_of=lambda each: each.tensor))
    carried: list[Transfer] = []
    for tensor, (_, seconds, overhead) in enumerate(given_offers):
        carried += link.offer(transfer(tensor, seconds, overhead), float(tensor))
    assert [each.tensor for each in carried] == order
    free_at = 0.0
    for each in carried:
        assert each.start == max(float(each.tensor), free_at)
        free_at = each.end + each.overhead


def test_offers_of_several_threads_never_overlap() -> None:
    link = EmulatedLink(FirstInFirstOut())
    carried: list[Transfer] = []

    def offer() -> None:
        for number in range(200):
            carried.extend(link.offer(transfer(number, 1.0, 0.5), 0.0))

    threads = [threading.Thread(target=offer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.start for each in carried) == [1.5 * number for number in range(800)]

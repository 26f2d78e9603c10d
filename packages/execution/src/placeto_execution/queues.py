"""In which order a device works off its ops, and a link its transfers."""

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

Element = TypeVar("Element")


class Queue(Protocol[Element]):
    """What is ready, and what of it comes next."""

    def add(self, element: Element) -> None:
        """Note that an element is ready."""
        ...

    def pop(self) -> Element | None:
        """Return the next element, or None if it has to be waited for."""
        ...


class FirstInFirstOut(Generic[Element]):
    """The first that is ready is the first to go.

    Examples
    --------
    >>> queue = FirstInFirstOut()
    >>> queue.add("a"), queue.add("b")
    (None, None)
    >>> queue.pop(), queue.pop(), queue.pop()
    ('a', 'b', None)
    """

    def __init__(self) -> None:
        self._waiting: deque[Element] = deque()

    def add(self, element: Element) -> None:
        """Note that an element is ready."""
        self._waiting.append(element)

    def pop(self) -> Element | None:
        """Return the next element, or None if there is none."""
        return self._waiting.popleft() if self._waiting else None


class LowestFirst(Generic[Element]):
    """Of what is ready, that with the lowest rank is the first to go.

    Parameters
    ----------
    rank_of
        Gives ranks, no two of which are equal.

    Examples
    --------
    >>> queue = LowestFirst(rank_of=lambda number: -number)
    >>> queue.add(1), queue.add(2)
    (None, None)
    >>> queue.pop(), queue.pop(), queue.pop()
    (2, 1, None)
    """

    def __init__(self, rank_of: Callable[[Element], Any]) -> None:
        self._rank_of = rank_of
        self._waiting: list[tuple[Any, Element]] = []

    def add(self, element: Element) -> None:
        """Note that an element is ready."""
        heapq.heappush(self._waiting, (self._rank_of(element), element))

    def pop(self) -> Element | None:
        """Return the next element, or None if there is none."""
        return heapq.heappop(self._waiting)[1] if self._waiting else None


class InOrder(Generic[Element]):
    """One element after the other, as given, whatever else is ready.

    Parameters
    ----------
    order
        The keys of all elements.
    key_of
        Gives the key of an element.

    Examples
    --------
    >>> queue = InOrder(["a", "b"], key_of=str)
    >>> queue.add("b")
    >>> queue.pop()
    >>> queue.add("a")
    >>> queue.pop(), queue.pop()
    ('a', 'b')
    """

    def __init__(self, order: Sequence[Hashable], key_of: Callable[[Element], Hashable]) -> None:
        self._order = order
        self._key_of = key_of
        self._num_gone = 0
        self._ready: dict[Hashable, Element] = {}

    def add(self, element: Element) -> None:
        """Note that an element is ready."""
        self._ready[self._key_of(element)] = element

    def pop(self) -> Element | None:
        """Return the next element, or None if that is not ready."""
        if self._num_gone == len(self._order):
            return None
        element = self._ready.pop(self._order[self._num_gone], None)
        if element is not None:
            self._num_gone += 1
        return element

"""The parts of a storage are those that its tensors tell apart, byte by byte."""

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from placeto_capture.tracing import storage_parts
from placeto_capture.tracing.storage_parts import StorageParts
from placeto_capture.tracing.trace import View, whole_storage

NUM_BYTES = 96


def bytes_of(ref: View) -> set[int]:
    """Return the addresses that a tensor shows."""
    addresses = torch.arange(NUM_BYTES).as_strided(ref.size, ref.stride, ref.offset)
    return set(addresses.flatten().tolist())


@st.composite
def views(draw: st.DrawFn) -> View:
    """Return a view of a storage by slices, columns, transposition and the like, as bytes."""
    shape = draw(st.sampled_from([(96,), (8, 12), (4, 2, 12), (3, 32), (2, 6, 8)]))
    whole = torch.empty(NUM_BYTES, dtype=torch.uint8)
    view = whole.view(shape)
    for dim in range(view.dim()):
        start = draw(st.integers(0, view.shape[dim]))
        stop = draw(st.integers(start, view.shape[dim]))
        view = view.narrow(dim, start, stop - start)
    if view.dim() > 1 and draw(st.booleans()):
        view = view.transpose(0, 1)
    if draw(st.booleans()):
        view = view[::2]
    return View(0, view.dtype, tuple(view.shape), view.stride(), int(view.storage_offset()))


@st.composite
def windows(draw: st.DrawFn) -> View:
    """Return any strided view, also one that shows some bytes several times."""
    size = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride = draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))
    return View(0, torch.uint8, size, stride, draw(st.integers(0, 32)))


refs_of_one_storage = st.lists(st.one_of(views(), windows()), max_size=5)


@given(refs_of_one_storage)
def test_parts_have_no_byte_in_common_and_all_together(refs: list[View]) -> None:
    found = StorageParts(whole_storage(0, NUM_BYTES), refs)
    addresses = sorted(address for part in found.parts for address in bytes_of(part))
    assert addresses == list(range(NUM_BYTES))
    assert found.sizes == [len(bytes_of(part)) for part in found.parts]


ROWS_OF_8 = View(0, torch.uint8, (12, 4), (8, 1), 0)
TWO_ROWS_FROM_THE_MIDDLE = View(0, torch.uint8, (16,), (1,), 2)


@given(refs_of_one_storage)
@example([ROWS_OF_8, TWO_ROWS_FROM_THE_MIDDLE])
def test_a_tensor_shows_its_parts_and_no_byte_of_others(refs: list[View]) -> None:
    found = StorageParts(whole_storage(0, NUM_BYTES), refs)
    for ref in refs:
        look = found.shown(ref)
        of_parts = {address for part in look.parts for address in bytes_of(found.parts[part])}
        assert bytes_of(ref) <= of_parts
        assert not look.is_exact or bytes_of(ref) == of_parts


def test_slices_columns_and_thirds_are_exact_together() -> None:
    whole = whole_storage(0, NUM_BYTES)
    matrix = torch.empty(NUM_BYTES, dtype=torch.uint8).view(8, 12)
    cuts = [*matrix.chunk(3, dim=1), matrix[2:5], matrix[:, 1::2][0], matrix.t()[4]]
    refs = [
        View(0, cut.dtype, tuple(cut.shape), cut.stride(), int(cut.storage_offset()))
        for cut in cuts
    ]
    found = StorageParts(whole, [whole, *refs])
    for ref in (whole, *refs):
        assert found.shown(ref).is_exact
        assert sum(found.sizes[part] for part in found.shown(ref).parts) == len(bytes_of(ref))


def test_too_many_parts_are_one() -> None:
    count = storage_parts.MAX_PARTS + 1
    elements = [View(0, torch.uint8, (), (), index) for index in range(count)]
    assert len(StorageParts(whole_storage(0, count), elements[:-2]).parts) == count - 1
    found = StorageParts(whole_storage(0, count), elements)
    assert found.sizes == [count]
    assert found.shown(elements[1]) == storage_parts.Coverage((0,), is_exact=False)

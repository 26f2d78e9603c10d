"""Data sets: what is drawn, what is read from disk, and what is refused."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from placeto_experiments.enas import cifar10, grammar_text, penn_treebank, shape_images
from placeto_experiments.enas.data import CIFAR_FILES
from placeto_workloads import WorkloadError

RECORD = 3073


def write_cifar(folder: Path, per_file: int = 4) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    folder.mkdir(parents=True, exist_ok=True)
    records = np.random.default_rng(0).integers(
        256, size=(len(CIFAR_FILES), per_file, RECORD), dtype=np.uint8
    )
    records[:, :, 0] %= 10
    for name, content in zip(CIFAR_FILES, records, strict=True):
        (folder / name).write_bytes(content.tobytes())
    return records.reshape(-1, RECORD)


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_cifar10_is_read_from_its_binary_version(tmp_path: Path, inner: str) -> None:
    records = write_cifar(tmp_path / inner)
    data = cifar10(tmp_path, num_validation=5)
    labels = np.concatenate([data.training_labels, data.validation_labels])
    assert labels.tolist() == records[:, 0].tolist()
    assert len(data.validation_labels) == 5
    # A record is a label, then 1,024 bytes of red, green and blue, row by row.
    assert data.training_images[3, 1, 2, 5] == records[3, 1 + 1024 + 2 * 32 + 5]


def test_cifar10_for_python_is_not_unpickled(tmp_path: Path) -> None:
    class Dangerous:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (str(tmp_path / "executed"),)

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Dangerous()))
    with pytest.raises(
        WorkloadError, match=r"data_batch_1\.bin of the binary version.*pickled and not read"
    ):
        cifar10(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_files_that_are_not_cifar10_are_refused(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    with pytest.raises(WorkloadError, match="num_validation: expected less than 20, got 20"):
        cifar10(tmp_path, num_validation=20)
    (tmp_path / "data_batch_3.bin").write_bytes(b"\x0b" + bytes(RECORD - 1))
    with pytest.raises(WorkloadError, match=r"data_batch_3\.bin: expected labels.*, got 11"):
        cifar10(tmp_path)
    (tmp_path / "data_batch_2.bin").write_bytes(bytes(RECORD + 1))
    with pytest.raises(WorkloadError, match=r"data_batch_2\.bin: expected a multiple of 3073"):
        cifar10(tmp_path)
    (tmp_path / "data_batch_1.bin").unlink()
    with pytest.raises(WorkloadError, match=r"expected data_batch_1\.bin"):
        cifar10(tmp_path)


def test_penn_treebank_is_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "ptb.train.txt").write_text(" the <unk> sees N dogs \n dogs run \n")
    (tmp_path / "ptb.valid.txt").write_text(" dogs fly \n")
    data = penn_treebank(tmp_path)
    words = [data.vocabulary[number] for number in data.training]
    assert words == ["the", "<unk>", "sees", "N", "dogs", "<eos>", "dogs", "run", "<eos>"]
    assert [data.vocabulary[number] for number in data.validation] == ["dogs", "<unk>", "<eos>"]


@pytest.mark.parametrize(
    ("training", "validation", "message"),
    [
        (None, b"a", r"expected ptb\.train\.txt, found none"),
        (b"a b", None, r"expected ptb\.valid\.txt, found none"),
        (b"a b", b" \n", r"ptb\.valid\.txt: expected words, got an empty file"),
        (b"a b", b"a c", r"ptb\.valid\.txt: expected words of ptb\.train\.txt, got 'c'"),
        (b"\xff\xfe", b"a", r"ptb\.train\.txt: expected text in UTF-8"),
    ],
)
def test_text_that_is_none_is_refused(
    tmp_path: Path, training: bytes | None, validation: bytes | None, message: str
) -> None:
    for name, content in (("ptb.train.txt", training), ("ptb.valid.txt", validation)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(WorkloadError, match=message):
        penn_treebank(tmp_path)


def test_the_seed_decides_images_and_text() -> None:
    one, same, other = (
        shape_images(num_training=20, num_validation=10, seed=seed) for seed in (1, 1, 2)
    )
    assert one.digest == same.digest != other.digest
    assert grammar_text(seed=1).digest == grammar_text(seed=1).digest != grammar_text().digest


def test_shapes_can_be_told_apart_by_where_their_pixels_are() -> None:
    data = shape_images(num_training=400, num_validation=1, num_classes=10, size=16)
    assert set(data.training_labels.tolist()) == set(range(10))
    mean, deviation = data.moments()
    normal = (data.training_images - mean) / deviation
    assert np.abs(normal.mean(axis=(0, 2, 3))).max() < 1e-4
    assert normal.std(axis=(0, 2, 3)) == pytest.approx([1, 1, 1], abs=1e-4)
    # More of an image is one colour, the background, if its shape has less area.
    edges = np.abs(np.diff(data.training_images.astype(float), axis=3)).mean(axis=(1, 2, 3))
    of_class = [edges[data.training_labels == label].mean() for label in range(10)]
    assert max(of_class) > 1.3 * min(of_class)


def test_verbs_of_the_grammar_agree_with_their_nouns() -> None:
    data = grammar_text(num_sentences=300)
    text = " ".join(data.vocabulary[number] for number in data.training)
    singular = {"cat", "dog", "bird", "girl", "boy", "horse"}
    verbs = {"see", "hear", "like", "follow", "sleep", "run", "wait"}
    checked = 0
    for sentence in text.split(" <eos>"):
        nouns: list[str] = []  # whose verb has not come yet, the latest last
        relative = False
        for word in sentence.split():
            stem = word.removesuffix("s")
            if stem in singular:
                nouns.append(word)
            elif word == "who":
                relative = True
            elif stem in verbs:
                subject = nouns[-1] if relative else nouns[0]
                if relative or len(nouns) == 1:  # otherwise it is told by the depth alone
                    assert (subject in singular) == word.endswith("s"), sentence
                    checked += 1
                relative = False
    assert checked > 300


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_shares_out_of_range_are_refused(share: float) -> None:
    with pytest.raises(WorkloadError, match="validation_share: expected a number between 0 and 1"):
        grammar_text(validation_share=share)

"""Reading apart from decoding: in order, bounded, and gone when it is told to end."""

from __future__ import annotations

import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.images.index import ImageIndex, index_images
from loaderbench.loaders import read_ahead, threaded
from loaderbench.loaders.base import SPAN_FIELDS, LoaderContext
from loaderbench.loaders.order import BatchPlan
from loaderbench.loaders.read_ahead import ReadAhead


def context_for(images: ImageIndex, **changes: Any) -> LoaderContext:
    values: dict[str, Any] = {
        "images": images, "batch_size": 8, "workers": 2, "prefetch": 2, "decoder": "turbojpeg", "input_size": 32,
        "mode": "train", "output": "uint8", "seed": 0,
    }  # fmt: skip
    return LoaderContext(**{**values, **changes})


def plan_of(indices: list[int]) -> BatchPlan:
    return BatchPlan(np.array(indices, dtype=np.int64), np.zeros(len(indices), dtype=np.int64))


@pytest.fixture
def numbered(tmp_path: Path) -> ImageIndex:
    """40 files; file i holds i + 1 bytes. (They are no images: nothing here decodes them.)"""
    for number in range(40):
        (tmp_path / f"{number:02d}.jpg").write_bytes(bytes([number]) * (number + 1))
    return index_images(str(tmp_path))


@pytest.fixture
def slow_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each read takes 5 ms, odd ones 15: they end in another order than they begin. The list holds what was begun."""
    begun: list[str] = []
    read = read_ahead.read_image

    def slowly(context: LoaderContext, index: int) -> bytes:
        begun.append(Path(context.images.path(index)).name)
        time.sleep(0.005 + 0.01 * (len(begun) % 2))
        return read(context, index)

    monkeypatch.setattr(read_ahead, "read_image", slowly)
    return begun


def test_files_come_in_the_order_of_the_plan_whoever_read_them(numbered: ImageIndex, slow_reads: list[str]) -> None:
    reads = ReadAhead(context_for(numbered), 4, 6)
    reads.start()
    order = np.random.default_rng(0).permutation(40).tolist()
    batches = [reads.ask(plan_of(order[begin : begin + 8])) for begin in range(0, 40, 8)]
    taken: list[int] = []
    for batch in batches:
        while len(taken) < 8 * (batches.index(batch) + 1):
            some = batch.take(1 << 20, 3)
            assert some is not None
            assert 1 <= len(some) <= 3
            taken += [len(one) - 1 for one in some]
    reads.close()
    assert taken == order


def test_latency_is_hidden_by_the_number_of_readers(numbered: ImageIndex, slow_reads: list[str]) -> None:
    def seconds(num_threads: int) -> float:
        reads = ReadAhead(context_for(numbered), num_threads, 2 * num_threads)
        reads.start()
        begun = time.perf_counter()
        batch, num_taken = reads.ask(plan_of(list(range(40)))), 0
        while num_taken < 40:
            num_taken += len(batch.take(1 << 20, 40) or [])
        reads.close()
        return time.perf_counter() - begun

    assert seconds(1) > 3 * seconds(8)


def test_no_more_is_held_than_the_window_of_each_batch(numbered: ImageIndex, slow_reads: list[str]) -> None:
    reads = ReadAhead(context_for(numbered), 8, 3)
    reads.start()
    first, second = reads.ask(plan_of(list(range(20)))), reads.ask(plan_of(list(range(20, 40))))
    time.sleep(0.2)  # time to read all, were there no bound
    assert len(slow_reads) == 6
    assert reads.most_held == 6
    assert second.take(1 << 20, 2) is not None  # the second has a window of its own: it is not starved by the first
    time.sleep(0.1)
    assert len(slow_reads) == 8
    assert len(first.ready) == 3
    reads.close()


def test_cancelling_wakes_who_waits_and_tells_what_was_in_vain(numbered: ImageIndex, slow_reads: list[str]) -> None:
    reads = ReadAhead(context_for(numbered), 2, 4)
    reads.start()
    asked = reads.ask(plan_of(list(range(40))))
    time.sleep(0.1)
    assert len(asked.take(1 << 20, 40) or []) == 4
    time.sleep(0.1)
    later = reads.ask(plan_of([]))
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(later.take(1, 1)))
    waiting.start()
    assert reads.cancel() == 4 * 4096  # files 4 to 7: a page each
    waiting.join(1)
    assert got == [None]
    assert asked.take(1, 1) is None
    num_begun = len(slow_reads)
    time.sleep(0.1)
    assert len(slow_reads) == num_begun
    again = reads.ask(plan_of([5]))
    assert again.take(1, 1) == [bytes([5]) * 6]
    reads.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read-")]


def test_a_file_that_vanished_fails_where_its_turn_comes(numbered: ImageIndex) -> None:
    Path(numbered.path(3)).unlink()
    reads = ReadAhead(context_for(numbered), 2, 10)
    reads.start()
    batch = reads.ask(plan_of([1, 2, 3, 4]))
    time.sleep(0.1)
    assert [len(one) for one in batch.take(1 << 20, 4) or []] == [2, 3]
    with pytest.raises(CaseFailed, match="vanished"):
        batch.take(1 << 20, 4)
    reads.close()


@pytest.mark.parametrize("output", ["uint8", "float32"])
@pytest.mark.parametrize("decoder", ["turbojpeg", "libjpeg"])
def test_the_loader_makes_the_same_batches_with_and_without(image_tree: Path, decoder: str, output: str) -> None:
    streams: list[list[tuple[list[int], torch.Tensor, int]]] = []
    for io_threads in (0, 3):
        context = context_for(index_images(str(image_tree)), decoder=decoder, output=output)
        loader = threaded.build(threaded.Options(io_threads), context)
        found = []
        for batch in loader.batches(0, 2):
            assert batch.indices is not None
            found.append((batch.indices.tolist(), batch.inputs.clone(), batch.encoded_bytes))
        loader.close()
        streams.append(found)
    assert len(streams[0]) == 6
    for (indices, inputs, num_bytes), other in zip(*streams, strict=True):
        assert (indices, num_bytes) == (other[0], other[2])
        assert torch.equal(inputs, other[1])


@pytest.mark.parametrize("decoder", ["turbojpeg", "libjpeg"])
def test_broken_files_are_replaced_as_without(own_tree: Path, decoder: str) -> None:
    paths = sorted(own_tree.rglob("*.jpg"))
    for number in (3, 4, 20):
        paths[number].write_bytes(paths[number].read_bytes()[:300])
    found: list[NDArray[np.int64]] = []
    for io_threads in (0, 4):
        context = context_for(index_images(str(own_tree)), decoder=decoder, max_failure_fraction=0.5)
        loader = threaded.build(threaded.Options(io_threads), context)
        batches = list(loader.batches(0, 1))
        assert sorted(index for batch in batches for index, _ in batch.failures if index in (3, 4, 20)) == (
            sorted(index for batch in batches for index, _ in batch.failures)
        )
        found.append(np.concatenate([batch.indices for batch in batches if batch.indices is not None]))
        loader.close()
    assert found[0].tolist() == found[1].tolist()
    assert not {3, 4, 20} & set(found[0].tolist())


def test_every_byte_read_is_accounted_for_when_a_stream_is_closed(image_tree: Path) -> None:
    images = index_images(str(image_tree))
    loader = threaded.build(threaded.Options(4), context_for(images))
    stream = loader.batches()
    delivered = list(islice(stream, 2))
    time.sleep(0.3)
    stream.close()  # type: ignore[attr-defined]
    column = SPAN_FIELDS.index("page_bytes")
    drained = loader.drained_spans()
    loader.close()
    assert all(batch.spans is not None for batch in delivered)
    # 2 batches were delivered, and 4 stood in the queue or were being read for: two epochs of 3 batches.
    spans = [batch.spans for batch in delivered if batch.spans is not None]
    assert sum(row[column] for row in [*spans, *drained]) == 2 * (-(-images.sizes // 4096) * 4096).sum()


def test_an_impossible_number_of_readers_is_refused(image_tree: Path) -> None:
    for number in (-1, 10_000):
        with pytest.raises(ConfigError, match="--io-threads must be from 0 to 256"):
            threaded.build(threaded.Options(number), context_for(index_images(str(image_tree))))

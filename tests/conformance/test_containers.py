"""Loaders of converted images: broken ones, the page cache, workers that die."""

from __future__ import annotations

import os
import signal
import sys
import tarfile
from pathlib import Path

import psutil
import pytest
import torch
from loader_cases import FORMATS, SHARD_LOADERS, build, context_for, copied, indices_of, need, open_loader, take
from test_loaders import spoil

from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.images.cache_state import residency
from loaderbench.loaders.base import SPAN_FIELDS


@pytest.fixture(autouse=True)
def _need_package(name: str) -> None:
    need(name)


@pytest.mark.parametrize("member", [0, 2])
@pytest.mark.parametrize("name", ["webdataset"])
def test_a_damaged_container_is_named(name: str, member: int, own_tree: Path) -> None:
    context = context_for(name, own_tree)
    assert context.shards is not None
    path = Path(context.shards.files.path(2))
    content = path.read_bytes()
    with tarfile.open(path) as tar:
        header = tar.getmembers()[member].offset
    path.write_bytes(content[:header] + b"x" * 512 + content[header + 512 :])
    with open_loader(name, own_tree) as loader, pytest.raises(CaseFailed, match=r"damaged .*convert") as caught:
        list(loader.batches(0, 1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["ffcv"])
def test_the_order_goes_on_behind_an_iterators_end(
    name: str, image_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_loader(name, image_tree, batch_size=5) as loader:
        expected = [batch.indices.tolist() for batch in take(loader, 12) if batch.indices is not None]
        monkeypatch.setattr(sys.modules["loaderbench.loaders.ffcv"], "ITERATOR_BATCHES", 3)
        found = [batch.indices.tolist() for batch in take(loader, 12) if batch.indices is not None]
    assert found == expected
    assert len(found) == 12


@pytest.mark.parametrize("name", FORMATS)
def test_broken_images_are_left_out_and_named(name: str, own_tree: Path) -> None:
    broken = spoil(own_tree)
    with open_loader(name, own_tree, max_failure_fraction=0.5) as loader:
        batches = [copied(batch) for batch in loader.batches(0, 1)]
        images = context_for(name, own_tree).images
    failures = [failure for batch in batches for failure in batch.failures]
    assert sorted(images.path(index)[-11:] for index, _ in failures) == [str(path)[-11:] for path in broken]
    assert all(reason for _, reason in failures)
    assert sorted(indices_of(batches)) == sorted(set(range(24)) - {index for index, _ in failures})
    skipped = [index for index, _ in failures] if name == "ffcv" else []  # which are not in its container
    assert sum(batch.encoded_bytes for batch in batches) == images.sizes.sum() - images.sizes[skipped].sum()


@pytest.mark.parametrize("name", SHARD_LOADERS)
def test_spans_tell_the_stages_and_the_bytes_read(name: str, image_tree: Path) -> None:
    with open_loader(name, image_tree, input_size=224) as loader:
        stream = loader.batches()
        spans = [next(stream).spans for _ in range(8)]
        stream.close()  # type: ignore[attr-defined]
    for span in spans:
        assert span is not None
        row = dict(zip(SPAN_FIELDS, span.tolist(), strict=True))
        stages = [row[stage] for stage in ("read_ns", "decode_ns", "augment_ns", "collate_ns")]
        assert min(stages[1:]) > 0
        assert sum(stages) <= row["ready_ns"] - row["start_ns"]


# The news of its death may come where torch has just opened a file, to see whether it still can.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", SHARD_LOADERS)
def test_a_killed_worker_fails_the_case(name: str, image_tree: Path) -> None:
    before = psutil.Process().children()  # multiprocessing's own, of other tests
    with open_loader(name, image_tree) as loader:
        stream = loader.batches()
        next(stream)
        victim = loader.worker_pids()[1]  # type: ignore[attr-defined]
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(CaseFailed, match=r"killed by signal 9"):
            for _ in range(1000):
                next(stream)
        assert set(psutil.Process().children()) <= set(before)


@pytest.mark.parametrize("name", SHARD_LOADERS)
def test_too_few_containers_are_refused(name: str, image_tree: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 4 containers, too few for --workers 5"):
        build(name, context_for(name, image_tree, workers=5))
    with pytest.raises(ConfigError, match="--input-size full"):
        build(name, context_for(name, image_tree, input_size=None))


@pytest.mark.parametrize("name", ["webdataset"])
def test_shards_leave_the_page_cache_behind_the_reader(name: str, own_tree: Path) -> None:
    context = context_for(name, own_tree, evict_after_read=True)
    assert context.shards is not None
    os.sync()
    loader = build(name, context)
    batches = list(loader.batches(0, 1))
    loader.close()
    after = residency(context.shards.files.paths())
    if after.fraction is None:
        pytest.skip(f"residency of the test's folder cannot be seen: {after.reason}")
    assert after.fraction < 0.1
    pages = sum(int(batch.spans[SPAN_FIELDS.index("page_bytes")]) for batch in batches if batch.spans is not None)
    assert pages <= context.shards.files.sizes.sum()


@pytest.mark.parametrize("name", SHARD_LOADERS)
def test_a_worker_that_begins_after_its_stream_was_closed_ends_at_once(name: str, image_tree: Path) -> None:
    loader = build(name, context_for(name, image_tree))
    dataset = loader._dataset  # type: ignore[attr-defined]
    dataset.span[:] = torch.tensor([0, -1])
    dataset.generation += 2  # opened and closed before the worker came to look
    assert list(dataset) == []
    dataset.generation += 1
    assert next(iter(dataset)).inputs is not None
    loader.close()

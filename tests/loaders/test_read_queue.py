"""How long reading waited for a processor, of files in memory: what is no processor time there, is that wait."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from loaderbench.decoders import libjpeg
from loaderbench.errors import UnavailableError
from loaderbench.images.index import index_images
from loaderbench.loaders import samples as reading
from loaderbench.loaders.base import SPAN_FIELDS, LoaderContext
from loaderbench.loaders.order import BatchPlan
from loaderbench.loaders.torch_dataset import BatchDataset, Request
from loaderbench.loaders.torchvision_samples import TimedFile
from loaderbench.samplers.process_io import runqueue_off_reason
from loaderbench.samplers.run_queue import RunQueue

JUNK_BYTES, NUM = 24 << 20, 9
TIMES = 10
"""A reading takes no longer than a time slice, and waits in one of some: over so many it is half of the time."""


@pytest.fixture
def long_files(own_tree: Path) -> Path:
    """JPEGs with much behind their end, so that reading one takes milliseconds of processor time."""
    files = sorted(own_tree.rglob("*.jpg"))
    for path in files[NUM:]:
        path.unlink()
    for path in files[:NUM]:
        path.write_bytes(path.read_bytes() + bytes(JUNK_BYTES) + b"\xff\xd9")
        path.read_bytes()
    return own_tree


@pytest.fixture
def beside_another() -> Iterator[None]:
    """This thread shares one processor with a busy process."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    busy = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    with subprocess.Popen([sys.executable, "-c", busy]) as other:
        try:
            time.sleep(0.3)
            yield
        finally:
            other.kill()
            os.sched_setaffinity(0, before)


@pytest.mark.alone
@pytest.mark.skipif(runqueue_off_reason() is not None, reason="this kernel does not count run-queue delay")
@pytest.mark.parametrize("decoder", ["pillow", "libjpeg"])
def test_a_span_tells_how_long_its_reads_waited_for_a_processor(
    decoder: str, long_files: Path, beside_another: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if decoder == "libjpeg":
        try:
            libjpeg.library()
        except UnavailableError as error:
            pytest.skip(str(error))
    context = LoaderContext(
        images=index_images(str(long_files)), batch_size=NUM, workers=0, prefetch=2, decoder=decoder, input_size=56,
        mode="infer", output="uint8", seed=5,
    )  # fmt: skip
    monkeypatch.setattr(reading, "CPU_TIMED_EACH", 1)
    dataset = BatchDataset(context, "pillow", "direct")
    plan = BatchPlan(np.arange(NUM), np.zeros(NUM, dtype=np.int64))
    spans = [dataset.__getitems__(Request(0, plan)).spans for _ in range(TIMES)]
    span = dict(zip(SPAN_FIELDS, np.sum([one for one in spans if one is not None], axis=0).tolist(), strict=True))

    assert 0 < span["read_queue_ns"] <= min(span["runqueue_ns"], span["read_ns"])
    # Reading blocks on nothing here. The first file's wait alone is not asked for; within C one file in eight tells the
    # processor time of all, which are alike.
    assert span["read_queue_ns"] == pytest.approx(span["read_ns"] - span["read_cpu_ns"], rel=0.5)
    assert span["read_queue_ns"] > 0.05 * span["read_ns"]


@pytest.mark.alone
@pytest.mark.skipif(runqueue_off_reason() is not None, reason="this kernel does not count run-queue delay")
def test_so_does_a_file_that_is_read_while_it_is_decoded(long_files: Path, beside_another: None) -> None:
    queued_ns = waited_ns = 0
    for path in TIMES * sorted(long_files.rglob("*.jpg")):
        with TimedFile(str(path), cpu=True, queue=RunQueue()) as file:
            assert file.readall()
        queued_ns += file.queue_ns
        waited_ns += file.opened_ns - file.begun_ns + file.read_ns - file.cpu_ns
    assert queued_ns == pytest.approx(waited_ns, rel=0.1)
    assert queued_ns > 0

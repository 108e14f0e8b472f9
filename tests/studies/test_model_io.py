"""`model io`: copies alone, on the CPU, by a profile, and with a device that lacks memory."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import call
from numpy.typing import NDArray
from rich.console import Console

from loaderbench.cases.case import Step
from loaderbench.recording.facts import Failure
from loaderbench.recording.model_io import CopyFigures, IoFacts, IoRow, ModelIo
from loaderbench.recording.record import Estimate
from loaderbench.reporting.studies import print_findings
from loaderbench.running.jobs import copies
from loaderbench.running.jobs.table import CopiesRequest
from loaderbench.studies import model_io as study_module
from tests.studies.here import Here
from tests.studies.kept import assert_kept

MEGA = 1 << 20


def test_copies_do_not_come_back_to_memory_that_a_cache_holds() -> None:
    """The pieces of a pool follow one another, and the first comes again when no whole one is left."""
    memory = torch.zeros(1000, dtype=torch.uint8)
    pool, piece = copies.Pool(memory), torch.empty((10, 10), dtype=torch.float32)
    begins = [pool.next(piece).data_ptr() - memory.data_ptr() for _ in range(5)]
    assert begins == [0, 448, 0, 448, 0]  # 400 bytes each, in lines of 64
    assert pool.next(piece).shape == (10, 10) and pool.next(piece).dtype == torch.float32


def test_the_memory_of_copies_is_twice_the_cache_or_the_batch_where_that_is_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies, "largest_cache_bytes", lambda: MEGA)
    asked = list[tuple[int, torch.Size]]()

    class Seen(copies.Pool):
        def __init__(self, memory: torch.Tensor) -> None:
            super().__init__(memory)
            asked.append((len(memory), memory.shape))

    monkeypatch.setattr(copies, "Pool", Seen)
    for batch, num_bytes in ((4, 2 * MEGA), (1000, 1000 * 28 * 28 * 4)):
        copies._ready.cache_clear()
        before = torch.get_num_threads()
        step = Step("lenet", "infer", "fp32", "cpu", batch, 28, channels=1)
        copies.time_copies(CopiesRequest(step, 0, batch, 0.0), lambda message: None)
        assert [num for num, _ in asked[-2:]] == [num_bytes, num_bytes]  # whence and where to
        assert torch.get_num_threads() == before
    copies._ready.cache_clear()


def test_one_thread_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "largest_cache_bytes", lambda: MEGA)
    copies._ready.cache_clear()
    threads, before = set[int](), torch.get_num_threads()
    times = copies._times

    def seen(*asked: Any) -> NDArray[np.float64]:
        threads.add(torch.get_num_threads())
        return times(*asked)

    monkeypatch.setattr(copies, "_times", seen)
    torch.set_num_threads(2)
    try:
        step = Step("lenet", "infer", "fp32", "cpu", 4, 28, channels=1)
        copies.time_copies(CopiesRequest(step, 0, 4, 0.0), lambda message: None)
        assert threads == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
        copies._ready.cache_clear()


def test_the_table_is_whole_at_80_columns_with_both_ends_of_an_interval() -> None:
    uneven = Estimate(103e-6, 98e-6, 7.8e-3, "s", 20, "median")
    way = CopyFigures(77_070_336, uneven, Estimate(5.9e6, 5e6, 6e6, "bytes/s", 20, "median"))
    row = IoRow(128, way, way, None)
    result = ModelIo("resnet50", "fp32", "a device", 224, 3, True, None, (row,), False)
    stream = io.StringIO()
    print_findings(None, result, Console(file=stream, width=80, color_system=None))
    text = stream.getvalue()
    assert "…" not in text and "±" not in text and text.count("(0.0980–7.80)") == 2
    assert len([word for word in text.split() if word == "MB/s"]) == 2


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Here]]:
    """Jobs in this process."""

    class Own(Here):
        pass

    copies._ready.cache_clear()
    monkeypatch.setattr(copies, "largest_cache_bytes", lambda: MEGA)
    monkeypatch.setattr(study_module, "Child", Own)
    monkeypatch.setattr(study_module, "SECONDS", 0.01)
    yield Own


def test_copies_on_the_cpu_have_their_bytes_and_say_that_they_stay_in_ram(tmp_path: Path, here: type[Here]) -> None:
    shared = ("--device", "cpu", "--results", tmp_path)
    done = call("model", "io", "lenet", "--max-batch", "20", "--inc", "8", *shared, "--json", "-")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert [one["batch_size"] for one in told["batches"]] == [1, 9, 17, 20] and told["same_memory"]
    for one in told["batches"]:
        # lenet takes 1×28×28 values of 4 bytes and gives 10
        assert one["data_in"]["num_bytes"] == one["batch_size"] * 28 * 28 * 4
        assert one["data_out"]["num_bytes"] == one["batch_size"] * 10 * 4
        for way in (one["data_in"], one["data_out"]):
            assert 0 < way["s"]["low"] <= way["s"]["value"] <= way["s"]["high"] and way["s"]["n"] >= 20
            assert way["bytes_per_s"]["value"] == pytest.approx(way["num_bytes"] / way["s"]["value"], rel=0.2)
    facts = assert_kept(tmp_path, "model_io", num_runs=0).facts
    assert isinstance(facts, IoFacts) and len(facts.batches) == facts.num_batches == 4
    assert "same RAM" in " ".join(call("show", "2", "--results", tmp_path).out.split())


def test_an_emulated_device_has_the_rate_of_its_profile(tmp_path: Path) -> None:
    shared = ("--device", "emulated", "--precision", "amp-bf16", "--results", tmp_path)
    done = call(
        "model", "io", "resnet50", "--batch-size", "4", "--max-batch", "8", "--inc", "4", *shared, "--json", "-"
    )
    assert done.code == 0, done.err
    told = json.loads(done.out)
    rate = told["known"]["bytes_per_s"]
    first = told["batches"][0]["data_in"]
    assert first["s"]["value"] == pytest.approx(4 * 3 * 224 * 224 * 4 / rate) and first["s"]["low"] is None
    assert "Not measured: an emulated device" in " ".join(call("show", "2", "--results", tmp_path).out.split())


def test_a_batch_that_does_not_fit_ends_it_and_is_told(tmp_path: Path, here: type[Here]) -> None:
    here.failing = staticmethod(
        lambda request: Failure("OutOfMemory", "too small") if request.batch_size > 9 else None  # type: ignore[attr-defined]
    )
    done = call("model", "io", "lenet", "--max-batch", "30", "--device", "cpu", "--results", tmp_path, "--json", "-")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["batches"]
    assert [one["batch_size"] for one in rows] == [1, 9, 17] and rows[-1]["why"] == "too small"
    assert rows[-1]["data_in"]["s"] is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--batch-size", "0"), "--batch-size must be at least 1"), (("--inc", "0"), "--inc must be at least 1"),
        (("--batch-size", "9", "--max-batch", "3"), "--max-batch 3 is below --batch-size 9"),
        (("--device", "tpu"), "unknown device 'tpu'"),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused_in_one_line(flags: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = call("model", "io", "lenet", "--results", tmp_path, *flags)
    assert (done.code, done.out, len(done.lines)) == (2, "", 1) and says in done.err

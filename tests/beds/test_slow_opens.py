"""A run keeps its time on storage whose opens are slow, or says beforehand that it cannot."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from loaderbench.analysis.decided import look
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.recording.facts import Recording
from loaderbench.recording.progress import Message, Notice, SoFar
from loaderbench.running import deadline
from loaderbench.running.jobs.measure import measure
from loaderbench.running.jobs.table import MEASURE, MeasureRequest
from loaderbench.running.supervisor import Child
from loaderbench.selftest.slow_fuse import check_available, slow_fuse
from tests.made import make_case

pytestmark = [pytest.mark.bed, pytest.mark.slow, pytest.mark.alone]

DURATION_S, OPEN_S = 6.0, 0.007
NUM_IMAGES = 1500


@pytest.fixture(autouse=True)
def _available(require_bed: Any) -> None:
    require_bed(check_available)


@pytest.fixture
def many(small_set: Path, tmp_path: Path) -> Path:
    """As many images that opening them one after the other takes longer than the whole run may."""
    assert NUM_IMAGES * OPEN_S > DURATION_S + 4
    sources = sorted((small_set / "96").rglob("*.jpg"))
    for number in range(NUM_IMAGES):
        target = tmp_path / "many" / f"class{number % 3}" / f"{number:04}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(sources[number % len(sources)], target)
    return tmp_path / "many"


def cold(path: str, **fields: Any) -> Case:
    return make_case(
        dataset=path, dataset_name="slow", resolution=None, loader="threaded", workers=2, prefetch=2, batch_size=16,
        input_size=64, device="emulated:h200-resnet50-train-fp32", cache="cold", duration_s=DURATION_S, **fields,
    )  # fmt: skip


def timed(case: Case) -> tuple[Recording, list[Message], float]:
    told: list[Message] = []
    begun = time.perf_counter()
    recording = measure(MeasureRequest(case), told.append)
    return recording, told, time.perf_counter() - begun


def test_slow_opens_do_not_take_the_run_beyond_its_time(many: Path) -> None:
    with slow_fuse(many, open_latency_s=OPEN_S) as bed:
        recording, told, took_s = timed(cold(bed.path))
    # everything counts: listing, looking at the page cache, copying, all windows, both probes
    assert took_s <= DURATION_S + deadline.OVERTIME_S
    assert not [one for one in told if isinstance(one, Notice)]
    facts = recording.facts
    # a sample is told as one, and what was measured is enough to go by
    assert facts.cache.num_surveyed is not None and 100 <= facts.cache.num_surveyed < NUM_IMAGES
    assert {Arm.DEVICE, Arm.RAM, Arm.REAL, Arm.FETCH} <= set(facts.rounds.arms)
    assert facts.overtime_s == 0 and facts.cache.cold_reads
    assert all(one.storage is not None and one.storage.residency_before == 0 for one in recording.of(Arm.REAL))


def test_a_run_that_cannot_keep_its_time_says_so_before_its_windows(many: Path) -> None:
    # given 0.02 MB/s, at which a batch of 16 files takes longer than all of the time
    with slow_fuse(many, bytes_per_s=0.02e6) as bed:
        recording, told, took_s = timed(cold(bed.path, arms=(Arm.DEVICE, Arm.RAM, Arm.REAL)))
    notices = [number for number, one in enumerate(told) if isinstance(one, Notice)]
    windows = [number for number, one in enumerate(told) if type(one).__name__ == "SegmentDone"]
    assert len(notices) == 1 and notices[0] < windows[0]
    notice = told[notices[0]]
    assert isinstance(notice, Notice) and "beyond --duration 6" in notice.text
    extended_s = recording.facts.overtime_s
    assert extended_s is not None and extended_s > 0
    # then it takes about as long as it said, no shorter and not much longer
    assert took_s <= 1.3 * (DURATION_S + deadline.OVERTIME_S + extended_s)


FIRST_S, USUAL_IMPORTS_S = 8.0, 2.5


@pytest.mark.parametrize("state", ["cold", "as-is"])
def test_a_first_rough_verdict_is_there_within_eight_seconds(many: Path, tmp_path: Path, state: str) -> None:
    """As-is, nothing is in memory, so that a long window comes first."""
    told: list[SoFar] = []
    with slow_fuse(many, open_latency_s=0.02) as bed, Child(tmp_path / "log") as child:
        case = cold(bed.path).changed(cache=state, duration_s=20.0, workers=2)
        request = MeasureRequest(case, started_ns=time.perf_counter_ns(), judge=look)
        recording = child.ask(MEASURE, request, lambda one: told.append(one) if isinstance(one, SoFar) else None)
    slower_s = max(0.0, recording.facts.startup.phases_s["imports"] - USUAL_IMPORTS_S)
    known = [one for one in told if one.verdict.bottleneck != "undetermined"]
    assert told[0].signs and told[0].since_start_s <= max(FIRST_S, slower_s + FIRST_S - 1.0)
    assert known[0].verdict.bottleneck == "storage"
    assert known[0].since_start_s <= FIRST_S + slower_s
    # and in the end one by the rules, behind which there are no rough ones
    by_rules = [not one.signs for one in told]
    assert by_rules[-1] and by_rules == sorted(by_rules)

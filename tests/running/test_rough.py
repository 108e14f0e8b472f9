"""A first rough verdict, by signs that are made up; and one of a loader whose images are known to be slow to decode."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loaderbench.cases.arms import Arm
from loaderbench.recording.progress import Message, Phase, SegmentDone, SoFar
from loaderbench.recording.record import Verdict
from loaderbench.running import rough
from loaderbench.running.alive import Pulse
from loaderbench.running.jobs.measure import measure
from loaderbench.running.jobs.table import MeasureRequest
from loaderbench.running.rough import FROM_S, Parts, Rough, RoughVerdicts, Signs, by_parts, by_signs
from tests.made import make_case
from tests.thinned import thinned

S, MS = 1_000_000_000, 1_000_000
STARVED = Signs(2.0, 10, waited_s=1.9, on_device_s=0.0, work_s=(0.2, 0.2), lanes=2)


def causes(rough: Rough) -> tuple[str, ...]:
    return rough.verdict.joint or (rough.verdict.bottleneck,)


@pytest.mark.parametrize(
    ("changes", "device_s", "expected"),
    [
        ({}, 0.01, ("storage",)),
        ({"work_s": (3.9, 3.9)}, 0.01, ("prep",)),
        ({"work_s": (3.9, 3.9), "queued_part": 0.6}, 0.01, ("prep", "contention")),
        ({"work_s": (1.8, 1.8)}, 0.01, ("storage", "prep")),
        ({"work_s": (0.2, 3.9)}, 0.01, ("storage", "prep")),  # threads that may be the loader's, or the device's
        ({"work_s": None}, 0.01, ("storage", "prep")),
        ({"waited_s": 0.1}, 0.19, ("compute",)),
        ({"waited_s": 0.1}, None, ("undetermined",)),  # nobody has seen the device by itself
        ({"waited_s": 0.35}, None, ("undetermined",)),
        # the host is ahead of its device, and the device does not wait
        ({}, 0.19, ("compute",)),
        ({"waited_s": 1.5, "on_device_s": 0.4}, None, ("undetermined",)),
        # no batch yet: workers that wait have started, workers that work may be starting
        ({"num_steps": 0, "waited_s": 2.0}, 0.01, ("storage",)),
        ({"num_steps": 0, "waited_s": 2.0, "work_s": (3.9, 3.9)}, 0.01, ("undetermined",)),
    ],
)
def test_signs_of_a_window(changes: dict[str, Any], device_s: float | None, expected: tuple[str, ...]) -> None:
    assert causes(by_signs(dataclasses.replace(STARVED, **changes), device_s)) == expected


def test_workers_that_do_not_prepare_on_processors_tell_nothing_by_resting() -> None:
    assert causes(by_signs(STARVED, 0.01, by_processors=False)) == ("storage", "prep")
    assert by_signs(STARVED, 0.01, reads_files=False).verdict.bottleneck == "prep"


def test_the_signs_are_told_in_words() -> None:
    assert (
        by_signs(STARVED, 0.01).signs == "waits for batches 95% of 2.0 s, 10 steps; workers need a CPU 5% of the time"
    )
    none = dataclasses.replace(STARVED, num_steps=0, waited_s=2.0, asked_bytes=53_000)
    assert by_signs(none, None).signs.startswith("no batch for 2.0 s, 0.053 MB read; ")


@pytest.mark.parametrize(
    ("storage_s", "prep_s", "expected"),
    [
        (0.16, 0.01, ("storage",)),
        (0.16, 0.10, ("storage", "prep")),
        (0.01, 0.16, ("storage", "prep")),  # what the storage takes is a least time
        (0.005, 0.005, ("undetermined",)),
    ],
)
def test_parts_of_a_batch_before_it_is_run(storage_s: float, prep_s: float, expected: tuple[str, ...]) -> None:
    assert causes(by_parts(Parts(storage_s, prep_s), device_s=0.02)) == expected


class Loop:
    """Stands in for a step loop."""

    def __init__(self) -> None:
        self.host: list[tuple[int, ...]] = []
        self.collective: Any = None


@dataclasses.dataclass
class Opened:
    known: Parts | None = None
    computes_on_processors: bool = False
    reads_files: bool = True
    prepares_on_processors: bool = True

    def parts(self) -> Parts | None:
        return self.known


class Process:
    """A measuring process on a clock of the test's: the loop's thread, and a worker."""

    def __init__(self, **fields: Any) -> None:
        self.now, self.worker_ns, self.consumer_ns, self.queued = 0, 0, 1, 0.0
        self.read = 10**9
        self.told: list[Message] = []
        self.pulse = Pulse(lambda: self.now)
        case = make_case(**{"workers": 1, **fields})
        self.rough = RoughVerdicts(
            case, self.told.append, self.pulse, lambda: self.now, self.threads, lambda: self.read
        )
        self.rough.opened = Opened()
        self.loop: Any = Loop()

    def threads(self) -> dict[tuple[int, int], tuple[int, int]]:
        own = os.getpid(), threading.get_native_id()
        queued_ns = round(self.queued * self.worker_ns)
        return {own: (self.consumer_ns, 0), (own[0] + 1, 1): (self.worker_ns - queued_ns, queued_ns)}

    def step(self, wait_ms: int, *, work_ms: int) -> None:
        """One more, behind such a wait, in which the worker worked."""
        called, self.now = self.now, self.now + wait_ms * MS
        self.worker_ns += work_ms * MS
        returned, self.now = self.now, self.now + 10 * MS
        self.loop.host.append((called, returned, self.now, self.now, 16, 1600))

    def run(self, *, work_ms: int) -> None:
        """Two seconds of `real`."""
        self.pulse.begins(self.loop, "real")
        for _ in range(20):
            self.step(90, work_ms=work_ms)
            self.rough.look(0)

    @property
    def causes(self) -> list[str]:
        return [one.verdict.bottleneck for one in self.told if isinstance(one, SoFar)]


def test_nothing_rough_is_told_before_its_time_nor_behind_a_verdict_by_the_rules() -> None:
    process = Process()
    process.run(work_ms=5)
    assert process.now < FROM_S * S and process.causes == []
    process.now += 5 * S
    process.rough.look(0)
    assert process.causes == ["storage"]
    process.rough.hear(SoFar(Verdict("prep"), 7.5))
    process.run(work_ms=85)
    assert process.causes == ["storage", "prep"]


def test_workers_that_wait_for_processors_are_held_up_or_prepare() -> None:
    process = Process()
    process.now, process.queued = 5 * S, 0.5
    process.run(work_ms=85)
    assert set(process.causes) == {"mixed"}
    told = [one for one in process.told if isinstance(one, SoFar)][-1]
    assert told.verdict.joint == ("prep", "contention") and "wait for it 50%" in (told.signs or "")


@pytest.mark.parametrize(("work_ms", "cause"), [(5, "storage"), (85, "prep")])
def test_what_a_window_says_stays_until_it_says_something_else(work_ms: int, cause: str) -> None:
    process = Process()
    process.now = 5 * S
    process.run(work_ms=work_ms)
    process.pulse.ends()
    process.rough.hear(Phase("copying images into memory"))
    process.now += 3 * S
    process.rough.look(0)
    assert set(process.causes) == {cause}


def test_a_loader_without_workers_works_in_the_loop() -> None:
    process = Process(workers=0)
    process.now = 5 * S
    process.pulse.begins(process.loop, "real")
    for _ in range(20):
        process.consumer_ns += 95 * MS
        process.step(90, work_ms=0)
        process.rough.look(0)
    assert set(process.causes) == {"prep"}


def test_a_batch_that_does_not_come_is_told() -> None:
    process = Process()
    process.now = 5 * S
    process.pulse.begins(process.loop, "real")
    for _ in range(7):
        process.rough.look(0)
        process.now += S // 2
    process.rough.look(0)
    (*_, last) = process.told
    assert isinstance(last, SoFar) and last.verdict.bottleneck == "storage"
    assert last.signs.startswith("no batch for 3.5 s")


def test_before_the_window_it_is_said_what_is_done_and_what_the_parts_say() -> None:
    process = Process()
    process.rough.opened, process.now = None, 7 * S
    process.rough.hear(Phase("listing the images: 1,200,000 so far"))
    process.rough.look(0)
    process.rough.look(0)  # nothing new
    process.now, process.read = 11 * S, process.read + 3_600_000
    process.rough.hear(Phase("copying images into memory: 1 of 60"))
    process.rough.look(0)
    process.rough.opened = Opened(Parts(0.16, 0.01))
    process.rough.hear(SegmentDone(Arm.DEVICE, 0, 20, 320, 0, 0.01))
    process.rough.look(0)
    said = [(one.verdict.bottleneck, one.signs) for one in process.told if isinstance(one, SoFar)]
    assert said == [
        ("undetermined", "unknown so far: listing the images: 1,200,000 so far"),
        ("undetermined", "unknown so far: copying images into memory: 1 of 60, 3.6 MB read in 4 s"),
        ("storage", "a batch takes 0.16 s to read, 0.01 s to prepare, 0.01 s to step"),
    ]


@pytest.mark.parametrize(
    ("loader", "workers"),
    thinned([("multiprocess", 2), ("threaded", 2), ("serial", 0)], 3),
)
def test_images_in_memory_that_are_slow_to_decode(
    loader: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image of four megapixels of noise takes a processor a hundred milliseconds or so, a batch on this device 8."""
    noise = np.random.default_rng(0).integers(0, 255, (2000, 2000, 3), dtype=np.uint8)
    for number in range(24):
        path = tmp_path / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noise).save(path, quality=90)
    case = make_case(
        dataset=str(tmp_path), dataset_name="noise", resolution=None, loader=loader, workers=workers, prefetch=2,
        batch_size=8, input_size=64, device="emulated:h200-resnet50-train-fp32", cache="warm", duration_s=5.0,
        arms=(Arm.DEVICE, Arm.REAL), steps=12,
    )  # fmt: skip
    monkeypatch.setattr(rough, "QUEUED", 1.0)  # others may have the processors
    told: list[Message] = []
    started_ns = time.perf_counter_ns() - int(FROM_S * S)
    measure(MeasureRequest(case, started_ns=started_ns, judge=lambda run: None), told.append)
    found = [one for one in told if isinstance(one, SoFar)]
    assert all(one.signs for one in found)
    assert {one.verdict.bottleneck for one in found} - {"undetermined"} == {"prep"}

"""Steps on a GPU, by a stand-in for torch.cuda whose work is done on a timeline of its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loaderbench.analysis.record import Judged
from loaderbench.cases.arms import Arm
from loaderbench.devices import brackets, step_events
from loaderbench.devices.step_events import NEVER, StepEvents
from loaderbench.recording.facts import STEP
from loaderbench.studies import watched_run
from loaderbench.studies.watched_run import run_of
from loaderbench.watching import doses, iterator
from loaderbench.watching import watcher as stamps
from loaderbench.watching.iterator import MOST_REST_S
from loaderbench.watching.seen import Source
from loaderbench.watching.watcher import Watcher
from tests.watching.test_bursts import Orders, RestingLoader
from tests.watching.test_doses import Clock, NoCpuClock, judged_of

RUN_AHEAD_NS = 40_000_000
"""The host waits where the device has more work than this before it."""


class Stream:
    def __init__(self) -> None:
        self.free_ns = 0


class Gpu:
    """What StepEvents asks of torch.cuda, of a device whose clock is another one and goes 30 millionths faster."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.stream = clock, Stream()
        self.hangs = self.captures = False
        self.error: str | None = None
        self.cycles_per_s = 1.5e9
        self.num_events = 0

    def Stream(self) -> Stream:  # noqa: N802 - as torch.cuda calls it
        return Stream()

    def Event(self, *, enable_timing: bool) -> "Event":  # noqa: N802
        assert enable_timing
        self.num_events += 1
        return Event(self)

    def is_current_stream_capturing(self) -> bool:
        return self.captures

    def _sleep(self, cycles: int) -> None:
        self.work(round(cycles / self.cycles_per_s * 1e9))

    def work(self, ns: int) -> None:
        """Enqueue it."""
        self.stream.free_ns = max(self.clock.now, self.stream.free_ns) + ns
        self.clock.now = max(self.clock.now, self.stream.free_ns - RUN_AHEAD_NS)

    def synchronize(self) -> None:
        """As `loss.item()` does."""
        self.clock.now = max(self.clock.now, self.stream.free_ns)

    def device_ns(self, host_ns: int) -> float:
        return host_ns * 1.00003 + 7e12


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at_ns = gpu, -1

    def record(self, stream: Stream | None = None) -> None:
        if self.gpu.error is not None:
            raise RuntimeError(self.gpu.error)
        self.gpu.clock.now += 2_000
        self.at_ns = max(self.gpu.clock.now, (stream or self.gpu.stream).free_ns)

    def query(self) -> bool:
        if self.gpu.error is not None:
            raise RuntimeError(self.gpu.error)
        self.gpu.clock.now += 1_000
        return not self.gpu.hangs and self.gpu.clock.now >= self.at_ns

    def synchronize(self) -> None:
        raise AssertionError("the watch must never make the script wait")

    def elapsed_time(self, other: "Event") -> float:
        """Float32 milliseconds, of two events that were reached."""
        assert max(self.at_ns, other.at_ns) <= self.gpu.clock.now
        return float(np.float32((self.gpu.device_ns(other.at_ns) - self.gpu.device_ns(self.at_ns)) / 1e6))


class LateLoader(RestingLoader):
    """A worker that computes in Python answers for its ready batches when it comes to it; one at rest does at once."""

    late_ns = 0

    def take(self, iterator: object) -> dict[str, np.ndarray]:
        begun = self.clock.now
        batch = super().take(iterator)
        if self.orders.since is None or self.clock.now - self.orders.since > MOST_REST_S * 1e9:
            self.clock.now = max(self.clock.now, begun + self.late_ns)
        return batch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (stamps, iterator, doses, step_events, brackets):
        monkeypatch.setattr(module, "time", made)
    return made


def watched(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, *, batch_ms: float, device_ms: float, issue_ms: float = 1.0,
    workers: int = 2, probes: str = "burst", steps: int = 2500, waits: bool = False, gpu: Gpu | None = None,
    meanwhile: Callable[[int, Gpu], None] = lambda number, gpu: None, late_ms: float = 0.0, tells: bool = True,
) -> tuple[Judged, Gpu, Watcher]:  # fmt: skip
    """A script that enqueues `device_ms` of work for each batch, and waits for it (`waits`) or runs ahead. `late_ms`:
    by how much a worker that is at work delays a batch that is ready; `tells`: whether its workers can be told to rest.
    """
    made = gpu or Gpu(clock)
    monkeypatch.setattr(stamps, "step_events", lambda: StepEvents(made))
    monkeypatch.setattr(watched_run, "uses_cuda", lambda: True)
    watcher = Watcher(probes)
    watcher.clock = NoCpuClock()  # type: ignore[assignment]
    source = Source("DataLoader", "Files", 10_000, 4, workers, 2 if workers else 0, "RandomSampler")
    loader = LateLoader(clock, round(batch_ms * 1e6), 0, depth=2 * workers, jitter=0.01)
    loader.orders, loader.late_ns = Orders(clock), round(late_ms * 1e6)
    one = watcher.opened(
        source, clock.now, loader.orders if tells and workers else None, (), loader if workers else None
    )
    assert one is not None
    for number in range(steps):
        one.step(loader.take, None)
        clock.now += round(issue_ms * 1e6)
        made.work(round(device_ms * 1e6))
        meanwhile(number, made)
        if waits:
            made.synchronize()
    one.ended()
    watcher.close()
    return judged_of(run_of(watcher, "train.py", "train.py", "")), made, watcher


def said(judged: Judged) -> tuple[str, tuple[str, ...]]:
    return judged.attribution.verdict.bottleneck, judged.attribution.verdict.joint


def test_a_device_that_is_kept_busy_is_not_called_fed_too_slowly(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    judged, gpu, watcher = watched(clock, monkeypatch, batch_ms=5.0, device_ms=10.0)
    assert said(judged) == ("compute", ())
    assert judged.real.mean("duration") == pytest.approx(0.010, rel=0.01)
    assert judged.real.mean("stall") < 1e-4
    # events are used again: as many as the device was behind, and those that tie the clocks
    assert gpu.num_events < 40 and watcher.device is not None and watcher.device.num_reached > 2000
    assert judged.facts.watched is not None and judged.facts.watched.device_stamped


def test_a_wait_that_the_device_s_queue_hides_is_none_though_nobody_works_ahead(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 5 ms to make a batch in line, 1 ms to issue: by the host's stamps it waits for most of its time
    judged, _, _ = watched(clock, monkeypatch, batch_ms=5.0, device_ms=10.0, workers=0)
    assert judged.real.mean("wait") > 0.0045 and judged.real.mean("stall") < 1e-4
    assert said(judged) == ("compute", ())


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("workers", "tells"), [(0, False), (2, False), (2, True), (4, True)])
def test_a_loader_that_is_too_slow_is_named_with_its_gain(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, workers: int, tells: bool, waits: bool
) -> None:
    judged, _, _ = watched(clock, monkeypatch, batch_ms=20.0, device_ms=8.0, workers=workers, waits=waits, tells=tells)
    assert said(judged) == ("mixed", ("storage", "prep"))
    joint = judged.attribution.verdict.joint_speedup
    # Without the loader: 8 ms, and 1 ms of issuing where nothing runs ahead. In line, waiting: 20 + 1 + 8 ms.
    whole = (21.0 if not workers else 20.0) + (8.0 if waits and not workers else 0.0)
    # In line it is told by the timeline, where a device that ran dry waits for issuing, too.
    expected = whole / (8.0 if workers and not waits else 9.0)
    assert joint is not None and joint.value == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("device_ms", [8.0, 60.0, 400.0])
def test_batches_that_busy_workers_hand_over_late_do_not_lengthen_the_step_with_data_ready(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, device_ms: float, waits: bool
) -> None:
    # An H200 called such a script "compute": the steps behind a burst waited for batches that had long been made.
    judged, _, watcher = watched(
        clock, monkeypatch, batch_ms=3 * device_ms, device_ms=device_ms, waits=waits, steps=1500,
        late_ms=2.5 * device_ms,
    )  # fmt: skip
    assert said(judged) == ("mixed", ("storage", "prep"))  # the workers' stamps are not read here
    base = judged.model.base
    assert base is not None and base.value * 1e3 == pytest.approx(device_ms + waits, rel=0.03)
    assert watcher.rested_ns > 0


def test_the_device_s_times_are_the_host_s_whatever_its_clock(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    judged, _, watcher = watched(
        clock, monkeypatch, batch_ms=5.0, device_ms=10.0, probes="none", steps=6000,
        meanwhile=lambda number, gpu: done.append(gpu.stream.free_ns),
    )  # fmt: skip
    # over a minute, in which the clocks drift apart by 1.8 ms
    truth = np.array(done)
    for segment in judged.recording.of(Arm.REAL):
        at = segment.steps[:, STEP["done_ns"]]
        nearest = truth[np.searchsorted(truth, at).clip(1, len(truth) - 1)]
        before = truth[np.searchsorted(truth, at).clip(1, len(truth) - 1) - 1]
        assert np.minimum(np.abs(nearest - at), np.abs(before - at)).max() < 150_000
    assert watcher.device is not None and watcher.device.uncertainty_ns < 5_000


@pytest.mark.parametrize(
    ("batch_ms", "device_ms", "issue_ms", "host", "stream"),
    [
        (4.0, 10.0, 1.0, 0.0, 1.0),  # the device paces; its queue hides the host's delays
        (4.0, 2.0, 10.0, 1.0, 0.0),  # issuing paces
        (20.0, 6.0, 1.0, 0.0, 0.0),  # the loader paces
    ],
)
def test_delays_on_the_host_and_on_the_stream_tell_what_paces_a_run(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, batch_ms: float, device_ms: float, issue_ms: float, host: float,
    stream: float,
) -> None:  # fmt: skip
    judged, _, watcher = watched(
        clock, monkeypatch, batch_ms=batch_ms, device_ms=device_ms, issue_ms=issue_ms, probes="delay", steps=5000
    )
    found = {one.place: one for one in judged.doses}
    assert found["host"].response.value == pytest.approx(host, abs=0.12)
    assert found["stream"].response.value == pytest.approx(stream, abs=0.12)
    # the spin ran at 1.5 GHz, not at the 2 GHz that it was asked for: events tell how long it was
    asked = [one.delay.asked_ns for one in judged.recording.segments if one.delay and one.delay.place == "stream"]
    assert found["stream"].delay_s == pytest.approx(np.mean(asked) / 1e9 * 2.0 / 1.5, rel=0.02)
    assert watcher.doses.total_ns <= doses.PART * watcher.wall_s * 1e9


def test_a_device_that_never_tells_leaves_the_verdict_open(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(clock)

    def breaks(number: int, gpu: Gpu) -> None:
        if number == 300:
            gpu.error = "CUDA error: an illegal memory access was encountered\nmore"

    judged, _, watcher = watched(clock, monkeypatch, batch_ms=5.0, device_ms=10.0, gpu=gpu, meanwhile=breaks)
    # what was seen before the error counts; nothing of the error reached the script
    assert watcher.device is not None
    assert watcher.device.problem == "CUDA error: an illegal memory access was encountered"
    assert judged.real.num_steps < 300
    run = run_of(watcher, "train.py", "train.py", "")
    assert run is not None and run.recording is not None and run.recording.facts.watched is not None
    assert run.recording.facts.watched.no_device_stamps == watcher.device.problem


def test_events_that_are_never_reached_give_no_step(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(clock)
    gpu.hangs = True
    device = StepEvents(gpu)
    assert device.problem == "an event on an idle stream never completed"
    cell = [-1]
    device.mark(cell, 0)
    assert cell == [NEVER] and device.harvest()


def test_a_stream_that_is_being_captured_is_left_alone(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def captures(number: int, gpu: Gpu) -> None:
        gpu.captures = 500 <= number < 520

    judged, _, _ = watched(clock, monkeypatch, batch_ms=5.0, device_ms=10.0, meanwhile=captures)
    assert said(judged) == ("compute", ())


def test_a_script_far_ahead_of_its_device_is_not_followed(clock: Clock) -> None:
    gpu: Any = Gpu(clock)
    device = StepEvents(gpu)
    gpu.hangs = True
    cells = [[-1] for _ in range(step_events.MOST_PENDING + 2)]
    for cell in cells:
        device.mark(cell, 0)
    assert device.problem is not None and "too far ahead" in device.problem
    assert {cell[0] for cell in cells} == {NEVER}


def test_nothing_is_asked_of_a_process_that_uses_no_device() -> None:
    assert step_events.step_events() is None  # there is none here, or it has not begun

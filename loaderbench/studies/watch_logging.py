"""A watched run logged to experiment trackers while its script goes on, and summed up at its end.

The script's thread only reads counters, now and then, and hands over what they say (trackers/delivery.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from loaderbench.originals import os, time
from loaderbench.recording.facts import Run
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store
from loaderbench.reporting import format as fmt
from loaderbench.reporting.forms import markdown
from loaderbench.reporting.terminal import run_result
from loaderbench.reporting.words import worded
from loaderbench.studies.measure import judged
from loaderbench.studies.watch_ranks import WatchedRank
from loaderbench.studies.watch_writing import Judging
from loaderbench.studies.watched_run import run_of
from loaderbench.temporary import temporary_folder
from loaderbench.trackers.delivery import Delivery, ProcessDelivery, ThreadDelivery
from loaderbench.trackers.messages import what_failed
from loaderbench.trackers.tracker import TRACKERS, Point, Summary
from loaderbench.watching.seen import Source
from loaderbench.watching.watcher import Watcher

POINT_S, POINTS = 5.0, 2000
"""Seconds between points; a run that is longer than so many of these gets them the more seldom the longer it is."""
SUMMARY_GROWS = 1.2
"""The run's summary so far is set again when the script has run for so many times as long as at the last time."""


@dataclass(frozen=True)
class _Counters:
    """What a loader's counters said at the last point."""

    source: Source
    waited_ns: int
    worked_ns: int
    num_samples: int


class _Log:
    """One tracker, and the runs of it that were logged to: one of ours, or those that the script had open."""

    def __init__(self, name: str) -> None:
        self.name, self.library = name, TRACKERS[name].load()
        self.deliveries: list[Delivery] = []
        self.scripts: object | None = None
        """The last run that the script had open, where that is an object of this process."""
        self.problem: str | None = None

    def open(self, script: str, before_finish: Callable[[_Log], None]) -> None:
        """Find the run to log to: what the script has open now, else what it had, else a new one."""
        found = self.library.script_run()
        if found is not None and found is not self.scripts:
            self.scripts = found
            self.deliveries.append(ThreadDelivery(lambda: self.library.logged(found)))
            self.library.before_finish(found, lambda: before_finish(self))
        elif not self.deliveries and self.scripts is None:
            self.deliveries.append(ProcessDelivery(self.name, self.library.target_of(script)))


class WatchLog:
    """What is logged of one watch. Nothing that a tracker does reaches the script."""

    def __init__(self, script: str, judging: Judging, rank: WatchedRank | None = None) -> None:
        """`script`: its name. `rank`: of one of several, of which only that which speaks logs."""
        self._script, self._judging, self._rank = script, judging, rank
        self._logs: dict[str, _Log] = {}
        self._owner, self._has_ended = os.getpid(), False
        self._begun_ns = self._due_ns = time.perf_counter_ns()
        self._summary_due_s = 0.0
        self._before: _Counters | None = None
        self._judged: RunRecord | None = None
        self._summed: RunRecord | None = None
        self._watcher: Watcher | None = None
        self._points: list[Point] = []

    def add(self, names: Sequence[str], watcher: Watcher) -> None:
        """Log to these from now on, too."""
        if self._rank is not None and not self._rank.speaks:
            return
        for name in names:
            self._logs.setdefault(name, _Log(name))
        if not self._logs or self._watcher is not None:
            return
        self._watcher, display = watcher, watcher.display

        def show(shown: Watcher) -> None:
            if display is not None:
                display(shown)
            self.tick(shown)

        watcher.display = show

    def tick(self, watcher: Watcher) -> None:
        """Log a point where it is time to. Called on the script's thread, where it asks for a batch."""
        if os.getpid() != self._owner or self._has_ended or watcher.is_closed or watcher.main is None:
            return
        self._judging.tick(watcher)
        for log in self._logs.values():
            _guarded(log, partial(log.open, self._script, self._before_finish))
        now = time.perf_counter_ns()
        if now < self._due_ns:
            return
        since_s = (now - self._begun_ns) / 1e9
        self._due_ns = now + round(max(POINT_S, since_s / POINTS) * 1e9)
        record = self._judging.record
        self._send_point(self._point(watcher, record))
        if record is not None and record is not self._summed and since_s >= self._summary_due_s:
            self._summary_due_s, self._summed = SUMMARY_GROWS * since_s, record
            self._send_summary(summary_of(worded(record)))

    def end(
        self, watcher: Watcher, record: RunRecord | None, store: Store, say: Callable[[str], None], *, failed: bool
    ) -> None:
        """Log what the run came to, and wait for the trackers. `say` is called with a line for each that failed.

        `record`: as it is stored; None where nothing was seen. `failed`: the script ended with an error.
        """
        if os.getpid() != self._owner or self._has_ended or not self._logs:
            return
        self._judging.end()
        if record is not None:
            for log in self._logs.values():
                _guarded(log, partial(log.open, self._script, self._before_finish))
            self._send_point(self._point(watcher, record))
            self._send_summary(summary_of(record, page_of(store, record.run_id), self._points))
        self._has_ended = True
        for log in self._logs.values():
            problem = _finished(log, failed=failed)
            if problem is not None:
                say(f"not everything was logged to {log.name}: {problem}")

    def _before_finish(self, log: _Log) -> None:
        """The script finishes its own run: what was seen so far goes there first."""
        watcher, delivery = self._watcher, log.deliveries[-1]
        if os.getpid() != self._owner or self._has_ended or watcher is None:
            return

        def summarize() -> None:
            beside = None if self._rank is None else self._rank.beside
            run = run_of(watcher.so_far(), self._script, self._script, "", None, beside)
            if run is None:
                return
            record = judged(run)
            point = self._point(watcher, record)
            if point is not None:
                delivery.point(point)
                self._points.append(point)
            delivery.summarize(summary_of(record, page_of_run(run, record), self._points))
            log.problem = log.problem or delivery.finish(failed=False)

        _guarded(log, summarize)
        log.deliveries.remove(delivery)

    def _point(self, watcher: Watcher, record: RunRecord | None) -> Point | None:
        """What happened since the last one; None where nothing did. `record`: the last judging of the whole run."""
        main = watcher.main
        assert main is not None
        now = _Counters(main.source, main.times_ns["wait"], main.times_ns["step"], main.num_samples)
        before, self._before = self._before, now
        if before is None or before.source != now.source:
            before = _Counters(main.source, 0, 0, 0)
        waited, worked = now.waited_ns - before.waited_ns, now.worked_ns - before.worked_ns
        values = {}
        if waited + worked > 0:
            values["waiting_fraction"] = waited / (waited + worked)
            values["samples_per_s"] = (now.num_samples - before.num_samples) / (waited + worked) * 1e9
        if record is not None and record is not self._judged:
            self._judged = record
            values |= shares_of(record)
        step = main.num_batches if watcher.optimizer_steps is None else watcher.optimizer_steps
        return Point(step, values) if values else None

    def _send_point(self, point: Point | None) -> None:
        if point is None:
            return
        self._points.append(point)
        for log in self._logs.values():
            for delivery in log.deliveries[-1:]:
                delivery.point(point)

    def _send_summary(self, summary: Summary) -> None:
        for log in self._logs.values():
            for delivery in log.deliveries:
                delivery.summarize(summary)


def _guarded(log: _Log, work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:  # whatever a library raises
        log.problem = log.problem or what_failed(error)


def _finished(log: _Log, *, failed: bool) -> str | None:
    """End its runs. What went wrong; None where nothing did."""
    problem = log.problem
    for delivery in log.deliveries:
        problem = delivery.finish(failed=failed) or problem
    return problem


def shares_of(record: RunRecord) -> dict[str, float]:
    """Accelerator utilization, the share of each cause and the gain without it, of the whole run so far; what is
    unknown is left out."""
    values = {f"share/{name}": one.value for name, one in (record.shares or {}).items() if one is not None}
    gains = {} if record.verdict is None else record.verdict.speedup_if_removed
    values |= {f"gain_without/{name}": one.value for name, one in gains.items() if one is not None}
    if record.accelerator_utilization_fraction is not None:
        values["accelerator_utilization_fraction"] = record.accelerator_utilization_fraction
    return values


def summary_of(record: RunRecord, page: str | None = None, points: Sequence[Point] = ()) -> Summary:
    """What a run came to. `record`: with its words."""
    values: dict[str, float | str] = {"run_id": record.run_id} if record.run_id else {}
    verdict = record.verdict
    if verdict is not None:
        values |= {"verdict": verdict.bottleneck, "summary": "".join(fmt.headline(record))}
        if verdict.cause_detail is not None:
            values["cause_detail"] = verdict.cause_detail
        gain = verdict.joint_speedup if verdict.joint else verdict.gain
        if gain is not None:
            ends = {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
            values |= {name: value for name, value in ends.items() if value is not None}
        if verdict.advice:
            values["advice"] = fmt.advice(verdict.advice[0])
    result = run_result(fmt.cleaned(record))
    text = markdown(replace(result, tables=result.tables[:1]))  # the others would be folded, which is HTML
    return Summary(values, text, page, tuple(points))


def page_of(store: Store, run_id: str) -> str | None:
    """The report of one stored run as an HTML page; None where it cannot be made."""
    from loaderbench.reporting.html import render_html  # late: jinja2, and only where it is asked for
    from loaderbench.reporting.report import read_report

    try:
        return render_html(read_report(store, names=[run_id]))
    except Exception:  # the summary goes without
        return None


def page_of_run(run: Run, record: RunRecord) -> str | None:
    """The same of a run that is not stored yet."""
    with temporary_folder() as folder:
        store = Store(folder)
        kept = store.open_run(run.case)
        kept.write_case(run.case)
        kept.write_run(replace(run, run_id=kept.run_id))
        kept.write_record(replace(record, run_id=kept.run_id))
        return page_of(store, kept.run_id)

"""What a study says beyond its single runs: times over serial, the knee in workers, where the bottleneck flips.

Everything is taken from the runs' records. Repeats of a case are one row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from loaderbench.analysis.comparison import PARITY, mean_of_known, rate_of_runs, rates, ratio_of
from loaderbench.cases.case import SHORT_RUN_STEPS, Case
from loaderbench.recording.machines import HARDWARE
from loaderbench.recording.record import Estimate, RunRecord
from loaderbench.recording.studies import Flip, Knee, Row, Sweep, SweepFacts

T = TypeVar("T")

UNRULED = ("undetermined", None)


def _of_the_case(case: Case) -> Case:
    """The case with the fields that do not separate rows made equal: the repeat; and the prefetch, where the buffer is
    a fraction of the run, so that the prefetch follows from the workers."""
    prefetch = 0 if case.feed.buffer_ratio is not None else case.feed.prefetch
    return case.changed(repeat=0, prefetch=prefetch)


def _without_workers(case: Case) -> Case:
    return _of_the_case(case).changed(workers=0)


def _of_the_work(case: Case) -> tuple[Hashable, ...]:
    """What a run shares with the serial run that it is compared with: everything but the loader."""
    return case.subject, case.step, replace(case.effort, repeat=0)


def _grouped(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(repr(key(item)), []).append(item)
    return list(groups.values())


def gather(records: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """Stored runs, oldest first, as studies: the runs of one data set, workload and machine; newest study first.

    If a case was measured more than once, the newest run with a verdict is taken, else the newest that ended well,
    else the newest. Runs that differ only in how long and how thoroughly they measured are the same case.
    """
    studies: dict[str, dict[str, RunRecord]] = {}
    for record in records:
        latest = studies.setdefault(repr(_study_of(record)), {})
        case = record.case
        key = repr((case.subject, case.feed, case.step, case.effort.seed, case.effort.repeat))
        if key not in latest or _worth(record) >= _worth(latest[key]):
            latest[key] = record
    groups = [list(latest.values()) for latest in studies.values()]
    return sorted(groups, key=lambda group: max(record.started_at for record in group), reverse=True)


def _study_of(record: RunRecord) -> tuple[object, ...]:
    """What the runs of one study share; the study varies everything else."""
    subject, step, environment = record.case.subject, record.case.step, record.environment
    # Without the variant's folder, so that resolutions of one set belong together and two storages do not.
    place = subject.dataset.rstrip("/").removesuffix(f"/{subject.resolution}")
    machine = None if environment is None else HARDWARE(environment)
    return machine, place, subject.dataset_name, subject.cache, replace(step, batch_size=0, loss_scale=None)


def _worth(record: RunRecord) -> int:
    """2: it has a verdict; 1: it ended well; 0: neither."""
    if record.status != "ok":
        return 0
    return 1 if record.verdict is None or record.verdict.bottleneck in UNRULED else 2


def fastest(rows: Iterable[Row]) -> list[Row]:
    """The rows of one resolution, those with the highest rate first."""
    return sorted(rows, key=lambda row: -row.rate.value)


def told_apart(first: Row, second: Row) -> bool:
    """Whether the first is surely the faster one: its interval lies above the other's. False where one is unknown."""
    low, high = first.rate.low, second.rate.high
    return low is not None and high is not None and low > high


def judge(facts: SweepFacts, records: Mapping[str, RunRecord]) -> Sweep:
    """What a sweep's runs say together."""
    return summarize([*records.values()])


def summarize(records: Sequence[RunRecord]) -> Sweep:
    """Times over serial, knees and flips, over the runs that were measured."""
    measured = [record for record in records if record.status == "ok" and record.measured]
    groups = _grouped(measured, lambda record: _of_the_case(record.case))
    serial = _grouped_by_work([group for group in groups if group[0].case.feed.workers == 0])
    num_steps = (measured[0].case.effort.steps if measured else None) or SHORT_RUN_STEPS
    rows = [_row(group, _serial_of(group[0].case, serial), num_steps) for group in groups]
    return Sweep(num_steps, tuple(rows), tuple(knees(rows)), tuple(flips(rows)))


def _row(runs: Sequence[RunRecord], serial: Sequence[RunRecord] | None, num_steps: int) -> Row:
    case, rate = runs[0].case, rate_of_runs(rates(runs))
    assert rate is not None
    gaps = [record.device.kernel_gap for record in runs if record.device and record.device.kernel_gap]
    storages = [record.storage for record in runs if record.storage is not None]
    cpus = [record.cpu for record in runs if record.cpu is not None]
    mean_bytes = mean_of_known(storage.mean_file_bytes for storage in storages)
    verdicts = {record.verdict.bottleneck if record.verdict else None for record in runs}
    bottleneck = verdicts.pop() if len(verdicts) == 1 else "undetermined"
    verdict, removed = runs[-1].verdict, None
    if verdict is not None and bottleneck == "mixed":
        removed = verdict.joint_speedup
    elif verdict is not None and bottleneck in ("storage", "prep", "transfer", "launch"):
        removed = verdict.speedup_if_removed.get(bottleneck) or verdict.joint_speedup
    return Row(
        case=case,
        run_ids=tuple(record.run_id for record in runs),
        rate=rate,
        total_s=num_steps * case.step.batch_size / rate.value,
        faster_than_serial=None if serial is None or serial is runs else _over(serial, runs),
        batch_bytes=None if mean_bytes is None else mean_bytes * case.step.batch_size,
        # A warm run reads nothing: what a shared disk's counter saw meanwhile was other programs' reads.
        read_bytes_per_s=mean_of_known(
            None if storage.cache_state == "warm" else storage.bandwidth_bytes_per_s for storage in storages
        ),
        ceiling_bytes_per_s=mean_of_known(storage.ceiling_bytes_per_s for storage in storages),
        utilization_fraction=mean_of_known(record.accelerator_utilization_fraction for record in runs),
        gap_fraction=mean_of_known(gap.total_fraction for gap in gaps),
        gap_fraction_by_class=gaps[0].by_class if gaps else None,
        gaps_per_step=mean_of_known(gap.count_per_step for gap in gaps),
        gap_p95_s=mean_of_known(gap.p95_s for gap in gaps),
        bottleneck=bottleneck,
        speedup_if_removed=removed,
        seconds_per_sample=mean_of_known(cpu.seconds_per_sample for cpu in cpus),
        workers_rss_bytes=mean_of_known(cpu.workers_rss_bytes for cpu in cpus),
        short_run=runs[-1].short_run,
        workers_pss_bytes=mean_of_known(cpu.workers_pss_bytes for cpu in cpus),
    )


def _over(serial: Sequence[RunRecord], runs: Sequence[RunRecord]) -> Estimate | None:
    """Rate of the runs ÷ the serial runs', repeat by repeat."""
    before, after = ({record.case.effort.repeat: record for record in some} for some in (serial, runs))
    rounds = sorted({*before, *after})
    return ratio_of(rates(before.get(number) for number in rounds), rates(after.get(number) for number in rounds))


Groups = Mapping[tuple[Hashable, ...], Sequence[Sequence[RunRecord]]]


def _grouped_by_work(groups: Iterable[Sequence[RunRecord]]) -> Groups:
    found: dict[tuple[Hashable, ...], list[Sequence[RunRecord]]] = {}
    for group in groups:
        found.setdefault(_of_the_work(group[0].case), []).append(group)
    return found


def _serial_of(case: Case, serial: Groups) -> Sequence[RunRecord] | None:
    """The serial runs of the same work: with the same decoder and output where there are several."""
    found = serial.get(_of_the_work(case), [])

    def unlike(group: Sequence[RunRecord]) -> int:
        feed = group[0].case.feed
        return (feed.decoder != case.feed.decoder) + (feed.output != case.feed.output)

    return min(found, key=unlike, default=None)


def knees(rows: Sequence[Row]) -> list[Knee]:
    """For each set of runs that differ in workers alone: the least workers within 3 % of the best rate."""
    found = []
    for group in _grouped(rows, lambda row: _without_workers(row.case)):
        ordered = sorted(group, key=lambda row: row.case.feed.workers)
        if len(ordered) < 2:
            continue
        best = max(row.rate.value for row in ordered)
        knee = next(row for row in ordered if row.rate.value >= PARITY * best)
        found.append(
            Knee(
                case=knee.case,
                workers=knee.case.feed.workers,
                tried=tuple(row.case.feed.workers for row in ordered),
                of_best_fraction=knee.rate.value / best,
                seconds_per_sample=knee.seconds_per_sample,
                workers_rss_bytes=knee.workers_rss_bytes,
                workers_pss_bytes=knee.workers_pss_bytes,
                is_last=knee is ordered[-1],
            )
        )
    return found


def flips(rows: Sequence[Row]) -> list[Flip]:
    """Where the verdict changes along the resolution, and along the workers. Undetermined runs are passed over."""

    def without_resolution(row: Row) -> Case:
        return _of_the_case(row.case).changed(resolution=None, dataset="")

    along_resolution = _flips(_grouped(rows, without_resolution), "resolution", lambda c: c.subject.resolution)
    along_workers = _flips(_grouped(rows, lambda row: _without_workers(row.case)), "workers", lambda c: c.feed.workers)
    return [*along_resolution, *along_workers]


def _flips(
    groups: Iterable[Sequence[Row]],
    along: Literal["resolution", "workers"],
    place: Callable[[Case], int | None],
) -> list[Flip]:
    found = []
    for group in groups:
        ruled = [
            (place(row.case), row)
            for row in sorted(group, key=lambda row: place(row.case) or 0)
            if row.bottleneck not in UNRULED
        ]
        at = [(number, row) for number, row in ruled if number is not None]
        if len(at) < len(ruled) or len({number for number, _ in at}) < len(at):
            continue  # several data sets of one name and resolution have no order
        for (first, before), (second, after) in itertools.pairwise(at):
            if before.bottleneck != after.bottleneck and before.bottleneck and after.bottleneck:
                found.append(Flip(along, (first, second), (before.bottleneck, after.bottleneck), after.case))
    return found

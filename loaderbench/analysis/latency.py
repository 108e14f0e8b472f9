"""How single files answered: whether few of them are slow (a tail), or all of them at once (stalls).

Definitions and where each limit comes from: docs/method.md, `Tails and stalls`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.own_pauses import are_of_the_run
from loaderbench.analysis.standstills import CHANCE, TRIED, Standstills, chance_of_so_regular
from loaderbench.analysis.steps import window_quantities
from loaderbench.analysis.storage import LATENCY_PER_DOUBLING, bound_by, growth_per_doubling
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import (
    MOST_SLOWEST,
    PAUSE,
    PAUSE_FIELDS,
    READ,
    READ_BIN,
    READ_BIN_EDGES_NS,
    RELEASE_PART,
    STEP,
    Percentiles,
    ReadTimes,
    Recording,
    Segment,
    StorageFacts,
    Table,
)
from loaderbench.recording.record import Bound, ReadFigures, SlowFile, Stalls, StorageSlowness, Tail

SLOWEST_PART = 0.01
TAIL_SHARES = {SLOWEST_PART: 0.25, 0.05: 0.50, 0.10: 0.65}
"""Slowest part of the reads → part of the read time that it must hold to be a tail; the further ones find the slow
files where they are more than a hundredth. Exponential times give 0.056, 0.20 and 0.33, a log-normal distribution with
σ = 1.5 gives 0.20, 0.44 and 0.59, and with σ = 1.65 these (1 − Φ(z − σ))."""
UNEVEN_SHARE, LEAST_SLOW_S = 0.15, 0.03
"""Such a part in files of such a length, ten times the median, asks for longer windows already: by how many of them it
happens to meet, a short one differs from the next. Beside busy processes the ordinary reads take longer, and what was
a tail holds less of the time."""
MORE_THAN_MEMORY = 3.0
"""Those reads must also take this many times as long as the slowest from memory, whose tail is the processors'."""
LONG_PAUSE_S, LONG_PAUSE = 0.1, 10.0
"""A pause counts as a stall from this length on, and this many times a file's median time."""
RELEASED_TOGETHER = 0.75
"""Part of the waiting reads, at least two, that must end together behind a stall."""
IN_STALLS = 0.5
"""Part of the slow reads that must lie in pauses of all readers to call these stalls: else few files are slow, and
sometimes several at once."""
SHARED, RATIONED_PART = 0.75, 0.25
"""Part of the slow reads that lie in pauses of all readers, however short, from which on no single files are slow: what
the readers share is used up. Where such pauses take this part of the time too, its rate is capped: the kernel's
throttle and the token buckets of cloud volumes let requests go in slices of 0.1 s or less. Measured with 2 readers:
0.94 to 1.00 of the slow reads, and 0.33 to 0.74 of the time, on a throttled disk; 0.04 to 0.08, and 0.03, with few slow
files."""
ONE_PAUSE = 0.5
"""Of all short pauses together, the most that one of them may be: slices come one after another."""
LEAST_SLICES, SLICE_OFF, IN_SLICES = 8, 0.1, 0.9
"""So many distances between slow reads tell, if this part of them is a multiple of their median to within so much of
it: at random (exponential distances) one in six would be. On a throttled disk all are (0.1 s)."""
LEAST_BEHIND = 4
"""So many tell files that are slow themselves, which last far more evenly (MORE_EVENLY)."""
STALLED_PART = 0.03
"""Part of the time that stalls must take."""
REGULAR, LEAST_REGULAR = 0.95, 5
"""Stalls are regular if their ends, on a circle of one period, have a mean resultant of this length, from this many on.
With 5 independent ends the chance is 1 % for a given period (Rayleigh: exp(−n·r²)). Fewer must lie closer together
(`chance_of_so_regular`)."""
OFF_BEAT, ON_BEAT = 0.1, 0.9
"""Of one reader, so many of the distances between stalls must be whole periods, to within so much of one. Slow files of
0.3 s behind each other end 0.3 to 0.5 s apart, which at random times would be most regular."""
MOSTLY = 0.75
"""Of the time: a reader that waits for so much of it waits for one slow file behind the other, or stalls that leave
nothing between them; how evenly they come tells."""
MORE_EVENLY = 0.5
"""Of their distances' deviations (medians): those of the lengths of files that are slow themselves are smaller.
Measured: 0.004 to 0.007 with slow files, 10 to 120 on a throttled disk."""
ALIKE = 0.05
"""Of a period: by no more do regular stalls that are alike differ in length."""
HELD_UP, MOST_HELD = 0.5, 2.0
"""Of a loader that does not tell its reads: a wait of its device counts as a stall from this part of those that `fetch`
met on, where such waits come at most so many times as often as these."""
STALL_PERIODS, SLOW_A_WINDOW = 2, 8
"""What a window must hold: two whole periods, so that it holds as much of the stalls wherever it begins; some slow
files, whose number varies by its square root."""
OPEN_PART, LEAST_OPEN_S = 0.5, 1e-3
"""Opening is what takes time if it takes this part of a file's time, and so long on average."""
SEEN_PART, LEAST_EXPECTED = 0.5, 3.0
"""`fetch` saw what `real` saw if it had this part of the slow reads or stalled time expected of it, where at least so
many were."""
MOST_FILES = 8
FOLDER_PART, FOLDER_EXCESS = 0.5, 3.0
"""A folder holds the slow files if it has this part of them, and this many times its part of all files."""
AGAIN = 3
"""Slow files that must have been slow again to call them the same each time; and the number of them expected, were they
the same, from which none means that they are not."""
FAR = 3.0
"""Standard deviations, at most √(repeats), by which the repeats of the same files must exceed those by chance where
these are many: of few files all are read again often."""
PAUSES_A_WINDOW = 4
MISSED = 0.05
"""A storage that stood still for this part of the time must have done so in `real` too, or `real` does not tell."""


@dataclass(frozen=True)
class Reads:
    """The reads of one arm, in all its windows."""

    windows: tuple[ReadTimes, ...]
    readers: int

    @cached_property
    def histogram(self) -> NDArray[np.int64]:
        return np.asarray(np.sum([one.histogram for one in self.windows], axis=0))

    @property
    def num(self) -> int:
        return int(self.histogram[:, READ_BIN["files"]].sum())

    @property
    def seconds(self) -> float:
        """The time in which files were read, all windows together."""
        return sum(one.end_ns - one.begin_ns for one in self.windows) / 1e9

    @property
    def typical_s(self) -> float:
        """Median time of a file."""
        return quantile(self.histogram, "file", 0.5)

    @cached_property
    def shared(self) -> Table:
        """The pauses of ten typical files in which all readers waited, and at whose end they went on together."""
        rows = np.concatenate([one.pauses for one in self.windows])
        long = _length_s(rows) >= LONG_PAUSE * self.typical_s
        waiting, released = rows[:, PAUSE["waiting"]], rows[:, PAUSE["released"]]
        least = min(2, self.readers)
        together = (waiting >= least) & (released >= np.maximum(least, RELEASED_TOGETHER * waiting))
        return np.asarray(rows[long & together])

    @cached_property
    def stalled(self) -> Table:
        """Those of them that are long."""
        return np.asarray(self.shared[_length_s(self.shared) >= LONG_PAUSE_S])

    @cached_property
    def slow_rows(self) -> Table:
        """The slowest reads of all windows, the slowest first."""
        rows = np.concatenate([one.judged for one in self.windows])
        return np.asarray(rows[np.argsort(-_file_ns(rows), kind="stable")])

    def lie_in(self, pauses: Table) -> NDArray[np.bool_]:
        """Whether each of `slow_rows` waited through one of the pauses and ended right behind it."""
        rows, inside = self.slow_rows, np.zeros(len(self.slow_rows), dtype=np.bool_)
        begins, ends = rows[:, READ["begin_ns"]], rows[:, READ["begin_ns"]] + _file_ns(rows)
        for pause in pauses:
            begin, end = pause[PAUSE["begin_ns"]], pause[PAUSE["end_ns"]]
            inside |= (begins < end) & (ends >= end) & (ends <= end + 2 * RELEASE_PART * (end - begin))
        return inside


def _length_s(pauses: Table) -> NDArray[np.float64]:
    return np.asarray((pauses[:, PAUSE["end_ns"]] - pauses[:, PAUSE["begin_ns"]]) / 1e9)


def _file_ns(rows: Table) -> NDArray[np.int64]:
    return np.asarray(rows[:, READ["open_ns"]] + rows[:, READ["read_ns"]])


def _as_slow(rows: Table, few: Tail) -> NDArray[np.bool_]:
    """Which of the reads took as long as the slow files, or half as long at least."""
    return np.asarray(_file_ns(rows) >= few.slow_s * 1e9 / 2)


def _mean_s(rows: Table) -> float:
    return float(_file_ns(rows).mean() / 1e9)


def reads_of(windows: Sequence[ReadTimes | None], readers: int) -> Reads | None:
    """The windows of an arm together; None where none tells. One may lack them though its loader tells when it reads:
    all of its batches were read before it."""
    told = tuple(one for one in windows if one is not None)
    return Reads(told, readers) if told else None


def quantile(histogram: Table, what: str, part: float) -> float:
    """Seconds below which `part` of the opens (`open`), reads (`read`) or both (`file`) lie: the mean of their bin."""
    counts, sums = histogram[:, READ_BIN[f"{what}s"]], histogram[:, READ_BIN[f"{what}_ns"]]
    position = int(np.searchsorted(np.cumsum(counts), part * counts.sum()))
    position = min(position, int(np.flatnonzero(counts)[-1]))
    return float(sums[position] / max(counts[position], 1) / 1e9)


def mean(histogram: Table, what: str) -> float:
    """Mean seconds of the opens, reads or both."""
    return float(histogram[:, READ_BIN[f"{what}_ns"]].sum() / histogram[:, READ_BIN[f"{what}s"]].sum() / 1e9)


def slowest_part(histogram: Table, part: float = SLOWEST_PART) -> tuple[float, float]:
    """(share of the files' time in the slowest part of them, their mean seconds)."""
    counts, sums = (histogram[::-1, READ_BIN[name]] for name in ("files", "file_ns"))
    wanted = part * counts.sum()
    taken = np.diff(np.minimum(np.cumsum(counts), wanted), prepend=0.0)
    held = float((taken * sums / np.maximum(counts, 1)).sum())
    return held / float(sums.sum()), held / float(wanted) / 1e9


def _slow_part(histogram: Table, shares: Mapping[float, float]) -> tuple[float, float, float] | None:
    """(the first slowest part of the files that holds its share of their time, that share, their mean seconds)."""
    found = ((part, *slowest_part(histogram, part)) for part in shares)
    return next((one for one in found if one[1] >= shares[one[0]]), None)


# -- stalls ------------------------------------------------------------------------------------------------


def stalls(reads: Reads, rhythm: Reads | None = None) -> Stalls | None:
    """When the whole storage stood still; None where it did not. `rhythm`: the reads of further arms too, over the same
    storage, which tell how regular that is."""
    rhythm, rows = rhythm or reads, reads.stalled
    length_s = _length_s(rows)
    if not len(rows) or len(rhythm.stalled) < 2 or length_s.sum() < STALLED_PART * reads.seconds:
        return None
    if _in_stalls(reads) < IN_STALLS:
        return None
    period_s, regular = _period(rhythm)
    in_time = regular and len(rows) >= SEEN_PART * reads.seconds / period_s
    if len(rows) < 2 and not in_time:
        return None
    if reads.readers == 1 and not (in_time and _is_rhythm(rhythm)):
        return None  # one reader waits for one file: only the rhythm tells a stall
    return Stalls(
        num=len(rows),
        length_s=float(np.percentile(length_s, 75)),  # where no reader asked at once it seems shorter
        period_s=period_s,
        regular=regular,
        part=float(length_s.sum() / reads.seconds),
    )


def _is_rhythm(reads: Reads) -> bool:
    """Whether the stalls of one reader end when the storage goes on, by the windows in which it has hardly any time
    besides: files that are slow themselves follow each other there at distances that are most even, too."""
    lengths_s, apart_s, ends = [np.zeros(0)], [np.zeros(0)], reads.stalled[:, PAUSE["end_ns"]]
    for one in reads.windows:
        if not one.histogram.any():  # a device's waits, each for as many slow files as it happens to meet
            continue
        rows = reads.stalled[(ends >= one.begin_ns) & (ends <= one.end_ns)]
        if _length_s(rows).sum() > MOSTLY * (one.end_ns - one.begin_ns) / 1e9:
            lengths_s.append(_length_s(rows))
            apart_s.append(np.diff(np.sort(rows[:, PAUSE["end_ns"]] / 1e9)))
    apart = np.concatenate(apart_s)
    return not len(apart) or not _last_more_evenly(np.concatenate(lengths_s), apart)


def _last_more_evenly(length_s: NDArray[np.float64], apart_s: NDArray[np.float64]) -> bool:
    """Whether waits of one reader last far more evenly than they come: each takes its own time. What waits for a common
    moment comes more evenly, whenever it began. Distances count less their whole multiples of the median."""
    off_s = _off_multiples(apart_s) * np.median(apart_s)
    return bool(np.median(np.abs(length_s - np.median(length_s))) < MORE_EVENLY * np.median(off_s))


def _off_multiples(apart: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each distance is from a whole multiple of their median, at least once that, in parts of it."""
    times = apart / np.median(apart)
    return np.asarray(np.abs(times - np.maximum(np.round(times), 1)))


def window_wanted_s(segments: Sequence[Segment], readers: int) -> float:
    """How long a window must be, by those of all arms so far, to hold what makes the storage slow: STALL_PERIODS of its
    stalls, or SLOW_A_WINDOW slow files; PAUSES_A_WINDOW times the longest pause where it is not known yet what that is;
    0 where it has none."""
    reads = reads_of([one.reads for one in segments if one.arm.touches_storage], readers)
    if reads is None:
        return 0.0
    histogram, longest_s = reads.histogram, 0.0
    if are_of_the_run(reads.stalled, reads.seconds, segments):
        histogram = without(histogram, reads.slow_rows[reads.lie_in(reads.stalled)])
    elif len(reads.stalled) and _in_stalls(reads) >= IN_STALLS:
        return STALL_PERIODS * _period(reads)[0]
    else:
        longest_s = float(_length_s(np.concatenate([one.pauses for one in reads.windows])).max(initial=0))
    least_s = PAUSES_A_WINDOW * longest_s if longest_s >= max(LONG_PAUSE_S, LONG_PAUSE * reads.typical_s) else 0.0
    slow = _slow_part(histogram, {**TAIL_SHARES, SLOWEST_PART: UNEVEN_SHARE})
    if slow is None or slow[2] < max(LEAST_SLOW_S, LONG_PAUSE * reads.typical_s):
        return least_s
    return max(least_s, SLOW_A_WINDOW * reads.seconds / above(histogram, slow[2] * 1e9 / 2)[0])


def missed(recording: Recording, readers: int) -> tuple[float, float] | None:
    """(part of the time that files were read in which the storage stood still, the same of the windows of `real`),
    where these met less than half as much of it as they should: the stalls fell into warm-ups and other arms."""
    windows = [one.reads for one in recording.segments if one.arm.touches_storage]
    reads = reads_of(windows, readers)
    if reads is None or not len(reads.stalled):
        return None
    if are_of_the_run(reads.stalled, reads.seconds, recording.segments):
        return None
    rows = reads.stalled[:, [PAUSE["begin_ns"], PAUSE["end_ns"]]]
    part = float((rows[:, 1] - rows[:, 0]).sum()) / 1e9 / reads.seconds
    met = whole = 0.0
    for segment in recording.of(Arm.REAL):
        if segment.reads is None:  # what it met is not known
            continue
        returned = segment.steps[:, STEP["returned_ns"]]
        begin, end = int(returned[max(segment.num_warmup, 1) - 1]), int(returned[-1])
        met += float((np.minimum(rows[:, 1], end) - np.maximum(rows[:, 0], begin)).clip(0).sum())
        whole += end - begin
    seen = met / whole if whole else 0.0
    return (part, seen) if whole and part >= MISSED and seen < part / 2 else None


def _in_stalls(reads: Reads) -> float:
    """Of the reads that took at least half as long as the shortest stall, the part that waited through one."""
    rows = reads.stalled
    return _part_in(reads, rows, float(_length_s(rows).min()) / 2)


def _part_in(reads: Reads, pauses: Table, least_s: float) -> float:
    """Of the slowest reads, those of at least so long, the part that waited through one of the pauses."""
    return float(reads.lie_in(pauses)[_file_ns(reads.slow_rows) >= least_s * 1e9].mean())


def _period(reads: Reads) -> tuple[float, bool]:
    """(seconds from stall to stall, whether they are regular)."""
    ends = np.sort(reads.stalled[:, PAUSE["end_ns"]]) / 1e9
    apart = [np.diff(ends[(ends >= one.begin_ns / 1e9) & (ends <= one.end_ns / 1e9)]) for one in reads.windows]
    seen = np.concatenate(apart)
    if not len(seen) and len(ends) > 1 and _none_missed(reads, ends):
        seen = np.diff(ends)  # no window held two of them
    guess = float(np.median(seen)) if len(seen) else reads.seconds / len(ends)
    if not len(seen):
        return guess, False
    # A wrong period by 1 / (4 × number of periods) turns the last end by a quarter of the circle.
    num_periods = max(1.0, (ends[-1] - ends[0]) / guess)
    tried = guess * np.linspace(1 - TRIED / 2, 1 + TRIED / 2, int(min(4000, 20 * num_periods)) + 1)
    turns = np.exp(2j * np.pi * (ends - ends[0])[None, :] / tried[:, None])
    lengths = np.abs(turns.mean(axis=1))
    best = int(np.argmax(lengths))
    many = len(ends) >= LEAST_REGULAR and lengths[best] >= REGULAR
    regular = many or chance_of_so_regular(ends, float(tried[best])) <= CHANCE
    if reads.readers == 1 and len(seen):  # its slow reads follow each other, so that their ends are never near
        periods = seen / tried[best]
        regular = regular and bool(np.mean(np.abs(periods - np.round(periods)) <= OFF_BEAT) >= ON_BEAT)
    return (float(tried[best]), True) if regular else (guess, False)


def _none_missed(reads: Reads, ends: NDArray[np.float64]) -> bool:
    """Whether more stalls between those that were seen, at a half or a third of their distance, would have ended in a
    window, and did not."""
    for parts in (2, 3):
        apart = float(np.median(np.diff(ends))) / parts
        ticks = np.arange(ends[0] - parts * apart * len(ends), ends[-1] + parts * apart * len(ends), apart)
        ticks = ticks[np.abs(ticks[:, None] - ends[None, :]).min(axis=1) > apart / 4]
        # One that ended right behind a window's begin may have passed unseen.
        inside = [(ticks > one.begin_ns / 1e9 + apart / 4) & (ticks < one.end_ns / 1e9) for one in reads.windows]
        if not np.any(inside):
            return False
    return True


def _alike(reads: Reads, period_s: float) -> Table | None:
    """[n, 2] begin and end of the stalls; None where one is longer than another by more than ALIKE of the period."""
    rows = reads.stalled[:, [PAUSE["begin_ns"], PAUSE["end_ns"]]]
    longer_s = float(np.ptp(_length_s(reads.stalled)))
    return rows if longer_s <= ALIKE * period_s else None


# -- tails -------------------------------------------------------------------------------------------------


def _wait_for_all(reads: Reads, storage: StorageFacts) -> bool:
    """Whether slow reads waited for what all readers share, and not each for its own file. Of one reader the distance
    between them tells, or the probe, whose other readers get little more."""
    if reads.readers == 1:
        growth, in_slices = growth_per_doubling(storage.ceiling), _in_slices(reads)
        return (growth is not None and growth < LATENCY_PER_DOUBLING) if in_slices is None else in_slices
    return _part_in(reads, reads.shared, slowest_part(reads.histogram)[1] / 2) >= SHARED


def _in_slices(reads: Reads) -> bool | None:
    """Whether the slow reads of one reader end at whole multiples of one distance, as those do that wait for the next
    slice of a capped rate; False where they last far more evenly than they come, as files do that are slow themselves.
    None: neither, or they are too few."""
    least_ns = slowest_part(reads.histogram, max(TAIL_SHARES))[1] * 1e9 / 2
    told = [one.judged[_file_ns(one.judged) >= least_ns] for one in reads.windows]
    slow = [rows for rows in told if len(rows) < MOST_SLOWEST]  # else there were more, of which it has the longest
    apart = np.concatenate(
        [np.zeros(0), *(np.diff(np.sort(rows[:, READ["begin_ns"]] + _file_ns(rows))) for rows in slow)]
    )
    if len(apart) < LEAST_BEHIND or not np.median(apart) > 0:
        return None
    if _last_more_evenly(np.concatenate([_file_ns(rows) for rows in slow]) / 1e9, apart / 1e9):
        return False
    whole = _off_multiples(apart) <= SLICE_OFF
    return True if len(apart) >= LEAST_SLICES and whole.mean() >= IN_SLICES else None


def rationed(reads: Reads, storage: StorageFacts) -> bool:
    """Whether the storage's rate is capped: it stands still, for a moment and for all readers, most of the time."""
    length_s = _length_s(reads.shared)
    many = len(length_s) > 0 and length_s.max() <= ONE_PAUSE * length_s.sum()  # one long pause is no slice
    if not many or not _wait_for_all(reads, storage):
        return False
    # A window has more slices than pauses that were kept; its histogram holds the reads that waited for all of them.
    num, mean_s = above(reads.histogram, slowest_part(reads.histogram)[1] * 1e9 / 2)
    waited_s = max(float(length_s.sum()), num * mean_s / reads.readers)
    return waited_s >= RATIONED_PART * reads.seconds


def tail(reads: Reads, memory: Reads | None, storage: StorageFacts, beside: Table | None = None) -> Tail | None:
    """The few slow files; None where no part of the reads is much slower than the rest, or all readers waited at once,
    or for their part of a capped rate.

    Args:
        memory: reads of the same loader from memory.
        storage: with what its probe found.
        beside: pauses of the whole storage, or of the run, whose reads do not count.
    """
    at_once = beside is None and _wait_for_all(reads, storage)
    if at_once and reads.readers > 1:
        return None
    histogram, rows = reads.histogram, reads.slow_rows
    if beside is not None:
        inside = reads.lie_in(beside)
        if inside.all():
            return None
        histogram, rows = without(histogram, rows[inside]), rows[~inside]
    slow = _slow_part(histogram, TAIL_SHARES)
    if slow is None:
        return None
    slow_part, share, mean_s = slow
    if memory is not None and mean_s < MORE_THAN_MEMORY * slowest_part(memory.histogram, slow_part)[1]:
        return None
    rows = rows[_file_ns(rows) / 1e9 >= mean_s / 2]
    if not len(rows):
        return None
    times = Counter(rows[:, READ["image"]].tolist())
    folder, part = _folder(rows, storage)
    examples = [
        SlowFile(storage.slow_files[str(image)], _mean_s(rows[rows[:, READ["image"]] == image]), num)
        for image, num in times.most_common(MOST_FILES)
        if str(image) in storage.slow_files
    ]
    num, slow_s = above(histogram, mean_s * 1e9 / 2)
    again = same_files(len(rows), len(times), storage.num_files, num / reads.num * storage.num_files)
    if at_once and not again and folder is None:  # of one reader; the probe's noise makes no files slow again
        return None
    capped = reads.readers > 1 and bound_by(storage.ceiling, reads.readers) == "bandwidth"
    if capped and again is False and folder is None:  # others each time, of a rate that all readers share
        return None
    return Tail(share, slow_s, quantile(histogram, "file", 0.5), again, tuple(examples), folder, part, slow_part)


def _is_of_the_run(few: Tail, reads: Reads, segments: Sequence[Segment]) -> bool:
    """Whether the slow reads waited while the run itself stood still: one reader in a read looks like a slow file. Not
    where the same files, or those of one folder, are slow each time."""
    if few.same_files or few.folder is not None:
        return False
    rows = reads.slow_rows[_as_slow(reads.slow_rows, few)]
    rows = rows[np.argsort(rows[:, READ["begin_ns"]])]
    begins, ends = rows[:, READ["begin_ns"]], rows[:, READ["begin_ns"]] + _file_ns(rows)
    first = np.flatnonzero(np.append(True, begins[1:] > np.maximum.accumulate(ends)[:-1]))  # of those at once
    num = np.diff(first, append=len(rows))
    columns = {"begin_ns": begins[first], "end_ns": np.maximum.reduceat(ends, first), "waiting": num, "released": num}
    waits = np.stack([columns[name] for name in PAUSE_FIELDS], axis=1)
    return are_of_the_run(waits, reads.seconds, segments)


def without(histogram: Table, rows: Table) -> Table:
    """The histogram without some of its files. Their opens and reads stay."""
    left, times = histogram.copy(), _file_ns(rows)
    bins = np.searchsorted(READ_BIN_EDGES_NS, times, side="right")
    np.subtract.at(left[:, READ_BIN["files"]], bins, 1)
    np.subtract.at(left[:, READ_BIN["file_ns"]], bins, times)
    return left


def same_files(num_slow: int, num_different: int, num_files: int, slow_files: float) -> bool | None:
    """Whether it is the same files that are slow each time they are read; None where too few were read again.

    `num_slow` slow reads were of `num_different` files. S reads drawn from N files at random are repeats
    S − N·(1 − e^(−S ÷ N)) times (Poisson): N is the number of all files where any of them may be slow, and `slow_files`
    (the part of the reads that is slow, of all files) where it is the same ones each time.
    """
    by_chance, if_same = (num_slow + num * np.expm1(-num_slow / num) for num in (num_files, max(slow_files, 1.0)))
    repeats = num_slow - num_different
    if if_same < AGAIN or if_same < min(2 * by_chance, by_chance + FAR * (by_chance + 1.0) ** 0.5):
        return None
    return bool(repeats > (by_chance + if_same) / 2)


def _folder(rows: Table, storage: StorageFacts) -> tuple[str | None, float | None]:
    """(the folder that holds most of the slow reads, its part of them), where it stands out: the smallest such."""
    held = held_by_folders(rows, storage)
    for folder, num in sorted(held.items(), key=lambda item: (-item[1], storage.slow_folders[item[0]])):
        part, of_all = num / len(rows), storage.slow_folders[folder] / storage.num_files
        if num >= AGAIN and part >= FOLDER_PART and part >= FOLDER_EXCESS * of_all:
            return folder, part
    return None, None


def held_by_folders(rows: Table, storage: StorageFacts) -> Counter[str]:
    """How many of the reads each folder holds, right below the root or around the file, whose size is known."""
    held = Counter[str]()
    for image in rows[:, READ["image"]].tolist():
        name = storage.slow_files.get(str(image), "")
        held.update({name.split("/", 1)[0], name.rpartition("/")[0]} & storage.slow_folders.keys())
    return held


# -- all reads ---------------------------------------------------------------------------------------------


def figures(reads: Reads) -> ReadFigures:
    """How long files took, for the record."""
    opens, taken = (
        Percentiles(*(quantile(reads.histogram, what, part) for part in (0.5, 0.95, 0.99))) for what in ("open", "read")
    )
    slowest = float(_file_ns(reads.slow_rows[:1])[0] / 1e9)
    return ReadFigures(reads.num, mean(reads.histogram, "open"), mean(reads.histogram, "read"), opens, taken, slowest)


def opens_cost(reads: Reads) -> bool:
    """Whether it is opening the files that takes their time."""
    open_s = mean(reads.histogram, "open")
    return open_s >= LEAST_OPEN_S and open_s >= OPEN_PART * mean(reads.histogram, "file")


def opens_cost_most(reads: Reads, stood: Stalls | None, few: Tail | None) -> bool:
    """Whether opening the other files takes more of the time of all than those that waited through a stall, or are
    slow themselves: where both are there, what takes most is what the storage is slow by."""
    uneven = np.zeros(len(reads.slow_rows), dtype=np.bool_)
    if stood is not None:
        uneven |= reads.lie_in(reads.stalled)
    if few is not None:
        uneven |= _as_slow(reads.slow_rows, few)
    rows, histogram = reads.slow_rows[uneven], reads.histogram
    opened_ns = int(histogram[:, READ_BIN["open_ns"]].sum() - rows[:, READ["open_ns"]].sum())
    others_ns = int(histogram[:, READ_BIN["file_ns"]].sum() - _file_ns(rows).sum())
    num_opens = int(histogram[:, READ_BIN["opens"]].sum()) - len(rows)
    takes_time = num_opens > 0 and min(opened_ns / num_opens / 1e9, reads.typical_s) >= LEAST_OPEN_S
    return takes_time and opened_ns >= OPEN_PART * others_ns and opened_ns > int(_file_ns(rows).sum())


def fetch_saw(real: Reads, fetch: Reads | None, stood: Stalls | None, few: Tail | None) -> bool | None:
    """Whether `fetch` met the stalls or slow files that `real` met, as often as it should; None where `real` met none,
    or `fetch` does not tell."""
    if fetch is None or (stood is None and few is None):
        return None
    if stood is not None:
        seen = fetch.stalled
        stalled_s = float(_length_s(seen).sum())
        enough = fetch.seconds >= stood.period_s and len(seen) > 0
        return enough and stalled_s >= SEEN_PART * stood.part * fetch.seconds
    assert few is not None
    slow_ns = few.slow_s * 1e9 / 2
    met, had = (above(one.histogram, slow_ns)[0] for one in (fetch, real))
    expected = had / real.num * fetch.num
    return expected >= LEAST_EXPECTED and met >= SEEN_PART * expected


def above(histogram: Table, ns: float) -> tuple[int, float]:
    """(files that took at least so long, by their bin's mean; their mean seconds)."""
    counts, sums = histogram[:, READ_BIN["files"]], histogram[:, READ_BIN["file_ns"]]
    slow = sums >= ns * np.maximum(counts, 1)
    num = int(counts[slow].sum())
    return num, float(sums[slow].sum()) / max(num, 1) / 1e9


@dataclass(frozen=True)
class Slowness:
    """What makes a run's storage slow."""

    kind: StorageSlowness | None
    latency_of: Literal["open", "read"] | None
    reads: ReadFigures | None
    tail: Tail | None
    stalls: Stalls | None
    fetch_saw: bool | None
    real: Reads | None
    """The reads of the arm `real`."""
    fetch: Reads | None = None
    missed: tuple[float, float] | None = None
    """Part of the time in which the storage stood still, and that of the windows of `real`, where these met too little
    of it."""
    standstills: Standstills | None = None


def slowness(recording: Recording, readers: int, *, idle: bool = False) -> Slowness:
    """By the reads of the arms and the storage probe. `idle`: the storage did nothing, so that a slow read waited for a
    processor, not for a file."""

    def of(*arms: Arm) -> Reads | None:
        return reads_of([one.reads for arm in arms for one in recording.of(arm)], readers)

    storage = recording.facts.storage
    bound = bound_by(storage.ceiling, readers)
    real, fetch = of(Arm.REAL), of(Arm.FETCH)
    if real is None:
        return _by_fetch(None if idle else fetch, bound, recording)
    files = of(Arm.REAL, Arm.FREE, Arm.FETCH)
    own, stood, few = (None, None, None) if idle else _uneven(real, of(Arm.RAM), recording, files)
    if not idle and own is None and stood is None and few is None and rationed(real, storage):
        bound = "bandwidth"
    kind, latency_of = _kind(real, stood, few, bound)
    return Slowness(
        kind,
        latency_of,
        figures(real),
        few,
        stood,
        fetch_saw(real, fetch, stood, few),
        real,
        fetch,
        None if idle else missed(recording, readers),
        _standstills(stood, files or real),
    )


def _uneven(
    reads: Reads, memory: Reads | None, recording: Recording, rhythm: Reads | None = None
) -> tuple[Table | None, Stalls | None, Tail | None]:
    """(pauses that are the run's own, stalls, slow files). `rhythm`: as for `stalls`."""
    own = _of_the_run(reads, recording.segments)
    stood = None if own is not None else stalls(reads, rhythm)
    beside = reads.stalled if stood is not None else own if reads.readers > 1 else None  # one reader's are its reads
    few = tail(reads, memory, recording.facts.storage, beside)
    is_own = few is not None and _is_of_the_run(few, reads, recording.segments)
    return own, stood, None if is_own else few


def _by_fetch(fetch: Reads | None, bound: Bound | None, recording: Recording) -> Slowness:
    """Of a loader that does not tell when it reads a file: what `fetch` met, which reads the same files alone. There
    is no memory to compare with, so that slow files must be slow for what a processor may do, too."""
    if fetch is None:
        return Slowness(bound, None, None, None, None, None, None)
    reads = _with_steps(fetch, recording.of(Arm.REAL))
    own, stood, few = _uneven(fetch, None, recording, reads)
    if few is not None and few.slow_s < LEAST_SLOW_S:
        few = None
    if own is None and stood is None and few is None and rationed(fetch, recording.facts.storage):
        bound = "bandwidth"
    kind, latency_of = _kind(fetch, stood, few, bound)
    if latency_of == "open" and recording.facts.storage.num_containers is not None:
        kind, latency_of = bound, None  # `fetch` opens containers, which a loader need not
    return Slowness(kind, latency_of, None, few, stood, None, None, fetch, standstills=_standstills(stood, reads))


def _standstills(stood: Stalls | None, rhythm: Reads) -> Standstills | None:
    """What is told of the stalls by all reads that told their period."""
    if stood is None:
        return None
    return Standstills(stood.period_s, _alike(rhythm, stood.period_s) if stood.regular else None)


def _with_steps(fetch: Reads, real: Sequence[Segment]) -> Reads:
    """`fetch` and, where it met standstills, those that the device met in windows of `real`, where it did not wait far
    more often than they come. A window without such waits tells nothing: its queue may have bridged them."""
    if not len(fetch.stalled):
        return fetch
    least_s = max(LONG_PAUSE_S, HELD_UP * float(np.percentile(_length_s(fetch.stalled), 75)))
    waits = [one for segment in real if (one := _held_up(segment, fetch.readers, least_s)) is not None]
    held = [one for one in waits if len(one.pauses)]
    expected = len(fetch.stalled) / fetch.seconds * sum(one.end_ns - one.begin_ns for one in waits) / 1e9
    usual = sum(len(one.pauses) for one in held) <= MOST_HELD * expected + 1
    return replace(fetch, windows=(*fetch.windows, *held)) if usual else fetch


def _held_up(segment: Segment, readers: int, least_s: float) -> ReadTimes | None:
    """When the device of a window waited for data for so long, by its steps; None where it has no step. Batches that
    were ready make a standstill seem shorter."""
    values = window_quantities(segment)
    if values is None:
        return None
    returned = segment.steps[max(segment.num_warmup, 1) - 1 :, STEP["returned_ns"]]
    long = np.flatnonzero(values["stall"] >= least_s)
    ends = returned[1:][long]
    columns = {"begin_ns": ends - (values["stall"][long] * 1e9).astype(np.int64), "end_ns": ends}
    pauses = np.stack([columns.get(name, np.full(len(long), readers)) for name in PAUSE_FIELDS], axis=1)
    histogram = np.zeros((len(READ_BIN_EDGES_NS) + 1, len(READ_BIN)), dtype=np.int64)
    return ReadTimes(histogram, np.zeros((0, len(READ)), dtype=np.int64), pauses, int(returned[0]), int(returned[-1]))


def _of_the_run(real: Reads, segments: Sequence[Segment]) -> Table | None:
    """The pauses of all readers if these are the run's own: the long ones tell, where there are any. None: the
    storage's, or there are none."""
    tell = real.stalled if len(real.stalled) else real.shared
    return real.shared if are_of_the_run(tell, real.seconds, segments) else None


def _kind(
    reads: Reads, stood: Stalls | None, few: Tail | None, bound: Bound | None
) -> tuple[StorageSlowness | None, Literal["open", "read"] | None]:
    """(the kind, of what it is the latency)"""
    if stood is not None or few is not None:
        if opens_cost_most(reads, stood, few):
            return "latency", "open"
        return "stalls" if stood is not None else "tail", None
    opening = opens_cost(reads)
    kind = bound or ("latency" if opening else None)
    return kind, ("open" if opening else "read") if kind == "latency" else None

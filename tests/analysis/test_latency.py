"""Tails and stalls, against readers whose slow files, stalls and rates are set; the queue against closed forms."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from loaderbench.analysis.latency import (
    TAIL_SHARES,
    Reads,
    fetch_saw,
    mean,
    opens_cost,
    quantile,
    rationed,
    same_files,
    slowest_part,
    slowness,
    stalls,
    tail,
    window_wanted_s,
)
from loaderbench.analysis.model import Model
from loaderbench.analysis.quantities import Quantity
from loaderbench.analysis.read_queue import Queue, spread_of_met
from loaderbench.analysis.record import judged_run
from loaderbench.analysis.standstills import Standstills, chance_of_so_regular, equal_parts, evened, whole_periods
from loaderbench.analysis.steps import arm_steps, window_quantities
from loaderbench.analysis.verdict import attribute
from loaderbench.cases.arms import Arm
from loaderbench.plugins import LOADERS
from loaderbench.recording.facts import (
    STEP,
    STEP_FIELDS,
    CeilingProbe,
    CpuWindow,
    ReadTimes,
    Recording,
    Segment,
    StorageFacts,
    Table,
)
from loaderbench.recording.record import Stalls
from loaderbench.running.read_times import read_times
from tests.analysis.event_model import Pipeline, measure
from tests.analysis.judging import join
from tests.made import make_case, make_facts, make_loader, make_run, make_segment, rates_probe

NUM_FILES = 2000
STORAGE = StorageFacts(
    NUM_FILES, None, None, None,
    slow_files={str(number): f"class{number // 200}/{number}.jpg" for number in range(NUM_FILES)},
    slow_folders={f"class{number}": 200 for number in range(10)},
)  # fmt: skip
Slow = Callable[[int, np.random.Generator], float]


def nothing(file: int, random: np.random.Generator) -> float:
    return 0.0


def same(file: int, random: np.random.Generator) -> float:
    """1 % of the files, spread over all classes, take 400 ms more."""
    return 0.4 if file % 100 == 7 else 0.0


def others(file: int, random: np.random.Generator) -> float:
    """1 % of the reads take 400 ms more, whatever the file."""
    return 0.4 if random.random() < 0.01 else 0.0


def one_folder(file: int, random: np.random.Generator) -> float:
    """A tenth of the files of class 3 take 400 ms more."""
    return 0.4 if file // 200 == 3 and file % 10 == 0 else 0.0


def readers_at_work(
    readers: int, seconds: float, *, slow: Slow = nothing, stall: tuple[float, float] | None = None, begin: float = 0.0,
    typical_s: float = 0.002, open_s: float = 0.0002, decode_s: float = 0.004, seed: int = 0,
) -> Table:  # fmt: skip
    """Rows of READ_FIELDS of `readers` that each read a file, decode it, and so on. In a stall of (period, length), at
    the end of each period, no read ends."""
    random, rows = np.random.default_rng(seed), []
    free = [begin + random.uniform(0, decode_s) for _ in range(readers)]
    heapq.heapify(free)
    while (at := heapq.heappop(free)) < begin + seconds:
        file = int(random.integers(NUM_FILES))
        end = at + open_s + typical_s * random.lognormal(0, 0.3) + slow(file, random)
        if stall is not None:
            period, length = stall
            if end % period >= period - length:
                end = (end // period + 1) * period + random.uniform(0, 1e-3)
        rows.append([file, int(at * 1e9), int(open_s * 1e9), int((end - at - open_s) * 1e9), 100_000])
        heapq.heappush(free, end + decode_s * random.lognormal(0, 0.2))
    return np.array(rows, dtype=np.int64)


def files_that_take(times_ns: NDArray[np.float64], apart_ns: int = 1) -> Table:
    """Rows of READ_FIELDS of files that take so long, of which one begins after another."""
    num = len(times_ns)
    columns = [np.arange(num) % NUM_FILES, np.arange(num) * apart_ns, np.zeros(num), times_ns, np.ones(num)]
    return np.stack(columns, 1).astype(np.int64)


def reads(readers: int, *tables: Table) -> Reads:
    found = [read_times(table) for table in tables]
    return Reads(tuple(one for one in found if one is not None), readers)


def windows_of(*told: ReadTimes | None) -> list[Segment]:
    return [make_segment(Arm.REAL, np.zeros((2, len(STEP_FIELDS)), dtype=np.int64), reads=one) for one in told]


# -- stalls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readers", [2, 4, 16])
@pytest.mark.parametrize(("period", "length"), [(2.7, 0.8), (1.1, 0.3), (5.0, 2.0)])
def test_a_storage_that_stands_still_is_seen_with_its_period_and_length(
    readers: int, period: float, length: float
) -> None:
    # given windows of two periods and a half, with pauses between them
    windows = [
        readers_at_work(readers, 2.5 * period, stall=(period, length), begin=begin, seed=int(begin))
        for begin in (0.0, 4.3 * period, 9.1 * period)
    ]
    found = stalls(reads(readers, *windows))
    assert found is not None
    assert found.period_s == pytest.approx(period, rel=0.02)
    assert found.length_s == pytest.approx(length, rel=0.05)
    assert found.regular
    assert found.part == pytest.approx(length / period, rel=0.3)  # a window of 2.5 periods holds 2 or 3


@pytest.mark.parametrize(("begins", "regular"), [((0.5, 3.9, 8.4), True), ((1.9, 6.5, 11.1), False)])
def test_the_period_of_stalls_of_which_no_window_held_two(begins: tuple[float, ...], regular: bool) -> None:
    # given one stall in each window; windows that are short may have missed some between them
    seconds = (4.0, 4.0, 4.4) if regular else (0.9, 0.9, 0.9)
    windows = [
        readers_at_work(2, length, stall=(4.6, 1.7), begin=begin, seed=number)
        for number, (begin, length) in enumerate(zip((b + 2.5 for b in begins), seconds, strict=True))
    ]
    found = stalls(reads(2, *windows))
    assert found is not None and found.num == 3
    assert found.regular is regular
    if regular:
        assert found.period_s == pytest.approx(4.6, rel=0.01)


@pytest.mark.parametrize("readers", [2, 4, 8, 16])
@pytest.mark.parametrize("slow", [nothing, same, others])
def test_slow_files_alone_are_no_stalls_however_many_are_slow_at_once(readers: int, slow: Slow) -> None:
    for seed in range(4):
        for decode_s in (0.0002, 0.01):
            assert stalls(reads(readers, readers_at_work(readers, 6, slow=slow, decode_s=decode_s, seed=seed))) is None


def test_one_reader_tells_a_stall_by_its_rhythm_alone() -> None:
    regular = reads(1, readers_at_work(1, 20, stall=(2.7, 0.8)))
    assert stalls(regular) is not None
    assert stalls(reads(1, readers_at_work(1, 20, slow=others))) is None


@pytest.mark.parametrize("part", [0.01, 0.02, 0.05])
def test_slow_files_that_one_reader_meets_one_behind_the_other_are_no_stalls(part: float) -> None:
    # given so many of them that reading is hardly anything else: they end 0.3 to 0.5 s apart
    def slow(file: int, random: np.random.Generator) -> float:
        return 0.3 if random.random() < part else 0.0

    for seed in range(20):
        windows = [
            readers_at_work(1, 3.5, slow=slow, begin=7.3 * number, seed=100 * seed + number, decode_s=0.002)
            for number in range(3)
        ]
        assert stalls(reads(1, *windows)) is None
    # and where they are standstills at such distances, they are told
    windows = [readers_at_work(1, 3.5, stall=(0.39, 0.3), begin=7.3 * number, decode_s=0.002) for number in range(3)]
    assert stalls(reads(1, *windows)) is not None


@pytest.mark.parametrize("slow_s", [0.05, 0.3])
def test_slow_files_that_alone_take_one_reader_s_time_are_neither_stalls_nor_a_cap(slow_s: float) -> None:
    # given one of fifty files, read by a thread that does nothing else: they end at distances that hardly differ
    def slow(file: int, random: np.random.Generator) -> float:
        return slow_s if random.random() < 0.02 else 0.0

    for seconds in (2.0, 5.0):
        for seed in range(20):
            table = readers_at_work(1, seconds, slow=slow, typical_s=1e-4, open_s=5e-5, decode_s=1e-5, seed=seed)
            found = reads(1, table)
            assert stalls(found) is None and not rationed(found, STORAGE)
            for storage in (STORAGE, replace(STORAGE, ceiling=rates_probe(8.5e6, 8.4e6, 8.6e6))):
                assert tail(found, None, storage) is not None
    # standstills that leave as little between them are told
    assert stalls(reads(1, readers_at_work(1, 5.0, stall=(0.36, 0.30), typical_s=1e-4, decode_s=1e-5))) is not None


def test_too_few_stalls_to_matter_are_none() -> None:
    assert stalls(reads(4, readers_at_work(4, 60, stall=(25.0, 0.3)))) is None


def test_a_window_must_hold_two_periods_or_some_slow_files() -> None:
    first = read_times(readers_at_work(4, 3.5, stall=(2.7, 0.8)))  # one stall of it: how often it comes is a guess
    again = read_times(readers_at_work(4, 6, stall=(2.7, 0.8), begin=9.0))
    assert window_wanted_s(windows_of(first), 4) > 5
    assert window_wanted_s(windows_of(first, again), 4) == pytest.approx(5.4, rel=0.1)
    few = read_times(readers_at_work(4, 4, slow=same))
    rate = (readers_at_work(4, 4, slow=same)[:, 3] > 2e8).sum() / 4
    assert window_wanted_s(windows_of(few), 4) == pytest.approx(8 / rate, rel=0.2)
    assert window_wanted_s(windows_of(read_times(readers_at_work(4, 4)), None), 4) == 0.0
    assert window_wanted_s(windows_of(None), 4) == 0.0


def test_slow_files_ask_for_longer_windows_though_ordinary_reads_are_slow_too() -> None:
    def a_little_slow(file: int, random: np.random.Generator) -> float:
        return 0.09 if random.random() < 0.013 else 0.0

    rows = readers_at_work(2, 12, slow=a_little_slow, typical_s=0.0035)
    windows = read_times(rows)
    assert windows is not None
    assert 0.15 < slowest_part(windows.histogram)[0] < TAIL_SHARES[0.01]  # it takes more to be a tail by these
    assert window_wanted_s(windows_of(windows), 2) == pytest.approx(8 / ((rows[:, 3] > 4.5e7).sum() / 12), rel=0.2)
    # given files whose times are widely spread, or delays as processes have them that wait for a processor: none
    spread = read_times(readers_at_work(2, 12, slow=lambda _, random: 0.002 * random.lognormal(0, 1)))
    hiccups = read_times(readers_at_work(2, 12, slow=lambda _, random: 0.02 * (random.random() < 0.03)))
    assert window_wanted_s(windows_of(spread), 2) == window_wanted_s(windows_of(hiccups), 2) == 0.0


def test_windows_shorter_than_a_period_do_not_count_where_there_are_longer_ones() -> None:
    def window(arm: Arm, seconds: float) -> Segment:
        table = np.zeros((2, len(STEP_FIELDS)), dtype=np.int64)
        table[1, 1] = int(seconds * 1e9)
        return make_segment(arm, table)

    short, long, host, fetch = window(Arm.REAL, 1), window(Arm.REAL, 6), window(Arm.HOST, 1), window(Arm.FETCH, 1)
    assert whole_periods([short, long, host, fetch], 2.7) == [long, host, fetch]
    assert whole_periods([short, host], 2.7) == [short, host]


def steps_over_stalls(
    period: float, length: float, seconds: float, phase: float, random: np.random.Generator
) -> tuple[Segment, float]:
    """A window of `real` of steps of 40 ms on average that stand still for the last `length` of each period, and the
    mean step's true length."""
    worked = np.cumsum(0.040 * random.lognormal(-(0.15**2) / 2, 0.15, int(seconds / 0.02)))
    ends = phase + worked + length * np.floor((phase + worked) / (period - length))  # each stall is as much later
    ends = ends[: np.searchsorted(ends, ends[0] + seconds, side="right") + 1]
    table = np.zeros((len(ends), len(STEP_FIELDS)), dtype=np.int64)
    table[:, [STEP["called_ns"], STEP["returned_ns"]]] = (ends * 1e9).astype(np.int64)[:, None]
    table[:, STEP["done_ns"]] = -1
    return make_segment(Arm.REAL, table), 0.040 / (1 - length / period)


@pytest.mark.parametrize(("period", "length"), [(4.6, 1.7), (1.8, 0.6), (3.1, 0.4)])
@pytest.mark.parametrize(("periods", "least_held"), [(1.85, 0.75), (2.0, 0.9), (2.5, 0.9), (3.7, 0.9)])
def test_windows_over_stalls_count_whole_periods(
    period: float, length: float, periods: float, least_held: float
) -> None:
    random, errors, held = np.random.default_rng(3), [], []
    for trial in range(60):
        window, truth = steps_over_stalls(period, length, periods * period, period * trial / 60, random)
        steps = arm_steps([window], Arm.REAL, 2, 0, Standstills(period))
        assert steps is not None
        off = np.log(steps.mean("duration") / truth)
        errors.append(abs(off))
        if len(steps.blocks) > 1:
            held.append(abs(off) <= steps.width.whole)
    # where two periods fit, nothing but the steps' own spread is left, wherever the window began; by all of its steps
    # one of 2.5 periods is up to 17 % off
    assert max(errors) < (0.09 if periods >= 2 else 0.25)
    assert np.mean(held) >= least_held
    assert len(held) >= 50  # the others have no interval


@pytest.mark.parametrize(("period", "length", "periods"), [(4.6, 1.7, 1.75), (4.6, 1.7, 2.4), (1.8, 0.6, 3.7)])
def test_of_stalls_that_are_alike_one_period_tells(period: float, length: float, periods: float) -> None:
    random, held, halfs = np.random.default_rng(4), [], []
    for trial in range(60):
        phase = period * trial / 60
        window, truth = steps_over_stalls(period, length, periods * period, phase, random)
        first = int(phase // period)
        ends = (np.arange(first, first + 12) + 1) * period
        pauses = (np.stack([ends - length, ends], axis=1) * 1e9).astype(np.int64)
        steps = arm_steps([window], Arm.REAL, 2, 0, Standstills(period, pauses))
        assert steps is not None and len(steps.blocks) == 4
        held.append(abs(np.log(steps.mean("duration") / truth)) <= steps.width.whole)
        halfs.append(steps.width.whole)
    # by the steps between stalls alone: their standard error is 0.15 ÷ √n
    assert np.mean(held) >= 0.9
    assert np.median(halfs) < 0.08


def fed_over_stalls(steps: int, workers: int, device_s: float, batch_s: float, period: float, length: float) -> Table:
    """Steps of a device that workers feed, each batch two places ahead for each of them, written out one by one: no
    batch is worked on in the last `length` of each period."""
    random, free, opened = np.random.default_rng(5), [0.0] * workers, period - length
    called, returned, done = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    for n in range(steps):
        worker = int(np.argmin(free))
        asked = max(free[worker], returned[n - 2 * workers] if n >= 2 * workers else 0.0)
        number, within = divmod(asked, period)
        worked = number * opened + min(within, opened) + batch_s * random.lognormal(-(0.2**2) / 2, 0.2)
        free[worker] = worked + length * (worked // opened)  # each stall before it makes it so much later
        called[n] = max(returned[n - 1], done[n - 2]) if n else 0.0
        returned[n] = max(called[n], free[worker])
        done[n] = max(done[n - 1] if n else 0.0, returned[n]) + device_s
    table = np.zeros((steps, len(STEP_FIELDS)), dtype=np.int64)
    stamps = {"called": called, "returned": returned, "issued": returned, "copy_begin": returned, "copy_end": returned}
    for name, values in {**stamps, "done": done}.items():
        table[:, STEP[f"{name}_ns"]] = (values * 1e9).astype(np.int64)
    table[:, STEP["busy_ns"]] = -1
    return table


@pytest.mark.parametrize(
    ("workers", "device_s", "batch_s", "period", "length"),
    [
        (3, 0.030, 0.040, 3.3, 1.2),
        (2, 0.035, 0.030, 1.8, 0.6),
        (3, 0.040, 0.060, 2.2, 0.9),
        (2, 0.030, 0.055, 1.8, 0.6),
    ],
)
@pytest.mark.parametrize("periods", [0.96, 1.0, 1.3, 2.0, 2.4])
def test_what_a_device_works_on_while_the_storage_stands_still_is_no_spread(
    workers: int, device_s: float, batch_s: float, period: float, length: float, periods: float
) -> None:
    num = int(300 * period / device_s)
    table = fed_over_stalls(num, workers, device_s, batch_s, period, length)
    ended, returned = (table[:, STEP[name]] / 1e9 for name in ("done_ns", "returned_ns"))
    truth = (ended[-1] - ended[num // 10]) / (num - 1 - num // 10)
    held, wide = [], []
    for trial in range(60):
        begin = (30 + trial + trial / 60) * period
        first, last = np.searchsorted(returned, [begin, begin + periods * period])
        ends = (np.arange(25 + trial, 40 + trial)) * period
        pauses = (np.stack([ends - length, ends], axis=1) * 1e9).astype(np.int64)
        window = make_segment(Arm.REAL, table[first : last + 1])
        steps = arm_steps([window], Arm.REAL, workers, 0, Standstills(period, pauses))
        assert steps is not None
        held.append(abs(np.log(steps.mean("duration") / truth)) <= steps.width.whole)
        wide.append(steps.width.whole)
    # a batch that was made before takes its usual time; the first of four blocks held the standstill and more such
    # steps than the others, so that half-widths of 0.12 to 0.53 came of one period
    assert np.mean(held) >= 0.9
    assert np.median(wide) < 0.1


def test_evened_steps_keep_their_means() -> None:
    window, _ = steps_over_stalls(4.6, 1.7, 9.3, 0.4, np.random.default_rng(1))
    values = window_quantities(window)
    assert values is not None
    pauses = (np.array([[2.9, 4.6], [7.5, 9.2]]) * 1e9).astype(np.int64)
    found = evened(values, window, pauses)
    for name in ("duration", "stall", "wait"):
        assert found[name].mean() == pytest.approx(values[name].mean())
    # what stood still 1.7 s is no longer than the others
    assert values["duration"].max() > 1.7 and found["duration"].max() < 0.2


@pytest.mark.parametrize("num", [3, 4, 6])
def test_regular_by_chance(num: int) -> None:
    # ends at random seem regular no more often than is said
    random = np.random.default_rng(num)
    chances = [chance_of_so_regular(np.sort(random.uniform(0, num, num)), 1.0) for _ in range(4000)]
    for limit in (0.01, 0.05, 0.3):
        assert np.mean(np.array(chances) <= limit) <= 1.3 * limit
    # and those that are do
    assert chance_of_so_regular(np.arange(num) + random.uniform(0, 1e-3, num), 1.0) < 0.01
    assert chance_of_so_regular(np.array([1.0, 2.0]), 1.0) == 1.0


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_whole_periods_do_not_cut_the_bursts_of_workers(lanes: int) -> None:
    # given workers that all hand over within some ms every 2 s, four batches a second with eight of them
    ends = np.array([2.0 * number + 0.001 * lane for number in range(6) for lane in range(lanes)])
    table = np.zeros((len(ends), len(STEP_FIELDS)), dtype=np.int64)
    table[:, [STEP["called_ns"], STEP["returned_ns"]]] = (ends * 1e9).astype(np.int64)[:, None]
    table[:, STEP["done_ns"]] = -1
    window = make_segment(Arm.REAL, table, num_warmup=lanes)
    steps = arm_steps([window], Arm.REAL, lanes, 0, Standstills(4.4))
    assert steps is not None
    assert steps.mean("duration") == pytest.approx(2.0 / lanes, rel=0.01)
    assert all(num % lanes == 0 for num in steps.blocks.steps)


def test_a_window_over_stalls_that_is_shorter_than_a_round_of_the_workers_is_one_block() -> None:
    window, _ = steps_over_stalls(4.6, 1.7, 9.3, 0.3, np.random.default_rng(1))
    window.steps = window.steps[:6]
    pauses = (np.array([[2.9, 4.6], [7.5, 9.2]]) * 1e9).astype(np.int64)
    for stood in (Standstills(4.6), Standstills(0.1), Standstills(0.1, pauses)):
        steps = arm_steps([window], Arm.REAL, 8, 0, stood)
        assert steps is not None and (len(steps.blocks), steps.num_steps) == (1, 5)


def test_a_window_shorter_than_two_periods_is_one_block_or_two_halves() -> None:
    for periods, num in ((1.5, 1), (1.85, 2)):
        window, _ = steps_over_stalls(4.6, 1.7, periods * 4.6, 0.3, np.random.default_rng(1))
        starts = equal_parts(window, 4.6)
        assert len(starts) == num and starts[0] == 0


# -- tails -------------------------------------------------------------------------------------------------


def test_the_share_of_the_slowest_hundredth_follows_from_how_many_are_slow() -> None:
    # given 990 reads of 2 ms and 10 of 400 ms
    table = np.array([[number, number, 0, 400e6 if number < 10 else 2e6, 1] for number in range(1000)], dtype=np.int64)
    found = read_times(table)
    assert found is not None
    share, mean_s = slowest_part(found.histogram)
    assert share == pytest.approx(4.0 / (4.0 + 1.98))
    assert mean_s == pytest.approx(0.4)
    assert quantile(found.histogram, "file", 0.5) == pytest.approx(0.002)


def test_exponential_times_are_no_tail() -> None:
    random = np.random.default_rng(3)
    found = read_times(files_that_take(random.exponential(5e6, 200_000)))
    assert found is not None
    share, _ = slowest_part(found.histogram)
    assert share == pytest.approx(0.01 * (1 + np.log(100)), rel=0.03)
    assert tail(Reads((found,), 4), None, STORAGE) is None


def test_more_than_a_hundredth_of_the_files_may_be_slow() -> None:
    # given 4 % of the reads of 80 ms, the others of 0.8, and readers that go on meanwhile
    windows = read_times(files_that_take(np.where(np.arange(5000) % 25 == 0, 80e6, 0.8e6), apart_ns=5_000_000))
    assert windows is not None
    assert slowest_part(windows.histogram)[0] < TAIL_SHARES[0.01]
    found = tail(Reads((windows,), 4), None, STORAGE)
    assert found is not None
    assert (found.slowest_part, found.share) == (0.05, pytest.approx((200 * 0.08 + 50 * 0.0008) / (16 + 4800 * 0.0008)))
    assert found.slow_s == pytest.approx(0.08)


def test_a_tenth_of_the_files_may_be_slow_and_asks_for_longer_windows() -> None:
    # given one file of ten on a slow storage
    table = files_that_take(np.where(np.arange(4000) % 10 == 0, 400e6, 1e6), apart_ns=5_000_000)
    windows = read_times(table)
    assert windows is not None
    found = tail(Reads((windows,), 4), None, STORAGE)
    assert found is not None
    assert (found.slowest_part, found.slow_s) == (0.10, pytest.approx(0.4))
    assert slowness(recording(SCALING, real=table), 4).kind == "tail"
    # eight slow files in 8 × 10 reads, of which one begins each 5 ms
    assert window_wanted_s(windows_of(windows), 4) == pytest.approx(8 * 10 * 0.005, rel=0.05)


def test_one_long_pause_is_no_capped_rate() -> None:
    # given one standstill of 5 s of a storage whose probe found that more readers get more
    once = readers_at_work(2, 9.0, stall=(20.0, 5.0), begin=12.0)
    assert not rationed(reads(2, once), STORAGE)
    assert slowness(recording(SCALING, real=once), 2).kind == "latency"


def test_widely_spread_times_are_no_tail() -> None:
    random = np.random.default_rng(4)
    found = read_times(files_that_take(2e6 * random.lognormal(0, 1.5, 200_000)))
    assert found is not None
    assert slowest_part(found.histogram, 0.05)[0] == pytest.approx(0.442, rel=0.05)  # 1 − Φ(1.645 − 1.5)
    assert tail(Reads((found,), 4), None, STORAGE) is None


def readers_of_a_capped_disk(
    readers: int, seconds: float, bytes_per_s: float = 10e6, slice_s: float = 0.1
) -> Table:  # fmt: skip
    """Rows of READ_FIELDS of readers of files of 10 kB, from a disk that lets as much through in each slice of time
    as its rate allows; each decodes for half a millisecond between two. In an order at random: the same files each time
    would begin a slice."""
    rows, spent, random = [], Counter[int](), np.random.default_rng(0)
    free = [number * 1e-4 for number in range(readers)]
    heapq.heapify(free)
    while (at := heapq.heappop(free)) < seconds:
        number = int(at / slice_s)
        while spent[number] + 10_000 > bytes_per_s * slice_s:
            number += 1
        spent[number] += 10_000
        end = max(at, number * slice_s) + 2e-4
        file = int(random.integers(NUM_FILES))
        rows.append([file, int(at * 1e9), int(1e5), int((end - at) * 1e9) - 100_000, 10_000])
        heapq.heappush(free, end + 0.0005)
    return np.array(rows, dtype=np.int64)


@pytest.mark.parametrize("readers", [1, 2, 8])
def test_readers_that_wait_for_a_capped_rate_met_no_slow_files(readers: int) -> None:
    found = reads(readers, readers_of_a_capped_disk(readers, 3.0))
    # a probe of four readers that is a third faster by chance: one reader's waits do not tell, those of several do
    capped = replace(STORAGE, ceiling=rates_probe(8.5e6, 8.4e6, 11.4e6))
    scaling = replace(STORAGE, ceiling=rates_probe(1e6, 1.6e6, 3e6))
    assert slowest_part(found.histogram)[0] > (TAIL_SHARES[0.01] if readers < 8 else 0.1)
    assert stalls(found) is None
    for storage in (capped, scaling, STORAGE) if readers > 1 else (capped,):
        assert tail(found, None, storage) is None and rationed(found, storage)
    few = reads(readers, readers_at_work(readers, 20, slow=others))
    assert not rationed(few, scaling) and tail(few, None, scaling) is not None
    assert tail(few, None, STORAGE) is not None  # without a probe, too
    # others each time, of a rate that more readers share, wait for that; the same ones do not
    shared = replace(STORAGE, ceiling=CAPPED)
    assert (tail(few, None, shared) is None) is (readers > 1)  # of one reader the reads themselves tell
    again = tail(reads(readers, readers_at_work(readers, 20, slow=same)), None, shared)
    assert again is not None and again.same_files


@pytest.mark.parametrize("slice_s", [0.01, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("readers", [2, 3, 4, 8])
def test_a_window_holds_more_short_slices_than_there_are_slow_reads_to_keep(readers: int, slice_s: float) -> None:
    for seconds, bytes_per_s in ((1.0, 10e6), (2.7, 10e6), (2.7, 16e6), (10.0, 16e6)):
        found = reads(readers, readers_of_a_capped_disk(readers, seconds, bytes_per_s, slice_s))
        assert tail(found, None, STORAGE) is None
        if found.typical_s < slice_s / 10:  # else most reads wait: what more readers get tells
            assert rationed(found, STORAGE)


def test_one_reader_of_a_capped_disk_is_known_by_its_slices_whatever_the_probe_found() -> None:
    found = reads(1, readers_of_a_capped_disk(1, 3.0))
    for storage in (STORAGE, replace(STORAGE, ceiling=rates_probe(4.6e6, 8.4e6, 11.2e6))):
        assert tail(found, None, storage) is None and rationed(found, storage)
    for seed in range(20):
        few = reads(1, readers_at_work(1, 20, slow=others, seed=seed))
        assert tail(few, None, STORAGE) is not None and not rationed(few, STORAGE)


@pytest.mark.parametrize("slow", [same, one_folder])
def test_one_reader_s_files_that_are_slow_again_are_no_cap_though_the_probe_met_none(slow: Slow) -> None:
    lucky = replace(STORAGE, ceiling=rates_probe(8.5e6, 8.4e6, 8.6e6))
    windows = [readers_at_work(1, 12, slow=slow, begin=20.0 * number, seed=number) for number in range(4)]
    found = tail(reads(1, *windows), None, lucky)
    assert found is not None and (found.same_files or found.folder == "class3")


@pytest.mark.parametrize(("slow", "answer"), [(same, True), (others, False)])
def test_the_same_slow_files_each_time_are_told_from_others(slow: Slow, answer: bool) -> None:
    windows = [readers_at_work(4, 5, slow=slow, begin=10.0 * number, seed=number) for number in range(4)]
    found = tail(reads(4, *windows), None, STORAGE)
    assert found is not None
    assert found.same_files is answer
    assert found.slow_s == pytest.approx(0.4, rel=0.15)
    assert found.share > 0.5
    assert found.folder is None
    if answer:
        assert all(int(one.path.split("/")[1].removesuffix(".jpg")) % 100 == 7 for one in found.files)
        assert found.files[0].num > 1


def test_a_folder_that_holds_the_slow_files_is_named() -> None:
    found = tail(reads(4, readers_at_work(4, 10, slow=one_folder)), None, STORAGE)
    assert found is not None
    assert (found.folder, found.folder_part) == ("class3", 1.0)


def test_files_read_once_do_not_tell_whether_it_is_always_the_same() -> None:
    assert same_files(30, 30, 1_000_000, 10_000) is None
    # given 40 slow reads of 40 slow files of 4000, had they been the same 20 half would be repeats
    assert same_files(40, 40, 4000, 20) is False
    assert same_files(40, 20, 4000, 20) is True
    # of 20 files, all read twice and more, always the same one, or any
    assert same_files(40, 1, 20, 1) is True
    assert same_files(40, 17, 20, 1) is False


def test_a_tail_that_memory_has_too_is_the_processors() -> None:
    few, from_memory = (
        reads(4, readers_at_work(4, 5, slow=same, typical_s=one, seed=seed)) for one, seed in ((0.002, 0), (0.0001, 1))
    )
    assert tail(few, from_memory, STORAGE) is None
    quick = reads(4, readers_at_work(4, 5, typical_s=0.0001, seed=1))
    assert tail(few, quick, STORAGE) is not None


def test_slow_opens_are_told_from_slow_reads() -> None:
    assert opens_cost(reads(4, readers_at_work(4, 3, open_s=0.007, typical_s=0.001)))
    assert not opens_cost(reads(4, readers_at_work(4, 3, open_s=0.001, typical_s=0.007)))


# -- what fetch saw, and the kind ----------------------------------------------------------------------------


def test_fetch_saw_what_real_saw_only_where_it_had_its_part() -> None:
    real = reads(4, readers_at_work(4, 6, slow=same))
    few = tail(real, None, STORAGE)
    assert fetch_saw(real, reads(4, readers_at_work(4, 4, slow=same, decode_s=1e-4, seed=5)), None, few) is True
    assert fetch_saw(real, reads(4, readers_at_work(4, 4, decode_s=1e-4)), None, few) is False
    assert fetch_saw(real, reads(4, readers_at_work(4, 0.05, decode_s=1e-4)), None, few) is False  # too short for any
    assert fetch_saw(real, None, None, few) is None
    assert fetch_saw(real, real, None, None) is None
    still = reads(4, readers_at_work(4, 6, stall=(2.7, 0.8)))
    stood = stalls(still)
    assert fetch_saw(still, reads(4, readers_at_work(4, 6, stall=(2.7, 0.8), seed=9)), stood, None) is True
    assert fetch_saw(still, reads(4, readers_at_work(4, 1.2, stall=(2.7, 0.8))), stood, None) is False


CAPPED, SCALING = (rates_probe(*rates) for rates in ((1e7, 1e7, 1e7, 1e7, 1e7), (1e6, 2e6, 4e6, 8e6, 16e6)))


def recording(probe: CeilingProbe | None = CAPPED, **tables: Table | None) -> Recording:
    steps = np.zeros((2, len(STEP_FIELDS)), dtype=np.int64)
    segments = [
        make_segment(Arm(name), steps, reads=None if table is None else read_times(table))
        for name, table in tables.items()
    ]
    return Recording(segments, replace(make_facts(), storage=replace(STORAGE, ceiling=probe)))


def test_stalls_come_before_slow_files_and_these_before_the_probe() -> None:
    still = recording(real=readers_at_work(4, 8, stall=(2.7, 0.8)))
    assert slowness(still, 4).kind == "stalls"
    assert slowness(recording(SCALING, real=readers_of_a_capped_disk(4, 3.0)), 4).kind == "bandwidth"
    assert slowness(recording(SCALING, real=readers_at_work(4, 8, slow=same)), 4).kind == "tail"
    plain = readers_at_work(4, 4)
    assert slowness(recording(real=plain), 4).kind == "bandwidth"
    assert slowness(recording(None, real=plain), 4).kind is None
    answers = slowness(recording(None, real=readers_at_work(4, 4, open_s=0.007)), 4)
    assert (answers.kind, answers.latency_of) == ("latency", "open")
    late = slowness(recording(SCALING, real=plain), 4)
    assert (late.kind, late.latency_of) == ("latency", "read")


@pytest.mark.parametrize(
    ("uneven", "without"), [({"stall": (6.0, 0.3)}, "stalls"), ({"slow": same}, "tail")], ids=["standstills", "slow"]
)
def test_slow_opens_that_cost_more_than_what_comes_now_and_then_are_what_the_storage_is_slow_by(
    uneven: dict[str, Slow | tuple[float, float]], without: str
) -> None:
    made = readers_at_work(2, 30, open_s=0.006, typical_s=0.001, decode_s=0.001, **uneven)
    for found in (slowness(recording(SCALING, real=made), 2), slowness(recording(None, real=None, fetch=made), 2)):
        assert (found.kind, found.latency_of) == ("latency", "open")
        assert (found.stalls is None) is (without == "tail") and (found.tail is None) is (without == "stalls")
    quick = readers_at_work(2, 30, decode_s=0.001, **uneven)
    assert slowness(recording(SCALING, real=quick), 2).kind == without


def test_a_loader_that_tells_no_reads_opens_the_files_that_fetch_opens() -> None:
    made = recording(None, real=None, fetch=readers_at_work(4, 4, open_s=0.007))
    assert (slowness(made, 4).kind, slowness(made, 4).latency_of) == ("latency", "open")
    storage = replace(made.facts.storage, num_containers=4)
    held = Recording(made.segments, replace(made.facts, storage=storage))
    assert slowness(held, 4).kind is None


@pytest.mark.parametrize("table", [{"slow": same}, {"stall": (2.7, 0.8)}], ids=["slow reads", "standstills"])
def test_of_a_storage_that_did_nothing_no_read_is_slow(table: dict[str, Slow]) -> None:
    """A reader that waits for a processor looks the same."""
    made = recording(real=readers_at_work(4, 8, **table), fetch=readers_at_work(4, 4))
    assert slowness(made, 4).fetch_saw is False
    idle = slowness(made, 4, idle=True)
    assert (idle.kind, idle.stalls, idle.tail, idle.fetch_saw, idle.missed) == ("bandwidth", None, None, None, None)
    assert idle.reads is not None


def test_a_loader_that_tells_no_reads_has_what_fetch_met() -> None:
    still, few = readers_at_work(4, 8, stall=(2.7, 0.8)), readers_at_work(4, 8, slow=same)
    for table, kind in ((still, "stalls"), (few, "tail"), (readers_at_work(4, 4), "latency")):
        made = recording(SCALING, real=None, free=None, fetch=table)
        told = slowness(made, 4)
        # and nothing of what `real` met is made up
        assert (told.kind, told.reads, told.fetch_saw, told.real, told.missed) == (kind, None, None, None, None)
        assert slowness(made, 4, idle=True).kind == "latency"
        assert slowness(beside_quiet(made, (2.7, 0.8)), 4).kind == ("tail" if kind == "tail" else "latency")
    assert slowness(recording(SCALING, real=None, fetch=readers_of_a_capped_disk(4, 3.0)), 4).kind == "bandwidth"
    # given slow reads of some ms, as a busy processor makes them: there is no memory to compare with
    late = readers_at_work(4, 8, slow=lambda *one: same(*one) / 20, typical_s=0.0001)
    assert slowness(recording(SCALING, real=None, fetch=late), 4).kind == "latency"


@pytest.mark.parametrize("tells", [True, False])
def test_slow_files_that_take_all_of_fetch_s_time_are_no_standstills_beside_windows_of_real(tells: bool) -> None:
    # given short windows of `fetch`, in which one reader meets one slow file behind the other, and longer ones of real
    def slow(file: int, random: np.random.Generator) -> float:
        return 0.3 if random.random() < 0.02 else 0.0

    steps = np.zeros((2, len(STEP_FIELDS)), dtype=np.int64)
    for seed in range(20):
        segments = []
        for number in range(4):
            begin, one = 9.1 * number, 10 * seed + number
            table = readers_at_work(1, 2.5, slow=slow, begin=begin, seed=one) if tells else None
            segments.append(make_segment(Arm.REAL, steps, reads=None if table is None else read_times(table)))
            fetched = readers_at_work(
                1, 0.7, slow=slow, typical_s=1e-4, open_s=5e-5, decode_s=1e-5, begin=begin + 5, seed=one + 500
            )
            segments.append(make_segment(Arm.FETCH, steps, reads=read_times(fetched)))
        made = Recording(segments, replace(make_facts(), storage=STORAGE))
        found = slowness(made, 1)
        assert found.stalls is None and found.kind == "tail"


@pytest.mark.parametrize(("loader", "simulated"), [("dali", True), ("webdataset", False)])
def test_a_loader_that_tells_no_reads_has_a_queue_over_the_files_that_fetch_read(loader: str, simulated: bool) -> None:
    table = fed_over_stalls(400, 2, 0.030, 0.040, 2.5, 1.0)
    reading = readers_at_work(2, 6.0, stall=(2.5, 1.0), begin=33.0, typical_s=1e-4, decode_s=1e-5)
    real = make_segment(Arm.REAL, table)
    fetch = make_segment(Arm.FETCH, np.zeros((2, len(STEP_FIELDS)), dtype=np.int64), reads=read_times(reading))
    known = make_loader(num_readers=2, traits=LOADERS.built_in[loader].traits)
    facts = replace(make_facts(), storage=STORAGE, loader=known)
    run = make_run(make_case(loader=loader, workers=3), [real, fetch], facts=facts)
    judged = judged_run(run, run.recording) if run.recording is not None else None
    assert judged is not None and judged.slowness.kind == "stalls"
    found = judged.model.queue
    if not simulated:  # what it reads is not a file for each image
        assert found is None
        return
    # then standstills of 1 s, of which its 2 batches bridge little, are left without preparation
    assert found is not None and found.workers == 2
    assert found.step_s(0.030) == pytest.approx(0.030 * 2.5 / (2.5 - (1.0 - 2.5 * 0.030)), rel=0.05)


def test_a_loader_with_threads_that_only_read_has_their_queue() -> None:
    # given slow files that 16 threads read for two workers
    table = readers_at_work(16, 8, slow=lambda file, random: 0.3 if random.random() < 0.02 else 0.0, typical_s=0.005)
    real = make_segment(Arm.REAL, fed_over_stalls(400, 2, 0.030, 0.040, 2.5, 1.0), reads=read_times(table))
    known = make_loader(num_readers=16, traits=LOADERS.built_in["threaded"].traits)
    facts = replace(make_facts(), storage=STORAGE, loader=known)
    run = make_run(make_case(loader="threaded", workers=2, loader_options={"io_threads": "16"}), [real], facts=facts)
    assert run.recording is not None
    found = judged_run(run, run.recording).model.queue
    assert found is not None and (found.workers, found.io_threads) == (2, 16)


def test_slow_containers_are_counted_among_containers() -> None:
    # given 20 containers of 10,000 images, read a part at a time, of which any may be slow, two parts in a hundred
    random = np.random.default_rng(3)
    rows = []
    begin = 0.0
    for _ in range(2000):
        seconds = 0.3 if random.random() < 0.02 else 0.004
        rows.append([int(random.integers(20)), int(begin * 1e9), 0, int(seconds * 1e9), 1])
        begin += seconds
    names = {str(number): f"shard-{number:04}.tar" for number in range(20)}
    storage = replace(STORAGE, num_images=10_000, slow_files=names, slow_folders={"": 20}, ceiling=SCALING)
    images, containers = (
        tail(reads(2, np.array(rows)), None, replace(storage, num_containers=one)) for one in (None, 20)
    )
    assert images is not None and containers is not None
    assert (images.same_files, images.folder) == (True, "")  # as 20 of 10,000 images they would stand out
    assert (containers.same_files, containers.folder) == (False, None)


def test_a_device_that_waits_for_one_slow_file_behind_the_other_makes_no_rhythm() -> None:
    # given a loader that tells no reads, over slow files that its one reader meets without a pause
    fetch = np.cumsum([0.304, 0.310, 0.315, 0.330, 0.303, 0.307, 0.309])
    rows = [[file, int((12.0 + end - 0.3006) * 1e9), 50_000, 300_550_000, 1] for file, end in enumerate(fetch)]
    between = [
        [100 + file, int((12.0 + end) * 1e9) + 40_000 * file, 5_000, 30_000, 1] for end in fetch for file in range(40)
    ]
    found = reads(1, np.array([*rows, *between], dtype=np.int64))
    # whose device waits for one or two of them at a time, less what was ready, at distances that are as even
    lengths_s = [0.256, 0.275, 0.281, 0.592, 0.291, 0.262, 0.284, 0.574, 0.27]
    apart_s = [0.311, 0.306, 0.318, 0.622, 0.311, 0.308, 0.314, 0.622, 0.311]
    ends = 12.0 + fetch[-1] + 0.311 * 20 + np.cumsum(apart_s)
    columns = [ends - lengths_s, ends, np.full(9, 1e-9), np.full(9, 1e-9)]
    nothing_read = np.zeros_like(found.histogram)
    waits = ReadTimes(
        nothing_read, found.slow_rows[:0], (np.stack(columns, 1) * 1e9).astype(np.int64),
        int(ends[0] * 1e9) - 400_000_000, int(ends[-1] * 1e9),
    )  # fmt: skip
    both = replace(found, windows=(*found.windows, waits))
    assert stalls(found) is None
    assert stalls(found, both) is None


@pytest.mark.parametrize("seconds", [5.5, 9.0])
def test_standstills_that_fetch_alone_met_are_looked_for_in_the_steps_of_real(seconds: float) -> None:
    # given a loader that tells no reads, whose device waits while the storage stands still for 1 s of each 2.5 s
    table = fed_over_stalls(2000, 2, 0.030, 0.040, 2.5, 1.0)
    returned = table[:, STEP["returned_ns"]] / 1e9
    ended_s = table[:, STEP["done_ns"]] / 1e9
    truth = (ended_s[-1] - ended_s[200]) / 1799
    first, last = np.searchsorted(returned, [20.7, 20.7 + seconds])
    real = make_segment(Arm.REAL, table[first : last + 1])
    reading = readers_at_work(1, 5.5, stall=(2.5, 1.0), begin=33.0, typical_s=1e-4, decode_s=1e-5)
    fetch = make_segment(Arm.FETCH, np.zeros((2, len(STEP_FIELDS)), dtype=np.int64), reads=read_times(reading))
    made = Recording([real, fetch], replace(make_facts(), storage=STORAGE))
    found = slowness(made, 1)
    assert found.stalls is not None and found.stalls.regular and found.standstills is not None
    assert found.stalls.period_s == pytest.approx(2.5, rel=0.01)
    # (what they are like, `fetch` alone tells: batches that were ready shorten the device's waits)
    assert found.stalls.num == 2 and found.stalls.length_s == pytest.approx(1.0, rel=0.01)
    steps = arm_steps([real], Arm.REAL, 2, 0, found.standstills)
    assert steps is not None
    assert abs(np.log(steps.mean("duration") / truth)) <= steps.width.whole < 0.05
    # and waits for preparation, at another rhythm, are not taken for them: two of one reader tell nothing alone
    real.steps = steady_steps(seconds, 0.7)
    real.steps[:, STEP["called_ns"]] -= int(0.65e9)
    real.steps[:, STEP["done_ns"]] = real.steps[:, STEP["returned_ns"]] + 1_000_000
    assert slowness(made, 1).stalls is None
    several = readers_at_work(4, 5.5, stall=(2.5, 1.0), begin=33.0, typical_s=1e-4, decode_s=1e-5)
    fetch.reads = read_times(several)
    found = slowness(made, 4)
    assert found.standstills is not None and found.standstills.alike is None
    assert found.standstills.period_s == pytest.approx(2.5, rel=0.01)


def test_the_rhythm_of_one_reader_s_stalls_is_that_of_all_arms() -> None:
    # given two standstills in `real`, which tell nothing alone, and two in `fetch`
    real, fetch = (readers_at_work(1, 3.7, stall=(1.9, 0.7), begin=begin) for begin in (8.0, 11.5))
    assert slowness(recording(SCALING, real=real), 1).stalls is None
    found = slowness(recording(SCALING, real=real, fetch=fetch), 1)
    assert found.stalls is not None and found.stalls.regular and found.stalls.num == 2
    # so is one of several readers, where `fetch` met more of the same
    one, more = (readers_at_work(4, last, stall=(5.5, 1.5), begin=begin) for begin, last in ((8.0, 5.8), (14.2, 9.0)))
    found = slowness(recording(SCALING, real=one, fetch=more), 4)
    assert found.stalls is not None and (found.stalls.num, found.stalls.regular) == (1, True)
    # not one by chance beside others that come far more often
    often = readers_at_work(4, 4.0, stall=(0.3, 0.12), begin=14.2)
    assert slowness(recording(SCALING, real=one, fetch=often), 4).stalls is None
    # and other slow reads of `fetch` make no rhythm
    few = readers_at_work(1, 3.7, slow=others, begin=11.5, decode_s=1e-4)
    assert slowness(recording(SCALING, real=real, fetch=few), 1).stalls is None


def test_runs_without_times_of_single_reads_keep_what_the_probe_found() -> None:
    for told in (slowness(recording(real=None), 4), slowness(recording(), 4)):
        assert (told.kind, told.reads, told.stalls, told.tail, told.fetch_saw) == ("bandwidth", None, None, None, None)


# -- standstills of the run itself ---------------------------------------------------------------------------


def steady_steps(seconds: float, step_s: float, stood: tuple[float, float] | None = None) -> Table:
    """Rows of STEP_FIELDS of a loop without a storage, which the last `length` of each period stops as a whole."""
    ends = step_s * np.arange(1, int(seconds / step_s) + 1)
    if stood is not None:
        period, length = stood
        ends = ends + length * np.floor(ends / (period - length))
        ends = ends[ends <= seconds]
    table = np.zeros((len(ends), len(STEP_FIELDS)), dtype=np.int64)
    for name, before_s in (("called_ns", 0.003), ("returned_ns", 0.002), ("issued_ns", 0.001), ("done_ns", 0.0)):
        table[:, STEP[name]] = ((ends - before_s) * 1e9).astype(np.int64)
    return table


def beside_quiet(made: Recording, stood: tuple[float, float] | None) -> Recording:
    """With windows of arms that touch no storage, which stand still or do not."""
    arms = (Arm.HOST, Arm.RAM, Arm.PREP)
    return replace(
        made, segments=[*made.segments, *(make_segment(arm, steady_steps(3.0, 0.04, stood)) for arm in arms)]
    )


@pytest.mark.parametrize("readers", [1, 2, 8])
def test_what_stops_arms_without_a_storage_as_often_does_not_stop_the_storage(readers: int) -> None:
    # given a run that a signal, or a hypervisor, stops for 0.3 s in each 1.1 s: its reads look as over stalls
    made = recording(SCALING, real=readers_at_work(readers, 12, stall=(1.1, 0.3)))
    real = [one for one in made.segments if one.arm is Arm.REAL]
    quiet, stopped = beside_quiet(made, None), beside_quiet(made, (1.1, 0.3))
    assert slowness(made, readers).kind == slowness(quiet, readers).kind == "stalls"
    assert window_wanted_s(quiet.segments, readers) == window_wanted_s(real, readers) > 2.0
    found = slowness(stopped, readers)
    assert (found.kind, found.stalls, found.tail, found.missed) == ("latency", None, None, None)
    assert window_wanted_s(stopped.segments, readers) == 0.0
    # and hiccups that are shorter, or rarer, do not excuse the storage
    assert slowness(beside_quiet(made, (1.1, 0.1)), readers).kind == "stalls"
    assert slowness(beside_quiet(made, (2.9, 0.3)), readers).kind == "stalls"


def test_one_reader_s_irregular_waits_are_no_slow_files_where_the_run_stood_still() -> None:
    few = recording(SCALING, real=readers_at_work(1, 20, slow=others))
    assert slowness(beside_quiet(few, None), 1).kind == "tail"
    assert slowness(beside_quiet(few, (1.2, 0.4)), 1).kind == "latency"
    one = recording(SCALING, real=readers_at_work(1, 20, slow=one_folder))  # a run that stops does not choose its files
    assert slowness(beside_quiet(one, (1.2, 0.4)), 1).kind == "tail"


def under_a_quota(made: Recording, throttled_a_second: float, queued: float | None, seconds: float = 10.0) -> Recording:
    """`queued`: threads that wait for a processor, on average."""
    cpu = CpuWindow(
        seconds, seconds, None if queued is None else queued * seconds, None, None, None, cpus=4, quota_cpus=1.0,
        num_throttled=int(throttled_a_second * seconds),
    )  # fmt: skip
    return replace(made, segments=[replace(one, cpu=cpu) if one.arm is Arm.REAL else one for one in made.segments])


@pytest.mark.parametrize(("length", "kind"), [(0.07, "bandwidth"), (0.115, "stalls")])
def test_a_quota_that_stops_a_cold_run_is_neither_a_capped_rate_nor_a_stall(length: float, kind: str) -> None:
    # given four readers that stand still at the end of each 0.2 s
    made = recording(SCALING, real=readers_at_work(4, 10, stall=(0.2, length), typical_s=0.001))
    assert slowness(made, 4).kind == kind
    # then it is the quota if that stopped the run as often, and its threads wanted a processor meanwhile
    waits = 4 * length / 0.2
    assert slowness(under_a_quota(made, 5.0, 0.9 * waits), 4).kind == "latency"
    assert slowness(under_a_quota(made, 5.0, None), 4).kind == "latency"
    assert slowness(under_a_quota(made, 5.0, 0.1 * waits), 4).kind == kind
    assert slowness(under_a_quota(made, 0.5, 0.9 * waits), 4).kind == kind


def test_a_quota_beside_a_storage_that_stands_still_does_not_excuse_it() -> None:
    # given standstills that last longer than any period of a quota
    made = recording(SCALING, real=readers_at_work(4, 10, stall=(2.7, 0.8)))
    assert slowness(under_a_quota(made, 10.0, 4.0), 4).kind == "stalls"


def test_a_window_whose_batches_were_read_before_it_does_not_hide_the_others() -> None:
    table, later = (readers_at_work(4, 8, stall=(2.7, 0.8), begin=begin) for begin in (0.0, 27.0))
    made = recording(SCALING, real=table, fetch=later)
    full = replace(made, segments=[*windows_of(None), *made.segments, make_segment(Arm.FETCH, np.zeros((2, 10), int))])
    seen, same_seen = slowness(made, 4), slowness(full, 4)
    assert (seen.kind, seen.fetch_saw) == (same_seen.kind, same_seen.fetch_saw) == ("stalls", True)
    assert (seen.reads, seen.stalls) == (same_seen.reads, same_seen.stalls)
    assert slowness(recording(SCALING, real=None), 4).reads is None


# -- the queue -----------------------------------------------------------------------------------------------


def queue(times_s: list[float], stood: Stalls | None = None, **given: int) -> Queue:
    """Over files that take exactly these times, one after the other."""
    begins = np.cumsum([0.0, *times_s[:-1]])
    rows = [[number, int(begins[number] * 1e9), 0, int(one * 1e9), 1] for number, one in enumerate(times_s)]
    found = read_times(np.array(rows, dtype=np.int64))
    assert found is not None
    values = {"batch": 32, "workers": 4, "depth": 8, **given}
    return Queue(Reads((found,), values["workers"]), stood, **values)


def test_without_slow_files_the_step_is_the_slower_of_consumer_and_readers() -> None:
    steady = queue([0.004] * 100)
    assert steady.step_s(0.1) == pytest.approx(0.1)
    assert steady.step_s(0.005) == pytest.approx(32 * 0.004 / 4, rel=0.02)
    assert replace(steady, prep_s=0.2).step_s(0.005) == pytest.approx((32 * 0.004 + 0.2) / 4, rel=0.02)


def test_threads_that_only_read_share_the_files_of_a_batch() -> None:
    # given 16 readers for two workers, and files of 4 ms: 32 of them take 8 ms, not 64
    shared = queue([0.004] * 100, workers=2, depth=4, io_threads=16)
    assert shared.step_s(0.001) == pytest.approx(32 * 0.004 / 16, rel=0.02)
    assert shared.step_s(0.05) == pytest.approx(0.05)
    # then their workers have nothing to do but prepare
    assert replace(shared, prep_s=0.06).step_s(0.001) == pytest.approx(0.06 / 2, rel=0.02)
    # and a standstill holds them up as it does others, with as many batches ahead
    period, length = 2.7, 1.2
    held = queue([1e-6] * 100, Stalls(3, length, period, True, length / period), workers=2, depth=4, io_threads=16)
    waits = length - 4.5 * 0.1
    assert held.step_s(0.1) == pytest.approx(0.1 * period / (period - waits), rel=0.04)


def test_of_readers_that_share_a_batch_one_slow_file_holds_up_the_others_no_more_than_itself() -> None:
    # given one file of 100 that takes 400 ms, and 32 readers, one for each file of a batch
    slow = queue([0.4] + [0.001] * 99, workers=1, depth=1, io_threads=32)
    with_one = 1 - 0.99**32  # of the batches, those with a slow file
    assert slow.step_s(1e-4) == pytest.approx(with_one * 0.4 + (1 - with_one) * 0.001, rel=0.1)


@pytest.mark.parametrize(("depth", "host_s"), [(4, 0.1), (8, 0.05), (2, 0.2)])
def test_a_stall_takes_what_the_queue_does_not_bridge(depth: int, host_s: float) -> None:
    # given reads that cost next to nothing, so that the queue is full when the storage stops
    period, length = 2.7, 1.2
    held = queue([1e-6] * 100, Stalls(3, length, period, True, length / period), depth=depth)
    waits = length - (depth + 0.5) * host_s  # on average half a step is left of the one under way
    assert held.step_s(host_s) == pytest.approx(host_s * period / (period - waits), rel=0.04)
    assert replace(held, depth=64).step_s(host_s) == pytest.approx(host_s, rel=0.02)


def test_one_reader_without_room_ahead_pays_for_each_slow_file() -> None:
    # given one file of 100 that takes 400 ms, and a worker that begins a batch when the one before was taken
    single = queue([0.4] + [0.001] * 99, workers=1, depth=1)
    mean_s = 32 * (0.4 + 0.099) / 100
    assert single.step_s(0.001) == pytest.approx(mean_s, rel=0.1)


# -- the gain without preparation -----------------------------------------------------------------------------


def test_the_gain_without_preparation_holds_what_the_queue_does_not_bridge() -> None:
    # given a storage that `fetch` found fast enough, since it stands still only now and then
    arms = join(measure(Pipeline(busy_ms=100.0, decode_ms=50.0, storage_ms=1.0, workers=2)), 2)
    plain = Model(arms, reads_files=True, owns_transfer=False, synchronous=False, overlap=False)
    period, length, depth = 2.7, 1.2, 4
    held = replace(plain, queue=queue([1e-6] * 100, Stalls(3, length, period, True, 0.4), workers=2, depth=depth))
    before, left, host = plain.without("prep"), held.without("prep"), held.base
    assert before is not None and left is not None and host is not None
    assert before.value == pytest.approx(host.value)
    assert left.value == pytest.approx(host.value * period / (period - length + (depth + 0.5) * host.value), rel=0.04)
    # then a `fetch` that did not meet the stalls is not needed for it, and tells nothing alone
    unseen = replace(held, fetch_usable=False).without("prep")
    assert unseen is not None and unseen.value == pytest.approx(left.value)
    assert replace(plain, fetch_usable=False).without("prep") is None
    # and what it takes is no better known than from so many stalls: of what they add to the step, e to the power of two
    # standard deviations
    loose = replace(held, queue=replace(held.queue, spread=0.5)).without("prep") if held.queue else None
    assert loose is not None
    added = left.value - host.value
    assert loose.high - host.value == pytest.approx(added * np.exp(1.96 * 0.5), rel=0.08)


def test_a_gain_of_which_draws_leave_less_than_nothing_has_no_end_below_1() -> None:
    arms = join(measure(Pipeline(busy_ms=100.0, decode_ms=50.0, storage_ms=1.0, workers=2)), 2)
    model = Model(arms, reads_files=True, owns_transfer=False, synchronous=False, overlap=False)
    real = model.real
    left = Quantity(real.value / 2, real.value / 2 + np.linspace(-1.0, 1.0, len(real.draws)) * real.value, real.n)
    found = model.gain(left)
    assert found is not None
    assert found.low >= 1.0
    assert found.value == pytest.approx(2.0)
    assert found.high > 100.0


def loop_in_line(read_s: float, issue_s: float, device_s: float, stood: Stalls) -> float:
    """Mean seconds a step of a loop that reads and issues in turn, two steps ahead of its device at most: in
    microseconds of a clock, nothing read at the end of each period."""
    read, issue, device, period = (round(1e6 * one) for one in (read_s, issue_s, device_s, stood.period_s))
    open_us, num, now, ends = period - round(1e6 * stood.length_s), 2000, 0, [0, 0]
    for _ in range(num):
        left = read
        while left:
            within = now % period
            if within >= open_us:
                now += period - within
                continue
            taken = min(left, open_us - within)
            now, left = now + taken, left - taken
        now += issue
        ends.append(max(now, ends[-1]) + device)
        now = max(now, ends[-3])
    return ends[-1] / 1e6 / num


@pytest.mark.parametrize(
    ("read_s", "issue_s", "device_s"), [(0.010, 0.001, 0.040), (0.001, 0.01, 0.1), (0.03, 0.02, 0.04)]
)
@pytest.mark.parametrize("length_s", [0.3, 0.8])
def test_a_loader_in_line_pays_for_what_its_device_does_not_bridge(
    read_s: float, issue_s: float, device_s: float, length_s: float
) -> None:
    # given a storage that stands still now and then, and that `fetch` found fast enough
    stood = Stalls(3, length_s, 2.7, True, length_s / 2.7)
    mean_s = read_s / (1 - length_s / 2.7)
    arms = join(
        measure(
            Pipeline(workers=0, latency_ms=mean_s * 1e3, decode_ms=30.0, issue_ms=issue_s * 1e3, busy_ms=device_s * 1e3)
        ),
        1,
    )
    plain = Model(arms, reads_files=True, owns_transfer=False, synchronous=True, overlap=False)
    held = replace(plain, queue=queue([read_s / 32] * 100, stood, workers=0, depth=0))
    left, expected_s = held.without("prep"), loop_in_line(read_s, issue_s, device_s, stood)
    assert left is not None
    assert left.value == pytest.approx(expected_s, rel=0.05)
    together = held.joint_without(frozenset(("prep", "transfer")))
    assert together is not None
    assert together.value == pytest.approx(expected_s, rel=0.05)


@pytest.mark.parametrize("stood", [None, Stalls(9, 1.0, 4.0, True, 0.25)], ids=["slow files", "standstills"])
def test_a_loader_in_line_over_slow_files_that_fetch_missed_waits_for_the_storage(stood: Stalls | None) -> None:
    # given steps of 90 + 30 + 10 ms that read, prepare and issue, one after another
    arms = join(measure(Pipeline(workers=0, latency_ms=90.0, decode_ms=30.0, issue_ms=10.0, busy_ms=35.0)), 1)
    missed = Model(arms, reads_files=True, owns_transfer=False, synchronous=True, overlap=False, fetch_usable=False)
    assert missed.without("prep") is None
    assert attribute(missed).verdict.bottleneck == "mixed"
    # and the files' times in them, with 1 % that take 50 times as long, or behind standstills of 1 s in 4
    batch_s = 0.090 if stood is None else 0.090 * 0.75
    quick_s = batch_s / 32 / 1.49
    files = [50 * quick_s] + [quick_s] * 99 if stood is None else [batch_s / 32] * 100
    known = replace(missed, queue=queue(files, stood, workers=0, depth=0))
    left, storage = known.without("prep"), known.without("storage")
    assert left is not None and storage is not None
    expected_s = 0.100 if stood is None else (batch_s + 0.010) / 0.75
    assert left.value == pytest.approx(expected_s, rel=0.05)
    assert storage.value == pytest.approx(0.040, rel=0.05)
    # without the copy, too, each step still prepares and issues, once, whether preparing alone was measured or not
    for seen in (known.arms, {arm: steps for arm, steps in known.arms.items() if arm is not Arm.PREP}):
        both = replace(known, arms=seen).joint_without(frozenset(("storage", "transfer")))
        assert both is not None and both.value == pytest.approx(0.040, rel=0.05)
    found = attribute(known).verdict
    assert (found.bottleneck, found.reasons) == ("storage", ())
    # without launches, too, reading is what is left
    alone = known.joint_without(frozenset(("prep", "launch")))
    assert alone is not None and alone.value == pytest.approx(
        expected_s - 0.010 / (1.0 if stood is None else 0.75), rel=0.05
    )


def test_few_slow_files_or_irregular_stalls_are_badly_known() -> None:
    found = slowness(recording(SCALING, real=readers_at_work(4, 8, slow=others)), 4)
    assert found.real is not None and found.tail is not None
    assert spread_of_met(found.real, found) == pytest.approx(
        (found.tail.share * found.real.num * mean(found.real.histogram, "file") / found.tail.slow_s) ** -0.5, rel=0.15
    )
    regular = slowness(recording(real=readers_at_work(4, 14, stall=(2.7, 0.8))), 4)
    assert regular.real is not None and regular.stalls is not None and regular.stalls.regular
    assert spread_of_met(regular.real, regular) == 0.0
    loose = replace(regular, stalls=replace(regular.stalls, regular=False, num=4))
    assert spread_of_met(regular.real, loose) == 0.5

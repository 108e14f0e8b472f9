"""The sampling thread: its cadence, its end, and a source that breaks."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from loaderbench.recording.caveats import Caveat
from loaderbench.samplers.base import Channel, SamplerThread


class Clockwork:
    """Counts its own readings; every third value of its second channel is unknown."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.channels = [Channel("count", "readings", "counter", "test"), Channel("odd", "", "gauge", "test")]
        self.caveats = [Caveat("sampler_missing", {"reason": "from the start"})]
        self.takes_s = takes_s
        self.num_reads = 0
        self.closed = False

    def read(self) -> Sequence[float | None]:
        time.sleep(self.takes_s)
        self.num_reads += 1
        return (self.num_reads, None if self.num_reads % 3 == 0 else 1.0)

    def close(self) -> None:
        self.closed = True


class Breaking(Clockwork):
    def read(self) -> Sequence[float | None]:
        if self.num_reads == 2:
            raise OSError(5, "Input/output error")
        return super().read()


def test_a_broken_sampler_costs_only_its_own_series() -> None:
    good, broken = Clockwork(), Breaking()
    thread = SamplerThread([broken, good], interval_s=0.02)
    thread.start()
    time.sleep(0.2)
    series, caveats, _ = thread.stop()
    lengths = [len(channel.value) for channel in series]
    assert lengths[0] == 2  # what it had read stays
    assert lengths[2] == good.num_reads > 3
    failed = [caveat for caveat in caveats if caveat.code == "sampler_failed"]
    assert len(failed) == 1
    assert failed[0].details == {"channels": ["count", "odd"], "error": "OSError: [Errno 5] Input/output error"}
    assert sum(caveat.code == "sampler_missing" for caveat in caveats) == 2
    assert good.closed
    assert broken.closed


def test_unknown_values_are_left_out_not_zero() -> None:
    sampler = Clockwork()
    thread = SamplerThread([sampler], interval_s=0.01)
    thread.start()
    time.sleep(0.1)
    count, odd = thread.stop()[0]
    assert len(odd.value) == len(count.value) - sampler.num_reads // 3
    assert set(odd.value) == {1.0}
    assert odd.t_ns.dtype == np.int64


def test_stop_takes_a_last_reading() -> None:
    sampler = Clockwork()
    thread = SamplerThread([sampler], interval_s=60.0)
    begun_ns = time.perf_counter_ns()
    thread.start()
    time.sleep(0.1)
    stopped_ns = time.perf_counter_ns()
    count = thread.stop()[0][0]
    assert list(count.value) == [1.0, 2.0]
    assert begun_ns < count.t_ns[0] < stopped_ns <= count.t_ns[1]


def test_stop_without_start_gives_empty_series() -> None:
    series, _, cpu_ns = SamplerThread([Clockwork()]).stop()
    assert [len(channel.value) for channel in series] == [0, 0]
    assert cpu_ns == 0


def test_readings_keep_their_cadence_without_drift() -> None:
    sampler = Clockwork(takes_s=0.01)
    thread = SamplerThread([sampler], interval_s=0.05)
    thread.start()
    time.sleep(0.6)
    count = thread.stop()[0][0]
    gaps_s = np.diff(count.t_ns[:-1]) / 1e9  # the last reading is that of the stop
    # 10 ms of reading do not lengthen the 50 ms.
    assert 0.045 < np.median(gaps_s) < 0.06


def test_a_sampler_slower_than_the_interval_is_not_read_in_bursts() -> None:
    sampler = Clockwork(takes_s=0.03)
    thread = SamplerThread([sampler], interval_s=0.01)
    thread.start()
    time.sleep(0.3)
    count = thread.stop()[0][0]
    assert np.diff(count.t_ns).min() / 1e9 > 0.025


def test_the_threads_cpu_time_is_told() -> None:
    class Burning(Clockwork):
        def read(self) -> Sequence[float | None]:
            end = time.thread_time_ns() + 20_000_000
            while time.thread_time_ns() < end:
                pass
            return super().read()

    thread = SamplerThread([Burning()], interval_s=60.0)
    thread.start()
    cpu_ns = thread.stop()[2]
    assert 35_000_000 < cpu_ns < 100_000_000

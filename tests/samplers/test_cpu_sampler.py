"""CPU, pressure and memory: known texts, and a known amount of burning."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from loaderbench.errors import UnavailableError
from loaderbench.samplers.cpu import (
    CpuSampler,
    PressureSampler,
    parse_cpu_times,
    parse_meminfo,
    parse_pressure,
    pressure_off_reason,
)

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
STAT = b"""cpu  999 999 999 999 999 999 999 999 0 0
cpu0 100 10 50 800 40 5 5 30 20 0
cpu1 200 0 100 700 0 0 0 0 0 0
cpu10 1 1 1 1 1 1 1 1 0 0
intr 123 0 0
"""


def test_only_the_usable_cpus_count() -> None:
    one = parse_cpu_times(STAT, {0})
    assert one.busy_s == pytest.approx((100 + 10 + 50 + 5 + 5) * TICK_S)
    assert (one.idle_s, one.iowait_s, one.steal_s) == pytest.approx((800 * TICK_S, 40 * TICK_S, 30 * TICK_S))
    two = parse_cpu_times(STAT, {0, 1})
    assert two.busy_s - one.busy_s == pytest.approx(300 * TICK_S)
    assert two.total_s == pytest.approx((1040 + 1000) * TICK_S)


def test_busy_fraction_is_that_since_the_last_reading(tmp_path: Path) -> None:
    (tmp_path / "stat").write_bytes(STAT)
    (tmp_path / "meminfo").write_text("MemTotal:  100 kB\nMemAvailable:   60 kB\nHugePages_Total:  0\n")
    sampler = CpuSampler(str(tmp_path), cpus={0, 1})
    names = [channel.name for channel in sampler.channels]
    first = dict(zip(names, sampler.read(), strict=True))
    assert first["cpu_busy_fraction"] is None
    assert first["memory_available_bytes"] == 60 * 1024
    # cpu0 burns 30 ticks and waits 10 for the disk, cpu1 idles 40
    (tmp_path / "stat").write_bytes(
        STAT.replace(b"cpu0 100 10 50 800 40", b"cpu0 130 10 50 800 50").replace(b"100 700", b"100 740")
    )
    second = dict(zip(names, sampler.read(), strict=True))
    sampler.close()
    assert second["cpu_busy_fraction"] == pytest.approx(30 / 80)
    assert (second["cpu_iowait_s"] or 0) - (first["cpu_iowait_s"] or 0) == pytest.approx(10 * TICK_S)


def test_burning_shows_on_the_cpu_it_is_done_on() -> None:
    before = os.sched_getaffinity(0)
    cpu = min(before)
    sampler = CpuSampler(cpus={cpu})
    os.sched_setaffinity(0, {cpu})
    try:
        sampler.read()
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass
        fraction, busy_s = sampler.read()[:2]
    finally:
        os.sched_setaffinity(0, before)
        sampler.close()
    assert fraction is not None
    assert fraction > 0.8  # others' work on this CPU is busy time as well
    assert busy_s is not None


def test_no_proc_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="stat cannot be read"):
        CpuSampler(str(tmp_path))
    (tmp_path / "stat").write_bytes(STAT)
    with pytest.raises(UnavailableError, match="meminfo"):
        CpuSampler(str(tmp_path))


def test_pressure_totals(tmp_path: Path) -> None:
    for kind, total in (("cpu", 1_000_000), ("io", 2_500_000), ("memory", 0)):
        text = f"some avg10=1.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
        (tmp_path / kind).write_text(text)
    sampler = PressureSampler(str(tmp_path))
    assert [channel.name for channel in sampler.channels] == [
        "pressure_cpu_some_s",
        "pressure_io_some_s",
        "pressure_memory_some_s",
    ]
    assert sampler.read() == (1.0, 2.5, 0.0)
    sampler.close()
    (tmp_path / "memory").unlink()
    partial = PressureSampler(str(tmp_path))
    assert partial.read() == (1.0, 2.5)
    assert "memory" in str(partial.caveats[0].details["reason"])
    partial.close()


def test_a_kernel_without_pressure_says_how_to_enable_it(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="psi=1"):
        PressureSampler(str(tmp_path / "absent"))
    (tmp_path / "cpu").write_text("")
    assert "psi=1" in str(pressure_off_reason(str(tmp_path / "cpu")))
    with pytest.raises(ValueError, match="some"):
        parse_pressure(b"full avg10=0 total=3\n")


def test_meminfo_takes_sizes_only() -> None:
    assert parse_meminfo(b"MemTotal:       2048 kB\nHugePages_Free:   3\n") == {"MemTotal": 2048 * 1024}

"""Who else uses the processors: a process that is ours counts as ours, and the words say how much others used."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from loaderbench.recording.others import OtherPrograms, sentence
from loaderbench.samplers import cpu
from loaderbench.samplers.cpu import CpuTimes, Others
from loaderbench.samplers.process_io import tree_cpu_s

BURN = (
    "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint(1, flush=True)\ninput()"
)


def test_the_time_of_a_child_is_ones_own_while_it_lives_and_after_it() -> None:
    before = sum(tree_cpu_s(os.getpid()))
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = sum(tree_cpu_s(os.getpid()))
        child.communicate(b"\n")
    assert alive - before >= 0.28 and sum(tree_cpu_s(os.getpid())) - before >= 0.28


def test_what_others_used_is_what_all_used_less_ones_own(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    clock, busy, own = [100.0], [50.0], [7.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(cpu, "cpu_times_now", lambda cpus: CpuTimes(busy[0], 0.0, 0.0, 0.0))
    monkeypatch.setattr(cpu, "_own_cpu_s", lambda: own[0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    others = Others()
    assert others.seen() is None  # no time has passed
    clock[0], busy[0], own[0] = 110.0, 64.0, 11.0
    found = others.seen()
    assert found is not None and (found.cpus, found.num_cpus, found.seconds) == (1.0, 2, 10.0)


def test_background_is_not_worth_a_word_and_a_shared_machine_is() -> None:
    assert sentence(OtherPrograms(0.05, 2, 10.0)) is None
    some, much = sentence(OtherPrograms(0.3, 2, 10.0)), sentence(OtherPrograms(0.99, 2, 10.0, 0.1))
    assert some is not None and "0.30 of 2 CPUs" in some and "idle" not in some
    assert much is not None and "0.99 of 2 CPUs" in much and "10%" in much and "idle" in much
    assert sentence(OtherPrograms(0.0, 0, 10.0)) is None  # a stored number is any number

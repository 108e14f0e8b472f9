"""The ranks of a launch over time, a track a rank, as Trace Event JSON (reporting/perfetto.py)."""

from __future__ import annotations

from loaderbench.analysis.ranks import bars_of, groups_of
from loaderbench.errors import ConfigError
from loaderbench.plain import Json
from loaderbench.recording.ranks import RanksFacts
from loaderbench.reporting.perfetto import Event, Pen, Trace
from loaderbench.reporting.ranks import BAR_WORDS

MOST_STEPS = 2000
"""Most steps of one window that are drawn."""


def trace_of_ranks(facts: RanksFacts) -> Trace:
    """Draw all cases, a group of tracks each, on the clock of rank 0.

    Raises:
        ConfigError: no case was finished, or its ranks are a script's on several nodes.
    """
    events: list[Event] = []
    if any(case.watched and len({part.place.node for part in case.parts}) > 1 for case in facts.cases):
        raise ConfigError("the clocks of the nodes were not compared: `trace RUN` draws one rank's run")
    for process, case in enumerate(facts.cases, 1):
        drawn = [
            (joint, bars)
            for joint, group in groups_of(case)
            if (bars := bars_of(case.parts, group, joint=joint, most=MOST_STEPS))
        ]
        if not drawn:
            continue
        title: Json = case.case.title
        events.append({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": title}})
        begun_ms = min(bar.begin_ms for _, bars in drawn for bar in bars)
        for part in case.parts:
            place = part.place
            name: Json = f"rank {place.rank} ({place.node})"
            tid: Json = place.rank
            events.append({"ph": "M", "name": "thread_name", "pid": process, "tid": tid, "args": {"name": name}})
        for joint, bars in drawn:
            for bar in bars:
                pen = Pen(events, process, bar.rank, round(begun_ms * 1e6))
                begin, end = round(bar.begin_ms * 1e6), round(bar.end_ms * 1e6)
                pen.slice(BAR_WORDS[bar.what], begin, end, step=bar.step, all_reduce=joint)
    if not events:
        raise ConfigError("no case of this launch was finished: there are no steps to draw")
    return Trace(events, {"ranks": facts.ranks, "clock": "rank 0's CLOCK_MONOTONIC, 0 is the first step drawn"})

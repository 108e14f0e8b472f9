"""Which settings `tune` tries first: those that stored runs of the same work found fast or were advised, then the
fastest of a short look at each loader alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

from loaderbench.cases.case import FIELDS, Case
from loaderbench.machine import environment
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store
from loaderbench.recording.studies import TuneScreen
from loaderbench.studies.measure import same_machine

MOST_LIKELY = 6
"""Settings that stored runs may put in front of all others."""
Kind = tuple[object, ...]
"""Loader, decoder and how they work: whether large crops are decoded smaller, the loader's options."""
SEARCHED = ("output", "workers", "prefetch")
"""What else a search varies."""


def likely(cases: Sequence[Case], store: Store) -> list[Case]:
    """The settings that stored runs of this machine, these files and this step measured or predicted to be the fastest,
    the best first. `cases`: the search, whose lists no setting leaves; one of another combination may be added."""
    here, one = environment(), cases[0]
    expected: dict[str, tuple[float, Case]] = {}
    work = (one.subject.dataset, one.step)
    for stored in store.runs_where(lambda line: (line.case.subject.dataset, line.case.step) == work):
        record = stored.record
        if record is None or not record.measured or not same_machine(record.environment, here):
            continue
        for case, rate in _settings(record):
            found = _within(case, cases)
            if found is not None and rate > expected.get(found.key, (0.0, found))[0]:
                expected[found.key] = (rate, found)
    ranked = sorted(expected.values(), key=lambda known: -known[0])
    return [case for _, case in ranked[:MOST_LIKELY]]


def _settings(record: RunRecord) -> list[tuple[Case, float]]:
    """(case, images/s): the run's own, measured; those that it advises, predicted."""
    assert record.throughput is not None
    rate = record.throughput.value
    found = [(record.case, rate)]
    for advice in record.verdict.advice if record.verdict else ():
        change, gain = advice.change or {}, advice.measured_speedup or advice.predicted_speedup
        if gain is not None and all(FIELDS[name] == "feed" for name in change):
            found.append((record.case.changed(**change), rate * gain.value))
    return found


def _within(case: Case, cases: Sequence[Case]) -> Case | None:
    """The case as the search would measure it; None where it is none of its combinations."""
    for name in SEARCHED:
        if getattr(case.feed, name) not in {getattr(one.feed, name) for one in cases}:
            return None
    alike = [one for one in cases if _kind(one) == _kind(case)]
    if not alike or case.feed.decoder_options:
        return None
    return alike[0].changed(**{name: getattr(case.feed, name) for name in SEARCHED})


def fair_order(cases: Sequence[Case], seed: int) -> list[Case]:
    """The cases in an order drawn by the seed, each loader and decoder equally often in every part of it."""
    places: dict[Kind, int] = {}
    order = []
    for case in random.Random(seed).sample(list(cases), len(cases)):
        order.append((places.setdefault(_kind(case), 0), case))
        places[_kind(case)] += 1
    return [case for _, case in sorted(order, key=lambda placed: placed[0])]


def representatives(cases: Sequence[Case]) -> list[Case]:
    """One of those that differ in nothing but the prefetch, which matters least to a loader alone."""
    return list({_without_prefetch(case): case for case in reversed(cases)}.values())[::-1]


def ranked(cases: Sequence[Case], first: Sequence[Case], screens: Sequence[TuneScreen]) -> list[Case]:
    """`first`, then the others by images/s of the loader alone: their own, else the best of their loader and decoder.

    One of each loader and decoder of which nothing is known comes behind the best, the rest of those last. Settings
    that could not be looked at are left out.
    """
    own: dict[str, float] = {}
    best: dict[Kind, float] = {}
    failed = {_without_prefetch(one.case) for one in screens if one.failure is not None}
    for one in screens:
        if one.samples_per_s is not None:
            own[_without_prefetch(one.case)] = one.samples_per_s
            best[_kind(one.case)] = max(best.get(_kind(one.case), 0.0), one.samples_per_s)
    keys = {case.key for case in first}
    rest = [case for case in cases if case.key not in keys and _without_prefetch(case) not in failed]
    known = [case for case in rest if _kind(case) in best]
    known.sort(key=lambda case: -own.get(_without_prefetch(case), best[_kind(case)]))
    unknown = [case for case in rest if _kind(case) not in best]
    samples = list({_kind(case): case for case in reversed(unknown)}.values())[::-1]
    others = [case for case in unknown if case not in samples]
    return [*first, *known[:1], *samples, *known[1:], *others]


def _kind(case: Case) -> Kind:
    feed = case.feed
    return feed.loader, feed.decoder, feed.decode_scale or "off", tuple(sorted(feed.loader_options.items()))


def _without_prefetch(case: Case) -> str:
    return case.changed(prefetch=0).key

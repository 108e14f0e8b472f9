"""All sentences of a record: verdict, evidence, advice and caveats in words, made from their codes and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

from loaderbench.analysis.model import WORTH
from loaderbench.analysis.verdict import HOLD_CONTENTION, MORE, SURE
from loaderbench.cases.case import FIELDS, Case, Change
from loaderbench.cases.case import flags as flags
from loaderbench.cases.options import flag_of
from loaderbench.plain import Json, from_json
from loaderbench.recording.caveats import Caveat, Reason
from loaderbench.recording.record import (
    STAGES,
    Advice,
    BusyWitnesses,
    Ceiling,
    ContentionBy,
    ContentionFigures,
    Estimate,
    KernelGap,
    PixelDifference,
    ReadFigures,
    RunRecord,
    Stalls,
    StorageFigures,
    Tail,
    TransferFigures,
    Verdict,
)
from loaderbench.reporting import watched_words

Details = Mapping[str, Json]

NOT_BOUNDED = "not bounded"
"""In place of an interval's upper end that says nothing."""
NAMES = {
    "storage": "storage",
    "prep": "CPU preparation (decode, augment, collate)",
    "contention": "CPU contention",
    "transfer": "the copy to the device",
    "launch": "kernel launches",
    "compute": "compute",
}
WITNESSES = {
    "pieces": "pieces of the virtual timeline",
    "operators_found": "operators of an untraced step found in the trace",
    "operators": "kernels and copies, by an untraced step's operators",
    "launch_calls": "kernels, by CUDA's launch calls",
}
NOT_VERIFIED = {
    "cache_state_gone": "the data set's own cache state is gone once it was measured: run with --cache cold or "
    "--cache warm",
    "no_complete_step": "no complete step within a turn",
}


def worded(record: RunRecord) -> RunRecord:
    """The record with its sentences."""
    caveats = tuple(worded_caveat(caveat) for caveat in record.caveats)
    if record.verdict is None:
        return replace(record, caveats=caveats)
    verdict = replace(
        record.verdict,
        summary=summary(record),
        evidence=tuple(evidence(record)),
        advice=tuple(
            replace(advice, action=action(advice, record), not_verified=_not_verified(advice))
            for advice in record.verdict.advice
        ),
    )
    return replace(record, caveats=caveats, verdict=verdict)


def _not_verified(advice: Advice) -> str | None:
    return None if advice.not_verified is None else NOT_VERIFIED.get(advice.not_verified, advice.not_verified)


# -- figures in sentences ----------------------------------------------------------------------------------


def _number(details: Details, name: str) -> float:
    return float(cast(float, details.get(name) or 0.0))


def _is_finite(details: Details, name: str) -> bool:
    return details.get(name) is not None and math.isfinite(_number(details, name))


def _expected_part(details: Mapping[str, Json]) -> str:
    ends = details["expected"]
    assert isinstance(ends, list) and len(ends) == 2
    low, high = (float(end) for end in ends if isinstance(end, int | float))
    return f"{low:.0%}" if high - low < 0.005 else f"{low:.0%} to {high:.0%}"


def _percent(details: Details, name: str) -> str:
    value = details.get(name)
    return "an unknown part" if value is None else f"{_number(details, name):.0%}"


def _text(details: Details, name: str) -> str:
    return str(details.get(name))


def _list(details: Details, name: str, joint: str = ", ") -> str:
    return joint.join(map(str, cast(list[Json], details.get(name) or [])))


def _gain(estimate: Estimate) -> str:
    if estimate.low is not None and estimate.high is None:
        return f"{estimate.value:.2f}× ({estimate.low:.2f} – {NOT_BOUNDED})"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}×"
    return f"{estimate.value:.2f}× ({estimate.low:.2f} – {estimate.high:.2f})"


def _megabytes(bytes_per_s: float) -> str:
    megabytes = bytes_per_s / 1e6
    return f"{megabytes:,.0f} MB/s" if megabytes >= 10 else f"{megabytes:.1f} MB/s"


MOST_NAMED = 3
"""Slow files that a line names."""
KNOWN_WELL = 0.05
"""A rate whose interval is narrower than ± this fraction is given without it."""


def is_wide(value: float, low: float, high: float) -> bool:
    """Whether a rate's interval must be said with it."""
    return max(high - value, value - low) > KNOWN_WELL * value


def _between(value: float, low: float, high: float) -> str:
    """` (between 20 MB/s and 26 MB/s)`; empty for a rate that is known well."""
    return f" (between {_megabytes(low)} and {_megabytes(high)})" if is_wide(value, low, high) else ""


def _and(names: Sequence[str]) -> str:
    """`a and b and c`."""
    return " and ".join(names)


# -- the verdict -------------------------------------------------------------------------------------------

REASONS: Mapping[str, Callable[[Details], str]] = {
    "served_by_page_cache": lambda d: (
        (
            f"before the windows {_percent(d, 'resident_before')} of the pages were in the page cache: "
            if d.get("moved_fraction") is None
            else f"of the bytes of a cold read {_percent(d, 'moved_fraction')} came from the storage, the rest from "
            "the page cache: "
        )
        + "something else reads these files, or they cannot be evicted (loaderbench doctor)"
    ),
    "read_as_fast_as_memory": lambda d: (
        f"evicted files were read in {_number(d, 'ratio'):.1f}× the time that memory takes: a cache beside the page "
        "cache served them (the file system's own, or memory of the host that this machine maps)"
    ),
    "witnesses_disagree": lambda d: (
        "two ways of measuring the wait for data do not agree: "
        f"{_percent(d, 'by_arms')} of a step by comparing the arms, {_percent(d, 'by_timeline')} by the timeline"
    ),
    "arms_out_of_order": lambda d: (
        f"`{_text(d, 'faster')}` ({_number(d, 'faster_s') * 1e3:.2f} ms a step) ran faster than "
        f"`{_text(d, 'slower')}` ({_number(d, 'slower_s') * 1e3:.2f} ms), which does less"
    ),
    "too_few_steps": lambda d: (
        f"too short: {_text(d, 'steps')} steps of `real` are too few; give --steps {_text(d, 'wanted')} "
        f"without --duration (about {_number(d, 'seconds'):,.0f} s of measuring)"
    ),
    "gain_not_measured": lambda d: (
        f"the gain without {_text(d, 'cause')} was not measured"
        + (f" and may be up to {_number(d, 'most'):.2f}×" if _is_finite(d, "most") else "")
        + ": that takes --arms all, --cache warm or cold, and a --duration that leaves time for all of them"
    ),
    "gain_uncertain": lambda d: (
        f"the gain without {_text(d, 'cause')} is known only as {_number(d, 'low'):.2f}× – {_number(d, 'high'):.2f}×: "
        "measure longer"
    ),
    "may_be_faster": lambda d: (
        f"without {_text(d, 'cause')} it may be up to {_number(d, 'high'):.2f}× faster: measure longer"
    ),
    "cannot_be_told_apart": lambda d: f"the gains without {_list(d, 'causes', ' and without ')} cannot be told apart",
    "not_separated": lambda d: (
        f"{_list(d, 'causes', ' and ')} were not told apart: "
        + (f"that takes the arms {_list(d, 'arms')}" if d["arms"] else "the workers' own times are not known")
    ),
    "nothing_read": lambda d: (
        f"{_list(d, 'causes', ' and ')} were not told apart: the data set read nothing while it waited (a pause, a "
        "lock, another process)"
    ),
    "device_not_stamped": lambda d: (
        "the script used CUDA, whose work goes on behind the host's stamps, and the device did not tell when its steps "
        f"were done ({d['reason'] or 'for no known reason'})"
    ),
    "threads_in_step": lambda d: (
        f"other Python threads of the script's process may have held its own thread up for {_percent(d, 'part')} of a "
        f"step's time at most; if they make its batches, it may be up to {_number(d, 'most'):.2f}× faster without them"
    ),
    "delays_disagree": lambda d: (
        f"known delays lengthened the steps by {_percent(d, 'response')} of them, where bursts and timeline let expect "
        f"{_expected_part(d)}: neither is to be trusted alone"
    ),
    "feeding_uncertain": lambda d: (
        f"the device is fed between {_percent(d, 'low')} and {_percent(d, 'high')} of the time: measure longer"
    ),
    "consumer_not_separated": lambda d: (
        "waiting for data does not limit this run; use --arms all to see whether compute, launches or the copy does"
    ),
    "storage_was_idle": lambda d: (
        "`real` ran slower than `ram` although the storage moved nothing: something else disturbed this run; "
        "measure longer, or on a quieter machine"
    ),
    "stalls_missed": lambda d: (
        f"the storage stood still for {_percent(d, 'part')} of the time, but for {_percent(d, 'seen')} of what was "
        "measured of the run itself: measure longer"
    ),
    "none_alone": lambda d: "no single cause is worth 1.10× alone",
}

NOT_SEPARATED = ("not_separated", "nothing_read")
"""Codes of reasons for which causes stay joint."""


def reason(one: Reason) -> str:
    return REASONS[one.code](one.details)


def summary(record: RunRecord) -> str:
    """One sentence for readers who do not know the tool."""
    verdict = record.verdict
    assert verdict is not None
    because = "; ".join(reason(one) for one in verdict.reasons)
    if verdict.bottleneck == "undetermined":
        return f"Undetermined: {because}."
    if verdict.bottleneck == "compute":
        return _of_compute(record, verdict)
    if verdict.bottleneck == "mixed":
        if verdict.joint and verdict.joint_speedup is not None:
            return f"Mixed: {_of_several(verdict, verdict.joint_speedup)}."
        return f"Mixed: {because or REASONS['none_alone']({})}."
    removed = next((g for c, g in verdict.speedup_if_removed.items() if c == verdict.bottleneck and g), None)
    removed = removed or verdict.joint_speedup
    if verdict.bottleneck == "contention" and record.contention is not None:
        who, them = BY_WHOM[record.contention.by or "own threads"](record)
        gain = "" if removed is None else f"; {them} {_gain(removed)} faster"
        return f"CPU contention limits this run: {who}{gain}{_beyond_contention(verdict, removed)}."
    name = NAMES[verdict.bottleneck]
    if verdict.bottleneck == "storage" and record.watched is not None:
        name += watched_words.of_stores(record.watched)
    limits = "limit this run" if verdict.bottleneck == "launch" else "limits this run"
    without = "without them" if verdict.bottleneck == "launch" else "without it"
    slow = _how_slow(record.storage) if verdict.bottleneck == "storage" and record.storage is not None else None
    told = [*([] if slow is None else [slow]), *([] if removed is None else [f"{without} {_gain(removed)} faster"])]
    return f"{name[0].upper()}{name[1:]} {limits}{': ' * bool(told)}{'; '.join(told)}."


def _beyond_contention(verdict: Verdict, removed: Estimate | None) -> str:
    """The best stage that is worth it beyond contention; empty where none is."""
    gains = {cause: gain for cause, gain in verdict.speedup_if_removed.items() if gain is not None and gain.low}
    least = dict.fromkeys(HOLD_CONTENTION, WORTH * (1.0 if removed is None else removed.value))
    worth = [c for c in STAGES if c in gains and gains[c].value >= least.get(c, WORTH) and (gains[c].low or 0) >= SURE]
    best = max(worth, key=lambda cause: gains[cause].value, default=None)
    if best is None:
        return ""
    removed_too = "both" if best in HOLD_CONTENTION else "that alone"
    return f"; beyond that {NAMES[best]}: without {removed_too} {_gain(gains[best])}"


def _how_slow(storage: StorageFigures) -> str | None:
    """What makes a storage slow, in a few words; None where that is not known."""
    if storage.kind == "stalls" and storage.stalls is not None:
        return f"it {_stands_still(storage.stalls)}"
    if storage.kind == "tail" and storage.tail is not None:
        return f"a few slow files (the slowest {_part(storage.tail)} take {_seconds(storage.tail.slow_s)} each)"
    if storage.kind == "latency":
        opens = storage.reads if storage.latency_of == "open" else None
        return "the wait for each file (latency)" if opens is None else _opening(opens)
    return "its bandwidth" if storage.kind == "bandwidth" else None


def _stands_still(stalls: Stalls) -> str:
    about = "" if stalls.regular else "about "
    return f"stands still for {_seconds(stalls.length_s)} {about}every {_seconds(stalls.period_s)}"


def _part(tail: Tail) -> str:
    return f"{tail.slowest_part * 100:.0f} %"


def _opening(reads: ReadFigures) -> str:
    return (
        f"opening a file takes {_seconds(reads.mean_open_s)} of its {_seconds(reads.mean_open_s + reads.mean_read_s)}"
    )


def _of_processors(seen: ContentionFigures) -> str:
    """Who had the processors."""
    others = [f"{name} {cores:.2f}" for name, cores in others_of(seen).items()]
    quota = [f"a quota allows {seen.quota_cpus:g}"] if seen.quota_cpus is not None else []
    waits = f"and waits for {seen.queued:.2f} more" if seen.queued >= LEAST_TOLD else "and waits for no more"
    pressure = seen.pressure_fraction or 0.0
    psi = [f"some task waits for one {pressure:.0%} of the time (PSI)"] if pressure >= LEAST_TOLD else []
    return "; ".join([f"processors: the run uses {seen.own:.2f} of {seen.cpus} {waits}", *others, *quota, *psi])


def others_of(seen: ContentionFigures) -> dict[str, float]:
    """Who else used the processors, and how many, where that is worth a word."""
    known = {
        "other processes": seen.neighbours,
        "other processes or the storage's own, which no arm tells apart,": seen.neighbours_or_storage,
        "other guests": seen.stolen,
    }
    return {name: cores for name, cores in known.items() if cores is not None and cores >= LEAST_TOLD}


LEAST_TOLD = 0.05
"""Processors, or part of the time; less is not worth a word."""
BY_WHOM: Mapping[ContentionBy, Callable[[RunRecord], tuple[str, str]]] = {
    "workers": lambda r: (
        f"{r.case.feed.workers} workers share {_processors(r)} with what takes their batches",
        "if that had processors of its own",  # they still wait for each other then
    ),
    "own threads": lambda r: (f"the model and the loader share {_processors(r)}", "with processors of their own"),
    "neighbours": lambda r: (
        f"other processes use {(r.contention and r.contention.neighbours) or 0.0:.2f} of {_processors(r)}",
        "without them",
    ),
    "quota": lambda r: (
        f"a quota allows {(r.contention and r.contention.quota_cpus) or 0.0:g} of {_processors(r)}",
        "without it",
    ),
    "steal": lambda r: (
        f"the hypervisor gives {(r.contention and r.contention.stolen) or 0.0:.2f} of {_processors(r)} to others",
        "without that",
    ),
}
"""By whom a run is held up → (what happens, the words before what its end would give)."""


def _processors(record: RunRecord) -> str:
    cpus = record.contention.cpus if record.contention else 0
    return f"{cpus} processor{'s' * (cpus != 1)}"


def in_brief(verdict: Verdict) -> str:
    """`storage, 2.1× (1.4 – 3.2)`: the verdict's cause, or the best one known, and what removing it gives."""
    gains = {
        cause: gain for cause, gain in verdict.speedup_if_removed.items() if gain is not None and cause != "compute"
    }
    best = max(gains, key=lambda cause: gains[cause].value, default=None)
    if verdict.bottleneck in ("undetermined", "compute"):
        gain, name = None if best is None else gains[best], NAMES[best] if best else ""
        if gain is None or gain.value < WORTH:
            return verdict.bottleneck
        return f"{verdict.bottleneck}; {name} {_times(gain)}"
    if len(verdict.joint) > 1:
        names = [NAMES[cause] for cause in verdict.joint]
        return JOINED[_how_joined(verdict)](_and(names), " or ".join(names)) + _of(verdict.joint_speedup)
    found = next((gain for cause, gain in gains.items() if cause == verdict.bottleneck), verdict.joint_speedup)
    return NAMES.get(verdict.bottleneck, verdict.bottleneck) + _of(found)


def _of(gain: Estimate | None) -> str:
    return "" if gain is None else f", {_times(gain)}"


def _times(gain: Estimate) -> str:
    """`2.1× (1.4 – 3.2)`."""
    if gain.low is None or gain.high is None:
        return f"{gain.value:.2g}× (not bounded)"
    return f"{gain.value:.2f}× ({gain.low:.2f} – {gain.high:.2f})"


Joined = Literal["not separated", "together", "either", "each"]
JOINED: Mapping[Joined, Callable[[str, str], str]] = {
    "not separated": lambda all_of_them, one: f"{one}, or several of them",
    "together": lambda all_of_them, one: f"{all_of_them} together",
    "either": lambda all_of_them, one: f"either {one}",
    "each": lambda all_of_them, one: f"{all_of_them}, each a part",
}
"""How joint causes stand together → them in brief, from their names with `and` and with `or`."""


def _how_joined(verdict: Verdict) -> Joined:
    """Which of the joint causes must go: some that no arm tells apart; any one of them; each gives a part; or only all
    of them give anything, as far as is known."""
    if any(one.code in NOT_SEPARATED for one in verdict.reasons):
        return "not separated"
    alone = [verdict.speedup_if_removed.get(cause) for cause in verdict.joint]
    least = min((gain.value for gain in alone if gain is not None), default=0.0)
    if None in alone or verdict.joint_speedup is None or least < WORTH:
        return "together"
    return "either" if verdict.joint_speedup.value <= MORE * least else "each"


def _of_several(verdict: Verdict, joint: Estimate) -> str:
    """The joint causes, how they stand together, and what each and all of them would give."""
    names, every = [NAMES[cause] for cause in verdict.joint], "both" if len(verdict.joint) == 2 else "all of them"
    how = _how_joined(verdict)
    if how == "not separated":
        separated = next(reason(one) for one in verdict.reasons if one.code in NOT_SEPARATED)
        several = "both" if len(names) == 2 else "several of them"
        which = f"{' or '.join(names)}, or {several}, limit this run"
        return f"{which}; without {every} {_gain(joint)} faster ({separated})"
    alone = [verdict.speedup_if_removed.get(cause) for cause in verdict.joint]
    known = sorted((gain for gain in alone if gain is not None), key=lambda gain: gain.value)
    if how == "together":
        of_one = f", without one of them at most {known[-1].value:.2f}×" if len(known) == len(alone) else ""
        return f"{_and(names)} limit this run together; without {every} {_gain(joint)} faster{of_one}"
    least, most = known[0], known[-1]
    if how == "either":
        return f"{' or '.join(names)} limits this run: without either {_gain(most)} faster, and no more without {every}"
    one = f"{most.value:.2f}×" if most.value <= MORE * least.value else f"{least.value:.2f} to {most.value:.2f}×"
    return f"{_and(names)} each limit this run; without one of them {one} faster, without {every} {_gain(joint)}"


def _of_compute(record: RunRecord, verdict: Verdict) -> str:
    others = [gain for cause, gain in verdict.speedup_if_removed.items() if gain is not None and cause != "compute"]
    best = max(others, key=lambda gain: gain.value, default=None)
    gain = "" if best is None else f"; nothing else is worth more than {best.value:.2f}×"
    fed = record.accelerator_utilization
    part = "a time that was not measured" if fed is None else f"{fed.value:.0%} of the time"
    if record.watched is not None:  # a script on the processors: nothing tells what its step does
        return f"The script's own step limits this run, not its loader: its batches are ready {part}{gain}."
    return f"Compute limits this run: the device is fed {part}{gain}."


def evidence(record: RunRecord) -> list[str]:
    """The measured figures behind the verdict, one a line."""
    lines, verdict = [], record.verdict
    assert verdict is not None
    whose = None if record.watched is None else watched_words.about(record.watched)
    if whose is not None:
        lines.append(whose)
    known = [f"{name} {rate.value:,.0f}" for name, rate in (record.capacities or {}).items() if rate is not None]
    if known:
        lines.append(f"samples/s of each stage alone: {', '.join(known)}")
    for cause, gain in verdict.speedup_if_removed.items():
        if gain is not None and gain.value >= 1.02:
            lines.append(f"without {NAMES[cause]}: {_gain(gain)}")
    if record.accelerator_utilization is not None:
        fed = record.accelerator_utilization.value
        lines.append(f"accelerator utilization {fed:.1%} (a step with data always ready ÷ a real step)")
    wait = verdict.waiting_for_data
    if wait is not None:
        arms, timeline = wait.by_arms.value, wait.by_timeline.value
        lines.append(f"waiting for data: {arms:.1%} of the step by arms, {timeline:.1%} by timeline")
    seen = record.contention
    if seen is not None and seen.queued >= LEAST_TOLD:
        lines.append(_of_processors(seen))
    if record.transfer is not None:
        lines.append(_of_copy(record.transfer))
    if record.storage is not None and record.storage.idle_proof is not None:
        lines.append(f"storage is 0, proven: {IDLE[record.storage.idle_proof]}")
    if record.storage is not None and record.storage.ceiling is not None:
        lines.append(_of_ceiling(record.storage.ceiling))
    gain = verdict.speedup_if_removed.get("storage")
    if record.storage is not None and ("storage" in verdict.joint or (gain is not None and gain.value >= 1.02)):
        lines += of_single_files(record.storage)
    if record.device is not None and record.device.kernel_gap is not None:
        lines += _of_gaps(record.device.kernel_gap, record.device.busy_witnesses)
    return lines


def _of_copy(transfer: TransferFigures) -> str:
    rate, ceiling = transfer.link_bytes_per_s / 1e9, transfer.ceiling_bytes_per_s / 1e9
    return (
        f"copy to the device: {transfer.bytes_per_step / 1e6:,.1f} MB a step in {transfer.copy_s * 1e3:.2f} ms, "
        f"{transfer.exposed_s * 1e3:.2f} ms of it exposed; {rate:.1f} GB/s, the link gives {ceiling:.1f}"
    )


def _of_ceiling(ceiling: Ceiling) -> str:
    found, readers = ceiling.bytes_per_s, ceiling.readers
    wide = "" if found.low is None or found.high is None else _between(found.value, found.low, found.high)
    rising = ", still rising" if ceiling.still_rising else ""
    bound = ""
    if ceiling.bound_by == "bandwidth":
        bound = "; more readers than this run has get little more: bandwidth"
    elif ceiling.bound_by == "latency":
        bound = f"; each doubling of readers gets {ceiling.growth_per_doubling or 0:.1f}× as much: latency"
    to = f"{readers} reader{'s' * (readers != 1)}"
    return f"the storage gives {found.value / 1e6:,.1f} MB/s{wide} to {to}{rising}{bound}"


def of_single_files(storage: StorageFigures) -> list[str]:
    """What single reads tell of a storage: stalls, slow files, slow opens; that of its kind first."""
    lines, stalls, tail, reads = [], storage.stalls, storage.tail, storage.reads
    alone = "`fetch`, which reads the same files alone"
    by_fetch = reads is None and storage.fetch_saw is None
    met = alone if by_fetch else "`real`"
    if stalls is not None:
        lines.append(
            f"the whole storage {_stands_still(stalls)}: {stalls.part:.0%} of the time ({stalls.num} times in the "
            f"windows of {met})"
        )
    if tail is not None:
        lines.append(
            f"a few files are slow: {tail.share:.0%} of the read time goes to the slowest "
            f"{_part(tail)} of the reads, {_seconds(tail.slow_s)} each "
            f"(a typical one takes {_seconds(tail.typical_s)}); {_which(tail)}" + (f" (in {alone})" if by_fetch else "")
        )
    if (slow := storage.slow_folder) is not None:
        lines.append(
            f"files in {slow.folder} take {slow.times:.1f} times as long as the others: it has {slow.of_files:.0%} of "
            f"them, and {slow.of_slowest:.0%} of as many of the slowest reads"
        )
    if storage.latency_of == "open" and reads is not None:
        lines.append(f"{_opening(reads)}: latency")
    if storage.fetch_saw is False:
        lines.append("`fetch` met too few of them, so the gain without preparation is simulated from what `real` met")
    return lines


def _which(tail: Tail) -> str:
    held = "" if tail.folder is None else f"{tail.folder_part or 0:.0%} of them in {tail.folder}; "
    if tail.same_files is None:
        return f"{held}too few were read twice to tell whether it is always the same ones"
    if not tail.same_files:
        return f"{held}different ones each time"
    named = ", ".join(file.path for file in tail.files[:MOST_NAMED])
    return f"{held}the same ones each time, such as {named}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.995 else f"{seconds * 1e3:.3g} ms"


def _of_gaps(gap: KernelGap, seen: BusyWitnesses | None) -> list[str]:
    parts = [f"{name} {share.fraction:.1%}" for name, share in gap.by_class.items() if share.count_per_step]
    cost = gap.perturbation_fraction
    lines = [
        f"kernel gaps: {gap.count_per_step:.0f} a step, {gap.total_fraction:.1%} of {gap.num_steps} traced "
        f"steps{': ' if parts else ''}{', '.join(parts)}"
        + ("" if cost is None else f" (tracing changed the step time by {cost:+.1%})")
    ]
    if seen is not None:
        told = {"kernels": seen.kernels, "nvml": seen.nvml, "gpm": seen.gpm}
        by = ", ".join(f"{name} {value:.1%}" for name, value in told.items() if value is not None)
        lines.append(f"device busy by {by}; by events around the steps at most {seen.events_at_most:.1%}")
    return lines


# -- advice ------------------------------------------------------------------------------------------------


def _headroom(details: Details) -> str:
    if "needs_bytes_per_s" not in details:
        return ""
    needs = f": needs {_megabytes(_number(details, 'needs_bytes_per_s'))}"
    if details.get("gives_bytes_per_s") is None:
        return f"{needs}; what this storage gives was not measured"
    readers = round(_number(details, "readers"))
    rate = _number(details, "gives_bytes_per_s")
    low, high = (_number(details, f"gives_{end}") if details.get(f"gives_{end}") else rate for end in ("low", "high"))
    gives = f"this storage gives {_megabytes(rate)}{_between(rate, low, high)} at {readers} reader"
    return f"{needs}; {gives}{'s' * (readers != 1)}{' and was still rising' if details.get('still_rising') else ''}"


def _add_workers(change: Change, details: Details) -> str:
    if not change:
        return f"add workers: --workers {_text(details, 'workers')} (now {_text(details, 'now')})"
    return f"add workers: {flags(change)} (now {_text(details, 'now')}; knee: more add less than 3 %)"


def _in_parallel(change: Change, details: Details) -> str:
    if not change:
        return f"use a parallel loader: --loader multiprocess --workers {_text(details, 'workers')}"
    return f"prepare batches in parallel: {flags(change)} (knee: more workers add less than 3 %)"


def _in_memory(change: Change, details: Details) -> str:
    kind = str(details["kind"]) if "kind" in details else None
    held_up_by = {"stalls": "its standstills", "tail": "a few slow files"}.get(kind or "")
    if held_up_by is None:
        return (
            "keep the data set in memory (--cache warm): what costs time is the wait for each file, not the storage's "
            "rate"
        )
    where = "keep the data set in memory (--cache warm), or put it" if change else "put the data set"
    return f"{where} on a storage without them: what costs time is {held_up_by}, not this storage's rate"


def _pixels(details: Details) -> str:
    return changed_pixels(from_json(PixelDifference, {**details}))


def changed_pixels(found: PixelDifference) -> str:
    """How much `--decode-scale auto` changes the pixels, in words."""
    return (
        f"changes pixels: by {found.mean:.2f} of 255 levels on average, {found.most:.2f} in the most changed of "
        f"{found.num_samples} samples; {found.scaled_fraction:.0%} of them are decoded smaller"
    )


ACTIONS: Mapping[str, Callable[[Change, Details], str]] = {
    **watched_words.ACTIONS,
    "faster_storage": lambda c, d: (
        f"{'keep the data set in memory (--cache warm), or put it' if c else 'put the data set'} on faster storage"
        f"{_headroom(d)}"
    ),
    "data_in_memory": lambda c, d: _in_memory(c, d) + _headroom(d),
    "more_files_at_once": lambda c, d: (
        f"read more files at once: {flags(c)} (this storage is slow to answer, but serves many readers at once)"
    ),
    "more_prefetch": lambda c, d: f"prefetch more batches, to ride out slow reads: {flags(c)} (now {_text(d, 'now')})",
    "fewer_opens": lambda c, d: (
        "open fewer files, since opening is what takes time: put the images into containers "
        "(loaderbench dataset convert)"
    ),
    "slow_files_elsewhere": lambda c, d: (
        f"move or copy the slow files ({_text(d, 'folder') if d.get('folder') else _list(d, 'files')}): "
        "the others are fast"
    ),
    "parallel_loader": _in_parallel,
    "more_workers": _add_workers,
    "decode_in_threads": lambda c, d: (
        f"decode in threads, straight into the batch: {flags(c)} (knee: more add less than 3 %)"
    ),
    "more_threads": lambda c, d: f"add threads: {flags(c)} (knee: more add less than 3 %)",
    "other_decoder": lambda c, d: f"decode with {c['decoder']}: {flags(c)}",
    "direct_samples": lambda c, d: (
        f"write each sample straight into its batch, without the copies of torchvision's transforms: {flags(c)}"
    ),
    "scaled_decode": lambda c, d: f"decode large crops at 1/2, 1/4 or 1/8: {flags(c)} ({_pixels(d)})",
    "uint8_for_prep": lambda c, d: "hand over uint8 and normalize on the device: --output uint8",
    "smaller_images": lambda c, d: f"store smaller images: loaderbench dataset derive --res {_text(d, 'resolution')}",
    "free_processors": lambda c, d: "the workers wait for a processor: stop other programs, or add cores",
    "fewer_workers": lambda c, d: (
        f"fewer workers: {flags(c)} (now {_text(d, 'now')} on {_text(d, 'cpus')} processors; more only wait for each "
        "other, and each takes memory)"
    ),
    "fewer_threads": lambda c, d: (
        f"the model and the loader share {_text(d, 'cpus')} processors: add cores, so that each has its own (to keep "
        "each to a part of these, OMP_NUM_THREADS, gives less)"
    ),
    "stop_neighbours": lambda c, d: (
        f"stop the other processes, which use {_number(d, 'cores'):.2f} of {_text(d, 'cpus')} processors, or keep them "
        "to other processors (taskset, cpuset)"
    ),
    "raise_quota": lambda c, d: (
        f"raise the CPU quota of {_number(d, 'quota'):g} (cpu.max, the container's --cpus or CPU limit); the machine "
        f"has {_text(d, 'cpus')} processors"
    ),
    "less_steal": lambda c, d: (
        f"the hypervisor gives {_number(d, 'cores'):.2f} of {_text(d, 'cpus')} processors to other guests: take a "
        "machine with processors of its own"
    ),
    "uint8_for_transfer": lambda c, d: (
        "copy uint8, a quarter of the bytes, and normalize on the device: --output uint8"
    ),
    "pinned_memory": lambda c, d: "hand over batches in pinned memory, so that the copy needs no host time",
    "larger_batch": lambda c, d: f"launch less often: {flags(c)} (now {_text(d, 'now')})",
    "fewer_launches": lambda c, d: "replay the step as a CUDA graph, or compile the model",
    "prep_and_memory": lambda c, d: (
        f"both: {ACTIONS[_text(d, 'of')]({k: v for k, v in c.items() if k != 'cache'}, d)}, and the data in memory: "
        "--cache warm"
    ),
}


def action(advice: Advice, record: RunRecord) -> str:
    """What to do."""
    told = ACTIONS[advice.code](advice.change or {}, advice.details)
    if advice.code in watched_words.ACTIONS:  # arguments of a script's own loader, which has no options of ours
        return told
    return told + _left_out(advice.change or {}, record.case)


def _left_out(change: Change, case: Case) -> str:
    """The run's options that the change does away with: `; leave --decode-scale out`."""
    names: list[str] = []
    for name, value in change.items():
        flag, now = flag_of(name), getattr(getattr(case, FIELDS[name]), name)
        if isinstance(value, Mapping):
            names += [f"{flag.removesuffix('s')} {key}" for key in now if key not in value]
        elif value is None and now is not None:
            names.append(flag)
    return f"; leave {' and '.join(names)} out" if names else ""


# -- caveats -----------------------------------------------------------------------------------------------

FAULTS: Mapping[str, Callable[[Details], str]] = {
    "no_complete_step": lambda d: "it holds no complete step",
    "steps_without_kernel": lambda d: f"{_text(d, 'num')} of {_text(d, 'num_steps')} steps have no kernel",
    "steps_differ": lambda d: (
        f"{_text(d, 'num')} of {_text(d, 'num_steps')} steps have more than {_number(d, 'allowed'):.0f} kernels more "
        f"or fewer than the median step's {_number(d, 'median'):.0f} ({_text(d, 'least')} to {_text(d, 'most')})"
    ),
    "graphs_count_as_one": lambda d: (
        f"{_number(d, 'median'):.0f} kernels for {_number(d, 'graphs'):.1f} launches of CUDA graphs a step: graphs "
        "count as one"
    ),
    "count_off": lambda d: (
        f"{WITNESSES[_text(d, 'witness')]}: {_number(d, 'counted'):.0f} a step, expected "
        f"{'at least ' if d.get('at_least') else ''}{_number(d, 'expected'):.0f}"
    ),
    "clocks_do_not_fit": lambda d: (
        f"kernels lie outside their steps by {_percent(d, 'fraction')} of a step: the clocks do not match"
    ),
}
IDLE: Mapping[str, str] = {
    "local": "all pages were in memory before and after each window, and no process of the run read a byte from a disk",
    "nfs": "all pages were in memory before and after each window, and the server was not asked for anything",
    "memory": "the files lie in memory",
}
NO_TRACE: Mapping[str, Callable[[Details], str]] = {
    "not_asked": lambda d: "not asked for: --kernels traces a few steps",
    "no_real_step": lambda d: "the arm `real` has no complete step: raise --duration or --steps",
    "measured_once": lambda d: "the data set's own cache state can be measured only once: --cache cold or warm",
    "max_bytes": lambda d: "--max-bytes leaves nothing for further steps",
    "steps_too_long": lambda d: (
        f"a step takes {_number(d, 'step_s'):.2g} s, too long for three windows of them: raise --duration"
    ),
    "failed": lambda d: f"it failed: {_text(d, 'reason')}",
    "reason": lambda d: _text(d, "reason"),
    "older_version": lambda d: "this run was stored by a version that traced none",
}
NO_CEILING: Mapping[str, Callable[[Details], str]] = {
    "not_asked": lambda d: "that takes --cache cold and --arms all",
    "error": lambda d: _text(d, "reason"),
    "from_cache": lambda d: (
        "the probe's stages were served by some cache, or read fewer than two files for each reader"
    ),
    "ended": lambda d: f"the probe was ended by {_text(d, 'stopped_by')}: raise --duration or --max-bytes",
}
NO_ARMS = {
    "not_asked": "they were not asked for: --arms all",
    "measured_once": "the data set's own cache state can be measured only once, by `real`: --cache cold or warm "
    "measures all",
    "no_time": "the steps take too long to measure them too: raise --duration",
    "interrupted": "the run was ended before",
    "not_allowed": "the loader or the data set does not allow them",
}
NO_TRANSFER = {
    "nothing_copied": "on the CPU nothing is copied",
    "took_no_time": "the batches' copy took no time",
}
NO_STEP_RANGES = {
    "no_step_ranges": "no ProfilerStep: call the profiler's step() after each step",
    "no_host_calls": "the trace has no host calls, so no kernel has a step: record with ProfilerActivity.CPU too",
}


def _half_width(d: Details) -> str:
    return "has no interval" if d.get("half_width") is None else f"is known to ± {_number(d, 'half_width'):.1%}"


def _ends(d: Details) -> str:
    """` (0.93 to 1.15)`; empty without an interval."""
    known = _is_finite(d, "low") and _is_finite(d, "high")
    return f" ({_number(d, 'low'):.2f} to {_number(d, 'high'):.2f})" if known else ""


def _faults(d: Details) -> str:
    faults = cast(list[Mapping[str, Json]], d.get("faults") or [])
    return "; ".join(FAULTS[str(one["code"])](cast(Details, one["details"])) for one in faults)


def _others(d: Details) -> str:
    others = cast(Mapping[str, float], d.get("others") or {})
    names = {"events_at_most": "events at most"}
    return ", ".join(f"{names.get(name, name)} {value:.1%}" for name, value in others.items())


CAVEATS: Mapping[str, Callable[[Details], str]] = {
    "images_failed": lambda d: (
        f"{_text(d, 'num')} image reads failed and were replaced by the next image: see `failures`"
    ),
    "cold_not_proven": lambda d: (
        (
            "bytes unknown"
            if d.get("moved_fraction") is None
            else f"{_percent(d, 'moved_fraction')} of the expected bytes moved"
        )
        + f", residency before each window {_text(d, 'resident_before')}: the cold figures are not those of "
        "the storage"
    ),
    "cold_by_residency": lambda d: (
        "nothing counts this storage's bytes; that the reads were cold follows from the page cache, which was empty "
        "before each window and behind it, and from one file, whose read took "
        f"{_number(d, 'read_ratio'):.0f}× as long as from memory. A cache of the daemon or server cannot be seen"
    ),
    "reads_not_timed": lambda d: (
        "slow files and stalls of the storage are seen by `fetch` alone, if at all: this loader does not tell when it "
        "reads a file, all that its windows were given was read before them, or an older version stored none of it"
    ),
    "fetch_missed": lambda d: (
        "`fetch` met too few of the standstills or slow files that `real` met: what the storage gives alone is not told"
    ),
    "disk_shared": lambda d: (
        f"other programs read {_number(d, 'bytes') / 1e6:,.1f} MB from the same disk during the run; the bytes and "
        "bandwidth given are the run's own"
    ),
    "eviction_failed": lambda d: (
        f"{_percent(d, 'fraction')} of the pages stayed in the page cache after eviction: not cold"
    ),
    "residency_unknown": lambda d: (
        f"page residency cannot be seen: {_text(d, 'reason')}"
        if d.get("reason")
        else "the page cache's content cannot be seen for these files"
    ),
    "warm_not_locked": lambda d: f"{_text(d, 'reason')}; the files are read before each window instead",
    "warm_drifted": lambda d: f"only {_percent(d, 'fraction')} of the pages were still resident after a warm window",
    "ram_subset": lambda d: f"`ram` ran on {_text(d, 'num')} of {_text(d, 'of')} images, with the same mix of sizes",
    "ended_early": lambda d: (
        f"the run was ended in round {_text(d, 'rounds')}: its windows until then are judged; what is looked at once, "
        "behind the rounds (the storage's ceiling, the decoders, the link, memory, the device's kernels), was not"
    ),
    "max_bytes_reached": lambda d: f"--max-bytes {_text(d, 'max_bytes')} ended the measurement before its target",
    "short_runs_not_measured": lambda d: "the data set's own cache state can be measured only once",
    "buffer_not_full": lambda d: (
        "the loader did not come to rest before a short run: its buffer may not have been full"
    ),
    "queue_not_steady": lambda d: f"{_list(d, 'arms')}: the loader's queue was still moving when the window opened",
    "preparation_differs": lambda d: (
        f"preparing an image takes {_number(d, 'ratio'):.2f}× ({_number(d, 'low'):.2f} – {_number(d, 'high'):.2f}) "
        f"the CPU time in `{_text(d, 'arm')}` that it takes in `{_text(d, 'other')}`, with "
        f"{_number(d, 'more_faults'):+.0f} page faults an image: the gain of storage is off by as much"
    ),
    "short_run": lambda d: (
        f"{_text(d, 'steps')} steps are fewer than ten prefetch buffers ({_text(d, 'buffer_batches')} batches each)"
    ),
    "took_longer": lambda d: (
        f"{_number(d, 'seconds'):.0f} s from the start of its process, {_number(d, 'beyond'):.0f} s beyond --duration: "
        + (_list(d, "why", "; ") or "nothing foretold it")
    ),
    "ci_target_missed": lambda d: (
        f"the step time {_half_width(d)}, target ± {_number(d, 'target'):.1%} (stopped by {_text(d, 'stopped_by')})"
    ),
    "cpu_contention": lambda d: (
        f"workers were ready to run but had no processor for {_percent(d, 'fraction')} of their time, which is "
        "the share `contention`"
    ),
    "contention_not_measured": lambda d: (
        "who used the processors is unknown: an older version did not store it, or this kernel counts no run-queue "
        "delay"
    ),
    "witnesses_disagree": REASONS["witnesses_disagree"],
    "real_not_measured": lambda d: "the arm `real` has no complete step",
    "arms_not_measured": lambda d: (
        f"{_list(d, 'arms')}: {NO_ARMS[_text(d, 'why')]}; figures that need them are missing"
    ),
    "launch_not_measured": lambda d: "this device reports no busy time, so compute includes the launch gaps",
    "no_files": lambda d: "the loader reads no files, so no part of a step can be storage",
    "no_transfer": lambda d: f"no figures of the copy: {NO_TRANSFER[_text(d, 'why')]}",
    "loader_owns_transfer": lambda d: "the loader delivers batches on the device: transfer is part of prep",
    "link_not_measured": lambda d: f"the link's ceiling was not measured: {_text(d, 'reason')}",
    "storage_bytes_unknown": lambda d: (
        _text(d, "reason") if d.get("reason") else "the storage's byte counter could not be read"
    ),
    "ceiling_not_measured": lambda d: f"the storage's ceiling was not measured: {NO_CEILING[_text(d, 'why')](d)}",
    "ceiling_still_rising": lambda d: (
        f"the storage was still getting faster at {_text(d, 'readers')} readers (ended by {_text(d, 'stopped_by')}): "
        "its ceiling is at least what is given"
    ),
    "ceiling_probe_limited": lambda d: "the storage probe kept a processor busy itself: the storage may give more",
    "stages_not_measured": lambda d: (
        "the time per image in each stage is not known: "
        + (_text(d, "reason") if d.get("reason") else "this loader does not report read, decode and augment separately")
    ),
    "cpu_not_measured": lambda d: (
        f"{', '.join('cpu.' + str(name) for name in cast(list[Json], d.get('names') or []))}: the windows were "
        "shorter than the sampling of its source"
    ),
    "worker_memory_not_measured": lambda d: (
        f"the memory of the loader's workers is not known: {d.get('reason') or 'an older version did not keep it'}"
    ),
    "overhead_not_measured": lambda d: "the overhead of measuring was not measured in this run",
    "first_batch_not_measured": lambda d: "the time to the first batch was not measured in this run",
    "emulated_device": lambda d: (
        f"no GPU was used: steps took the times of {_text(d, 'name')}, listed in `device` of the record"
    ),
    "issue_unknown": lambda d: (
        "the device's profile does not say what launching a step costs the processors, so the emulation spends "
        "nothing on it: with the real device the loader would have less of them"
    ),
    "device_memory_not_measured": lambda d: f"{_text(d, 'kind')} devices do not report their memory use",
    "nvml_not_measured": lambda d: "no reading of NVML fell into the windows",
    "nvml_device_order": lambda d: (
        f"this machine has {_text(d, 'num_models')} models of GPU, and CUDA numbers the fastest first: the GPU that "
        "was sampled may not be the one that was measured"
    ),
    "nvml_field_missing": lambda d: _text(d, "reason"),
    "kernel_gap_not_measured": lambda d: f"no kernel gaps: {NO_TRACE[_text(d, 'why')](d)}",
    "trace_incomplete": lambda d: f"no kernel gaps, because the trace is incomplete: {_faults(d)}",
    "trace_not_steady": lambda d: (
        f"the loader's queue was still moving in the {_list(d, 'arms', ' and ')} window of the kernel trace: gaps for "
        "want of data, and what tracing cost, hold for that window alone"
    ),
    "busy_witnesses_disagree": lambda d: (
        f"kernels were running for {_number(d, 'kernels'):.1%} of the traced window, but by {_others(d)}: trust "
        "neither alone"
    ),
    "busy_not_cross_checked": lambda d: "no window of 6 s in which to compare NVML with the kernels",
    "watched_script": lambda d: (
        "a script was watched: its files, kernels and copies are not seen, so those figures are missing"
    ),
    "watched_so_far": lambda d: (
        f"written {_number(d, 'seconds'):.0f} s after the script's start, before it had ended: what followed is missing"
    ),
    "not_written_so_far": lambda d: f"while the script ran, the run could not always be stored: {_text(d, 'reason')}",
    "no_bursts": lambda d: (
        f"the run was never held until its loader's queue was full ({_text(d, 'reason')}): the step with data ready is "
        "known by the timeline alone"
    ),
    "no_shadow": lambda d: f"a shadow reader tells nothing of this run ({_text(d, 'reason')})",
    "shadow_differs": lambda d: (
        f"a shadow reader spends {_number(d, 'shadow'):.0%} of a sample on its storage, the script's own workers "
        f"{_number(d, 'spans'):.0%}: one of them found other files in memory, or waits for something else"
    ),
    "no_delays": lambda d: f"known delays tell nothing of this run ({_text(d, 'reason')})",
    "spans_unknown": lambda d: f"the workers' own times are not known ({_text(d, 'reason')})",
    "sampler_failed": lambda d: f"{_list(d, 'channels')}: {_text(d, 'error')}",
    "sampler_missing": lambda d: _text(d, "reason"),
    "fp32_not_measured": lambda d: "fp32 did not run, so nothing can be compared with it",
    "fp32_repeat_not_measured": lambda d: (
        f"fp32 could not be followed a second time ({_text(d, 'reason')}): its own spread is unknown"
    ),
    "memory_is_rss": lambda d: "memory is the growth of the process's peak resident set: the CPU has none of its own",
    "process_memory_not_measured": lambda d: _text(d, "reason"),
    "layers_do_not_sum": lambda d: (
        f"the rows are disturbed: together they are {_number(d, 'ratio'):.3f}{_ends(d)} of the whole iteration "
        "without the stopwatch, not 0.95 to 1.05"
    ),
    "issuing_takes_longer": lambda d: (
        f"an iteration takes {_number(d, 'ratio'):.2f} times what the device works for it: the host issues no faster; "
        "rows and shares are of the device's work"
    ),
    "stopwatch_takes_time": lambda d: (
        f"the rows are disturbed: an iteration with the stopwatch takes {_number(d, 'ratio'):.3f}{_ends(d)} times one "
        "without it"
    ),
    "layers_hold_gaps": lambda d: (
        f"the device had nothing to do before {_number(d, 'num'):.0f} of the rows ({_percent(d, 'share')} of the "
        "iteration), marked with *: their times hold gaps between kernels"
    ),
    "activities_unusable": lambda d: (
        f"{_number(d, 'num'):,.0f} device activities have no usable time or duration: their time counts as idle"
    ),
    "steps_not_annotated": lambda d: NO_STEP_RANGES[_text(d, "why")],
    "facts_missing": lambda d: f"an older version did not keep: {_list(d, 'names')}",
    "not_finite": lambda d: f"computed as NaN or infinity, so stored as null: {_list(d, 'places')}",
}
HINTS: Mapping[str, str] = {
    "images_failed": "loaderbench dataset scan names the broken files",
    "residency_unknown": "see loaderbench doctor",
    "cold_not_proven": "see loaderbench doctor",
    "short_runs_not_measured": "--cache cold or warm",
    "fetch_missed": "raise --duration",
    "short_run": "raise --duration or --steps",
    "ci_target_missed": "raise --duration or --steps",
    "contention_not_measured": "measure again; loaderbench doctor",
    "real_not_measured": "raise --duration or --steps",
    "witnesses_disagree": "measure longer, or on a quieter machine",
    "overhead_not_measured": "measure again",
    "first_batch_not_measured": "measure again",
    "nvml_device_order": "set CUDA_DEVICE_ORDER=PCI_BUS_ID",
    "layers_do_not_sum": "measure on a quieter machine, with more --steps or a larger --batch-size",
    "stopwatch_takes_time": "measure on a quieter machine, with more --steps or a larger --batch-size",
    "layers_hold_gaps": "a larger --batch-size closes them",
    "facts_missing": "measure again where these figures matter",
    "not_finite": "please report it as a bug",
}


def worded_caveat(caveat: Caveat) -> Caveat:
    """The caveat with its words; a caveat that was stored as a sentence keeps it."""
    if caveat.message:
        return caveat
    hint = HINTS.get(caveat.code, "")
    return replace(caveat, message=CAVEATS[caveat.code](caveat.details), hint=hint)


def text(caveat: Caveat) -> str:
    """What it means and what to do about it: `message: hint`."""
    worded = worded_caveat(caveat)
    return f"{worded.message}: {worded.hint}" if worded.hint else worded.message


def sentence(caveat: Caveat) -> str:
    """`code: message: hint`, for a line."""
    return f"{caveat.code}: {text(caveat)}"


# -- notes of a comparison ---------------------------------------------------------------------------------

NOTES: Mapping[str, Callable[[Details], str]] = {
    "as_is_for_cold": lambda d: (
        f"as-is instead of cold: that reads come from the storage cannot be proven for {_text(d, 'path')} (doctor)"
    ),
    "warm_too_large_for_max_bytes": lambda d: (
        f"warm is left out: it reads all {_number(d, 'bytes') / 1e9:,.1f} GB, more than --max-bytes leaves a run"
    ),
    "warm_does_not_fit": lambda d: (
        f"warm is left out: memory cannot hold {_number(d, 'bytes') / 1e9:,.1f} GB; ask for it with --cache"
    ),
    "note": lambda d: _text(d, "text"),
}


def note(one: Reason) -> str:
    """What a comparison left out, or did differently from the default."""
    return NOTES[one.code](one.details)

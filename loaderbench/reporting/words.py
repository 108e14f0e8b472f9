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
    "cache_state_gone": "measuring changes the data set's own cache state: run with --cache cold or --cache warm",
    "no_complete_step": "no step finished within its turn",
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


def _faster(estimate: Estimate) -> str:
    """Return `1.92× faster (1.67 – 2.21)`."""
    if estimate.low is not None and estimate.high is None:
        return f"{estimate.value:.2f}× faster ({estimate.low:.2f} – {NOT_BOUNDED})"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}× faster"
    return f"{estimate.value:.2f}× faster ({estimate.low:.2f} – {estimate.high:.2f})"


def _capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


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
            f"{_percent(d, 'resident_before')} of the pages were in the page cache before the windows: "
            if d.get("moved_fraction") is None
            else f"a cold read got {_percent(d, 'moved_fraction')} of its bytes from the storage and the rest from the "
            "page cache: "
        )
        + "another program reads these files, or they cannot be evicted (see loaderbench doctor)"
    ),
    "read_as_fast_as_memory": lambda d: (
        f"evicted files took {_number(d, 'ratio'):.1f}× as long to read as files in memory: another cache served them "
        "(the file system's own, or memory of the host that this machine maps)"
    ),
    "witnesses_disagree": lambda d: (
        f"two measurements of the data wait disagree: {_percent(d, 'by_arms')} of a step by comparing the arms, "
        f"{_percent(d, 'by_timeline')} by the timeline"
    ),
    "arms_out_of_order": lambda d: (
        f"`{_text(d, 'faster')}` ({_number(d, 'faster_s') * 1e3:.2f} ms per step) ran faster than "
        f"`{_text(d, 'slower')}` ({_number(d, 'slower_s') * 1e3:.2f} ms), although `{_text(d, 'slower')}` does less"
    ),
    "too_few_steps": lambda d: (
        f"the run is too short: `real` has only {_text(d, 'steps')} steps. Use --steps {_text(d, 'wanted')} without "
        f"--duration (measuring takes about {_number(d, 'seconds'):,.0f} s)"
    ),
    "gain_not_measured": lambda d: (
        f"the gain from removing {_text(d, 'cause')} was not measured"
        + (f" and may be up to {_number(d, 'most'):.2f}×" if _is_finite(d, "most") else "")
        + ". To measure it, use --arms all, --cache warm or cold, and a --duration that is long enough for all arms"
    ),
    "gain_uncertain": lambda d: (
        f"the gain from removing {_text(d, 'cause')} is uncertain, {_number(d, 'low'):.2f}× – "
        f"{_number(d, 'high'):.2f}×: measure longer"
    ),
    "may_be_faster": lambda d: (
        f"without {_text(d, 'cause')} the run may be up to {_number(d, 'high'):.2f}× faster: measure longer"
    ),
    "cannot_be_told_apart": lambda d: (
        f"the gains from removing {_list(d, 'causes', ' and from removing ')} are too close to distinguish"
    ),
    "not_separated": lambda d: (
        f"this run cannot separate {_list(d, 'causes', ' and ')}: "
        + (f"it needs the arms {_list(d, 'arms')}" if d["arms"] else "the workers' own times are unknown")
    ),
    "nothing_read": lambda d: (
        f"this run cannot separate {_list(d, 'causes', ' and ')}: the data set waited without reading (a sleep, a lock "
        "or another process)"
    ),
    "device_not_stamped": lambda d: (
        "the script used CUDA, which runs asynchronously, and the device did not report when each step finished "
        f"({d['reason'] or 'for an unknown reason'})"
    ),
    "threads_in_step": lambda d: (
        "other Python threads of the script may have blocked its training thread for at most "
        f"{_percent(d, 'part')} of the step time. If they prepare the batches, the script may be up to "
        f"{_number(d, 'most'):.2f}× faster without them"
    ),
    "delays_disagree": lambda d: (
        f"each step was slowed by a known delay, and steps grew by {_percent(d, 'response')} of it; the bursts and the "
        f"timeline predict {_expected_part(d)}. Do not trust either figure alone"
    ),
    "feeding_uncertain": lambda d: (
        f"the device has its data ready between {_percent(d, 'low')} and {_percent(d, 'high')} of the time: measure "
        "longer"
    ),
    "consumer_not_separated": lambda d: (
        "waiting for data does not limit this run. Use --arms all to see whether compute, launches or the copy does"
    ),
    "storage_was_idle": lambda d: (
        "`real` ran slower than `ram`, but the storage transferred no data. Something else disturbed this run: measure "
        "longer, or on a quieter machine"
    ),
    "stalls_missed": lambda d: (
        f"the storage stalled for {_percent(d, 'part')} of the time, but for {_percent(d, 'seen')} of the time in "
        "which the run itself was measured: measure longer"
    ),
    "none_alone": lambda d: "no single cause gives 1.10× when removed alone",
}

NOT_SEPARATED = ("not_separated", "nothing_read")
"""Codes of reasons for which causes stay joint."""


def reason(one: Reason) -> str:
    return REASONS[one.code](one.details)


def summary(record: RunRecord) -> str:
    """Say what limits the run, and how much faster it would be without that."""
    verdict = record.verdict
    assert verdict is not None
    reasons = [reason(one) for one in verdict.reasons]
    because = ". ".join([*reasons[:1], *map(_capitalized, reasons[1:])])
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
        who, without = BY_WHOM[record.contention.by or "own threads"](record)
        gain = "" if removed is None else f" {without}, the run would be {_faster(removed)}."
        return f"CPU contention limits this run: {who}.{gain}{_beyond_contention(verdict, removed)}"
    name = NAMES[verdict.bottleneck]
    if verdict.bottleneck == "storage" and record.watched is not None:
        name += watched_words.of_stores(record.watched)
    several = verdict.bottleneck == "launch"
    slow = _how_slow(record.storage) if verdict.bottleneck == "storage" and record.storage is not None else None
    why = "" if slow is None else f": {slow}"
    gain = "" if removed is None else f" Without {'them' if several else 'it'}, the run would be {_faster(removed)}."
    return f"{_capitalized(name)} {'limit' if several else 'limits'} this run{why}.{gain}"


def _beyond_contention(verdict: Verdict, removed: Estimate | None) -> str:
    """The best stage that is worth it beyond contention; empty where none is."""
    gains = {cause: gain for cause, gain in verdict.speedup_if_removed.items() if gain is not None and gain.low}
    least = dict.fromkeys(HOLD_CONTENTION, WORTH * (1.0 if removed is None else removed.value))
    worth = [c for c in STAGES if c in gains and gains[c].value >= least.get(c, WORTH) and (gains[c].low or 0) >= SURE]
    best = max(worth, key=lambda cause: gains[cause].value, default=None)
    if best is None:
        return ""
    what = "both" if best in HOLD_CONTENTION else "that cause alone"
    return f" Next comes {NAMES[best]}: without {what}, it would be {_faster(gains[best])}."


def _how_slow(storage: StorageFigures) -> str | None:
    """What makes a storage slow, in a few words; None where that is not known."""
    if storage.kind == "stalls" and storage.stalls is not None:
        return f"it {_stalls(storage.stalls)}"
    if storage.kind == "tail" and storage.tail is not None:
        return f"a few files are slow (the slowest {_part(storage.tail)} take {_seconds(storage.tail.slow_s)} each)"
    if storage.kind == "latency":
        opens = storage.reads if storage.latency_of == "open" else None
        return "each file has a high latency" if opens is None else _opening(opens)
    return "its bandwidth is too low" if storage.kind == "bandwidth" else None


def _stalls(stalls: Stalls) -> str:
    about = "" if stalls.regular else "about "
    return f"stalls for {_seconds(stalls.length_s)} {about}every {_seconds(stalls.period_s)}"


def _part(tail: Tail) -> str:
    return f"{tail.slowest_part * 100:.0f} %"


def _opening(reads: ReadFigures) -> str:
    return (
        f"reading a file takes {_seconds(reads.mean_open_s + reads.mean_read_s)}, and opening it is "
        f"{_seconds(reads.mean_open_s)} of that"
    )


def _of_processors(seen: ContentionFigures) -> str:
    """Who had the processors."""
    others = [f"{name} use {cores:.2f}" for name, cores in others_of(seen).items()]
    quota = [f"a quota allows {seen.quota_cpus:g}"] if seen.quota_cpus is not None else []
    queued = f"{seen.queued:.2f} threads wait" if seen.queued >= LEAST_TOLD else "no thread waits"
    own = f"CPU: the run uses {seen.own:.2f} of {seen.cpus} CPUs; {queued} in the run queue"
    pressure = seen.pressure_fraction or 0.0
    psi = [f"some task waits for a CPU {pressure:.0%} of the time (PSI)"] if pressure >= LEAST_TOLD else []
    return "; ".join([own, *others, *quota, *psi])


def others_of(seen: ContentionFigures) -> dict[str, float]:
    """Who else used the processors, and how many, where that is worth a word."""
    known = {
        "other processes": seen.neighbours,
        "other processes or the storage's own (not separable)": seen.neighbours_or_storage,
        "other guests": seen.stolen,
    }
    return {name: cores for name, cores in known.items() if cores is not None and cores >= LEAST_TOLD}


LEAST_TOLD = 0.05
"""Processors, or part of the time; less is not worth a word."""
BY_WHOM: Mapping[ContentionBy, Callable[[RunRecord], tuple[str, str]]] = {
    "workers": lambda r: (
        f"{r.case.feed.workers} workers share {_processors(r)} with the consumer of their batches",
        "If the consumer had its own CPUs",  # the workers still wait for each other then
    ),
    "own threads": lambda r: (f"the model and the loader share {_processors(r)}", "If each had its own CPUs"),
    "neighbours": lambda r: (
        f"other processes use {(r.contention and r.contention.neighbours) or 0.0:.2f} of {_processors(r)}",
        "Without them",
    ),
    "quota": lambda r: (
        f"a CPU quota allows {(r.contention and r.contention.quota_cpus) or 0.0:g} of {_processors(r)}",
        "Without the quota",
    ),
    "steal": lambda r: (
        f"the hypervisor gives {(r.contention and r.contention.stolen) or 0.0:.2f} of {_processors(r)} to other guests",
        "Without that",
    ),
}
"""By whom a run is held up → (what happens, the words before what its end would give)."""


def _processors(record: RunRecord) -> str:
    cpus = record.contention.cpus if record.contention else 0
    return f"{cpus} CPU{'s' * (cpus != 1)}"


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
    "each": lambda all_of_them, one: f"{all_of_them}, each in part",
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
        return f"{which}. Without {every}, it would be {_faster(joint)}. {_capitalized(separated)}"
    alone = [verdict.speedup_if_removed.get(cause) for cause in verdict.joint]
    known = sorted((gain for gain in alone if gain is not None), key=lambda gain: gain.value)
    if how == "together":
        of_one = f"; without one of them, at most {known[-1].value:.2f}×" if len(known) == len(alone) else ""
        return f"{_and(names)} limit this run together. Without {every}, it would be {_faster(joint)}{of_one}"
    least, most = known[0], known[-1]
    if how == "either":
        which = f"{' or '.join(names)} limits this run"
        return f"{which}. Without either, it would be {_faster(most)}; without {every}, no faster than that"
    one = f"{most.value:.2f}×" if most.value <= MORE * least.value else f"{least.value:.2f} to {most.value:.2f}×"
    which = f"{_and(names)} each limit this run"
    return f"{which}. Without one of them, it would be {one} faster; without {every}, {_faster(joint)}"


def _of_compute(record: RunRecord, verdict: Verdict) -> str:
    others = [gain for cause, gain in verdict.speedup_if_removed.items() if gain is not None and cause != "compute"]
    best = max(others, key=lambda gain: gain.value, default=None)
    gain = "" if best is None else f" Removing any other cause gives at most {best.value:.2f}×."
    fed = record.accelerator_utilization
    ready = "an unmeasured part" if fed is None else f"{fed.value:.0%}"
    # what a script on the processors does in its step is unknown
    limits = (
        "Compute limits this run" if record.watched is None else "The training step limits this run, not its loader"
    )
    return f"{limits}: batches are ready {ready} of the time.{gain}"


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
            lines.append(f"without {NAMES[cause]}: {_faster(gain)}")
    if record.accelerator_utilization is not None:
        fed = record.accelerator_utilization.value
        lines.append(f"accelerator utilization {fed:.1%} (step time with data always ready ÷ real step time)")
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
        lines.append(f"the storage share is 0 (proven): {IDLE[record.storage.idle_proof]}")
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
        f"copy to the device: {transfer.bytes_per_step / 1e6:,.1f} MB per step in {transfer.copy_s * 1e3:.2f} ms, "
        f"{transfer.exposed_s * 1e3:.2f} ms of it exposed; {rate:.1f} GB/s, the link allows {ceiling:.1f}"
    )


def _of_ceiling(ceiling: Ceiling) -> str:
    found, readers = ceiling.bytes_per_s, ceiling.readers
    wide = "" if found.low is None or found.high is None else _between(found.value, found.low, found.high)
    rising = ", still rising" if ceiling.still_rising else ""
    bound = ""
    if ceiling.bound_by == "bandwidth":
        bound = "; more readers than this run uses add little: bandwidth-bound"
    elif ceiling.bound_by == "latency":
        bound = f"; doubling the readers gives {ceiling.growth_per_doubling or 0:.1f}× the rate: latency-bound"
    to = f"{readers} reader{'s' * (readers != 1)}"
    return f"the storage delivers {found.value / 1e6:,.1f} MB/s{wide} to {to}{rising}{bound}"


def of_single_files(storage: StorageFigures) -> list[str]:
    """Describe what single reads show of a storage: stalls, slow files, slow opens; its own kind first."""
    lines, stalls, tail, reads = [], storage.stalls, storage.tail, storage.reads
    alone = "`fetch`, which only reads the same files"
    by_fetch = reads is None and storage.fetch_saw is None
    met = alone if by_fetch else "`real`"
    if stalls is not None:
        lines.append(
            f"the whole storage {_stalls(stalls)}, which is {stalls.part:.0%} of the time ({stalls.num} times in the "
            f"windows of {met})"
        )
    if tail is not None:
        lines.append(
            f"a few files are slow: the slowest {_part(tail)} of the reads take {tail.share:.0%} of the read time, "
            f"{_seconds(tail.slow_s)} each (a typical read takes {_seconds(tail.typical_s)}); {_which(tail)}"
            + (f" (in {alone})" if by_fetch else "")
        )
    if (slow := storage.slow_folder) is not None:
        lines.append(
            f"files in {slow.folder} take {slow.times:.1f} times as long as the others: it has {slow.of_files:.0%} of "
            f"all files, but {slow.of_slowest:.0%} of the slowest reads (counting an equal share of reads)"
        )
    if storage.latency_of == "open" and reads is not None:
        lines.append(f"{_opening(reads)}: latency")
    if storage.fetch_saw is False:
        lines.append(
            "`fetch` saw too few of these, so the gain without preparation is simulated from the reads of `real`"
        )
    return lines


def _which(tail: Tail) -> str:
    held = "" if tail.folder is None else f"{tail.folder_part or 0:.0%} of them are in {tail.folder}; "
    if tail.same_files is None:
        return f"{held}too few files were read twice to know whether the same ones are always slow"
    if not tail.same_files:
        return f"{held}different files are slow each time"
    named = ", ".join(file.path for file in tail.files[:MOST_NAMED])
    return f"{held}the same files are slow each time, such as {named}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.995 else f"{seconds * 1e3:.3g} ms"


def _of_gaps(gap: KernelGap, seen: BusyWitnesses | None) -> list[str]:
    parts = [f"{name} {share.fraction:.1%}" for name, share in gap.by_class.items() if share.count_per_step]
    cost = gap.perturbation_fraction
    lines = [
        f"kernel gaps: {gap.count_per_step:.0f} per step, {gap.total_fraction:.1%} of the time of {gap.num_steps} "
        f"traced steps{': ' if parts else ''}{', '.join(parts)}"
        + ("" if cost is None else f" (tracing changed the step time by {cost:+.1%})")
    ]
    if seen is not None:
        told = {"kernels": seen.kernels, "nvml": seen.nvml, "gpm": seen.gpm}
        by = ", ".join(f"{name} {value:.1%}" for name, value in told.items() if value is not None)
        lines.append(f"device busy: {by}; from events around the steps, at most {seen.events_at_most:.1%}")
    return lines


# -- advice ------------------------------------------------------------------------------------------------


def _headroom(details: Details) -> str:
    if "needs_bytes_per_s" not in details:
        return ""
    needs = f"; the run needs {_megabytes(_number(details, 'needs_bytes_per_s'))}"
    if details.get("gives_bytes_per_s") is None:
        return f"{needs}, and what this storage delivers was not measured"
    readers = round(_number(details, "readers"))
    rate = _number(details, "gives_bytes_per_s")
    low, high = (_number(details, f"gives_{end}") if details.get(f"gives_{end}") else rate for end in ("low", "high"))
    gives = f"this storage delivers {_megabytes(rate)}{_between(rate, low, high)} to {readers} reader"
    return f"{needs}, {gives}{'s' * (readers != 1)}{', still rising' if details.get('still_rising') else ''}"


def _add_workers(change: Change, details: Details) -> str:
    if not change:
        return f"add workers: --workers {_text(details, 'workers')} (now {_text(details, 'now')})"
    return f"add workers: {flags(change)} (now {_text(details, 'now')}; more gives < 3 %)"


def _in_parallel(change: Change, details: Details) -> str:
    if not change:
        return f"use a parallel loader: --loader multiprocess --workers {_text(details, 'workers')}"
    return f"prepare batches in parallel: {flags(change)} (more workers give < 3 %)"


def _in_memory(change: Change, details: Details) -> str:
    kind = str(details["kind"]) if "kind" in details else None
    slow = {"stalls": "stalls", "tail": "slow files"}.get(kind or "")
    if slow is None:
        return "keep the data set in memory (--cache warm): the latency of each file costs the time, not bandwidth"
    where = "keep the data set in memory (--cache warm), or move it" if change else "move the data set"
    return f"{where} to a storage without {slow}: {slow} cost the time, not bandwidth"


def _pixels(details: Details) -> str:
    return changed_pixels(from_json(PixelDifference, {**details}))


def changed_pixels(found: PixelDifference) -> str:
    """How much `--decode-scale auto` changes the pixels, in words."""
    return (
        f"changes pixels by {found.mean:.2f} of 255 levels on average, and by {found.most:.2f} in the most changed of "
        f"{found.num_samples} samples; {found.scaled_fraction:.0%} of the samples are decoded smaller"
    )


ACTIONS: Mapping[str, Callable[[Change, Details], str]] = {
    **watched_words.ACTIONS,
    "faster_storage": lambda c, d: (
        f"{'keep the data set in memory (--cache warm), or move it' if c else 'move the data set'} to faster storage"
        f"{_headroom(d)}"
    ),
    "data_in_memory": lambda c, d: _in_memory(c, d) + _headroom(d),
    "more_files_at_once": lambda c, d: (
        f"read more files in parallel: {flags(c)} (this storage has a high latency, but serves many readers at once)"
    ),
    "more_prefetch": lambda c, d: f"prefetch more batches to absorb slow reads: {flags(c)} (now {_text(d, 'now')})",
    "fewer_opens": lambda c, d: (
        "open fewer files, because opening them takes the time: pack the images into container files "
        "(loaderbench dataset convert)"
    ),
    "slow_files_elsewhere": lambda c, d: (
        f"move or copy the slow files ({_text(d, 'folder') if d.get('folder') else _list(d, 'files')}): "
        "the others are fast"
    ),
    "parallel_loader": _in_parallel,
    "more_workers": _add_workers,
    "decode_in_threads": lambda c, d: (
        f"decode in threads, directly into the batch: {flags(c)} (more threads give < 3 %)"
    ),
    "more_threads": lambda c, d: f"add threads: {flags(c)} (more gives < 3 %)",
    "other_decoder": lambda c, d: f"decode with {c['decoder']}: {flags(c)}",
    "direct_samples": lambda c, d: (
        f"write each sample directly into its batch, without the copies of torchvision's transforms: {flags(c)}"
    ),
    "scaled_decode": lambda c, d: f"decode large crops at 1/2, 1/4 or 1/8 of their size: {flags(c)} ({_pixels(d)})",
    "uint8_for_prep": lambda c, d: "deliver uint8 batches and normalize on the device: --output uint8",
    "smaller_images": lambda c, d: f"store smaller images: loaderbench dataset derive --res {_text(d, 'resolution')}",
    "free_processors": lambda c, d: "the workers wait for a CPU: stop other programs, or add cores",
    "fewer_workers": lambda c, d: (
        f"use fewer workers: {flags(c)} (now {_text(d, 'now')} on {_text(d, 'cpus')} CPUs; extra workers only wait for "
        "each other, and each uses memory)"
    ),
    "fewer_threads": lambda c, d: (
        f"the model and the loader share {_text(d, 'cpus')} CPUs: add cores so that each has its own (limiting their "
        "threads with OMP_NUM_THREADS gives less)"
    ),
    "stop_neighbours": lambda c, d: (
        f"stop the other processes, which use {_number(d, 'cores'):.2f} of {_text(d, 'cpus')} CPUs, or pin them to "
        "other CPUs (taskset, cpuset)"
    ),
    "raise_quota": lambda c, d: (
        f"raise the CPU quota of {_number(d, 'quota'):g} (cpu.max, the container's --cpus or CPU limit); the machine "
        f"has {_text(d, 'cpus')} CPUs"
    ),
    "less_steal": lambda c, d: (
        f"the hypervisor gives {_number(d, 'cores'):.2f} of {_text(d, 'cpus')} CPUs to other guests: use a machine "
        "with dedicated CPUs"
    ),
    "uint8_for_transfer": lambda c, d: (
        "copy uint8, a quarter of the bytes, and normalize on the device: --output uint8"
    ),
    "pinned_memory": lambda c, d: "deliver batches in pinned memory, so that the copy needs no host time",
    "larger_batch": lambda c, d: (
        f"use a larger batch, which needs fewer launches per image: {flags(c)} (now {_text(d, 'now')})"
    ),
    "fewer_launches": lambda c, d: "replay the step as a CUDA graph, or compile the model",
    "prep_and_memory": lambda c, d: (
        f"do both: {ACTIONS[_text(d, 'of')]({k: v for k, v in c.items() if k != 'cache'}, d)}, and keep the data in "
        "memory: --cache warm"
    ),
}


def action(advice: Advice, record: RunRecord) -> str:
    """What to do."""
    told = ACTIONS[advice.code](advice.change or {}, advice.details)
    if advice.code in watched_words.ACTIONS:  # arguments of a script's own loader, which has no options of ours
        return told
    return told + _left_out(advice.change or {}, record.case)


def _left_out(change: Change, case: Case) -> str:
    """Name the run's options that the change drops: `; drop --decode-scale`."""
    names: list[str] = []
    for name, value in change.items():
        flag, now = flag_of(name), getattr(getattr(case, FIELDS[name]), name)
        if isinstance(value, Mapping):
            names += [f"{flag.removesuffix('s')} {key}" for key in now if key not in value]
        elif value is None and now is not None:
            names.append(flag)
    return f"; drop {' and '.join(names)}" if names else ""


# -- caveats -----------------------------------------------------------------------------------------------

FAULTS: Mapping[str, Callable[[Details], str]] = {
    "no_complete_step": lambda d: "the trace has no complete step",
    "steps_without_kernel": lambda d: f"{_text(d, 'num')} of {_text(d, 'num_steps')} steps have no kernels",
    "steps_differ": lambda d: (
        f"the kernel counts of {_text(d, 'num')} of {_text(d, 'num_steps')} steps differ by more than "
        f"{_number(d, 'allowed'):.0f} from the median, {_number(d, 'median'):.0f} (range {_text(d, 'least')} to "
        f"{_text(d, 'most')})"
    ),
    "graphs_count_as_one": lambda d: (
        f"{_number(d, 'median'):.0f} kernels for {_number(d, 'graphs'):.1f} CUDA graph launches per step: the trace "
        "counts each graph as one kernel"
    ),
    "count_off": lambda d: (
        f"{WITNESSES[_text(d, 'witness')]}: {_number(d, 'counted'):.0f} per step, expected "
        f"{'at least ' if d.get('at_least') else ''}{_number(d, 'expected'):.0f}"
    ),
    "clocks_do_not_fit": lambda d: (
        f"kernels run outside their steps by {_percent(d, 'fraction')} of a step: the clocks do not match"
    ),
}
IDLE: Mapping[str, str] = {
    "local": "all pages were in memory before and after each window, and no process of the run read a byte from a disk",
    "nfs": "all pages were in memory before and after each window, and the server got no request",
    "memory": "the files are in memory",
}
NO_TRACE: Mapping[str, Callable[[Details], str]] = {
    "not_asked": lambda d: "not requested; use --kernels to trace a few steps",
    "no_real_step": lambda d: "the arm `real` has no complete step: raise --duration or --steps",
    "measured_once": lambda d: "the data set's own cache state can be measured only once; use --cache cold or warm",
    "max_bytes": lambda d: "--max-bytes leaves no budget for more steps",
    "steps_too_long": lambda d: (
        f"a step takes {_number(d, 'step_s'):.2g} s, too long for three windows: raise --duration"
    ),
    "failed": lambda d: f"tracing failed: {_text(d, 'reason')}",
    "reason": lambda d: _text(d, "reason"),
    "older_version": lambda d: "an older version, which did not trace kernels, stored this run",
}
NO_CEILING: Mapping[str, Callable[[Details], str]] = {
    "not_asked": lambda d: "use --cache cold and --arms all",
    "error": lambda d: _text(d, "reason"),
    "from_cache": lambda d: "a cache served the probe's stages, or each reader read fewer than two files",
    "ended": lambda d: f"{_text(d, 'stopped_by')} stopped the probe: raise --duration or --max-bytes",
}
NO_ARMS = {
    "not_asked": "they were not requested; use --arms all",
    "measured_once": "only `real` can measure the data set's own cache state, and only once; use --cache cold or warm "
    "to measure all",
    "no_time": "the steps take too long to measure these arms too; raise --duration",
    "interrupted": "the run stopped before they were measured",
    "not_allowed": "the loader or the data set does not support them",
}
NO_TRANSFER = {
    "nothing_copied": "the CPU needs no copy",
    "took_no_time": "copying the batches took no time",
}
NO_STEP_RANGES = {
    "no_step_ranges": "the trace has no ProfilerStep: call the profiler's step() after each step",
    "no_host_calls": "the trace has no host calls, so its kernels belong to no step: record with ProfilerActivity.CPU "
    "too",
}


def _half_width(d: Details) -> str:
    return (
        "has no confidence interval" if d.get("half_width") is None else f"is known to ± {_number(d, 'half_width'):.1%}"
    )


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
        f"{_text(d, 'num')} image reads failed, and the next image replaced each (see `failures`)"
    ),
    "cold_not_proven": lambda d: (
        (
            "how many bytes came from the storage is unknown"
            if d.get("moved_fraction") is None
            else f"{_percent(d, 'moved_fraction')} of the expected bytes came from the storage"
        )
        + f", and page residency before each window was {_text(d, 'resident_before')}. The cold figures are not those "
        "of the storage"
    ),
    "cold_by_residency": lambda d: (
        "this storage has no byte counter. The reads count as cold because the page cache was empty before and after "
        f"each window, and because reading one file took {_number(d, 'read_ratio'):.0f}× as long as from memory. A "
        "cache of the daemon or server would not show"
    ),
    "reads_not_timed": lambda d: (
        "only `fetch` can show slow files and storage stalls. Either this loader does not report its reads, or it read "
        "all files before the windows began, or an older version did not store the read times"
    ),
    "fetch_missed": lambda d: (
        "`fetch` saw too few of the stalls or slow files that `real` saw, so what the storage delivers alone is unknown"
    ),
    "disk_shared": lambda d: (
        f"other programs read {_number(d, 'bytes') / 1e6:,.1f} MB from the same disk during the run. The reported "
        "bytes and bandwidth are the run's own"
    ),
    "eviction_failed": lambda d: (
        f"{_percent(d, 'fraction')} of the pages stayed in the page cache after eviction, so the cache was not cold"
    ),
    "residency_unknown": lambda d: (
        f"page residency is unknown: {_text(d, 'reason')}"
        if d.get("reason")
        else "which of these files are in the page cache is unknown"
    ),
    "warm_not_locked": lambda d: f"{_text(d, 'reason')}; the run reads the files before each window instead",
    "warm_drifted": lambda d: f"only {_percent(d, 'fraction')} of the pages were still in memory after a warm window",
    "ram_subset": lambda d: f"`ram` used {_text(d, 'num')} of {_text(d, 'of')} images, with the same mix of sizes",
    "ended_early": lambda d: (
        f"stopped in round {_text(d, 'rounds')}. The verdict uses the windows measured until then. The storage's "
        "ceiling, the decoders, the link, memory and the device's kernels were not measured"
    ),
    "max_bytes_reached": lambda d: (
        f"--max-bytes {_text(d, 'max_bytes')} stopped the measurement before it reached its target"
    ),
    "short_runs_not_measured": lambda d: "the data set's own cache state can be measured only once",
    "buffer_not_full": lambda d: (
        "the loader was not yet steady when a short run began, so its buffer may not have been full"
    ),
    "queue_not_steady": lambda d: f"{_list(d, 'arms')}: the loader's queue was not yet steady when the window opened",
    "preparation_differs": lambda d: (
        f"preparing an image in `{_text(d, 'arm')}` takes {_number(d, 'ratio'):.2f}× ({_number(d, 'low'):.2f} – "
        f"{_number(d, 'high'):.2f}) the CPU time that it takes in `{_text(d, 'other')}`, with "
        f"{_number(d, 'more_faults'):+.0f} page faults per image. The gain of storage is wrong by the same amount"
    ),
    "short_run": lambda d: (
        f"the run is short: {_text(d, 'steps')} steps are fewer than ten prefetch buffers "
        f"({_text(d, 'buffer_batches')} batches each)"
    ),
    "took_longer": lambda d: (
        f"the run took {_number(d, 'seconds'):.0f} s from the start of its process, {_number(d, 'beyond'):.0f} s more "
        "than --duration: " + (_list(d, "why", "; ") or "the reason was not predicted")
    ),
    "ci_target_missed": lambda d: (
        f"the step time {_half_width(d)}, the target is ± {_number(d, 'target'):.1%} (stopped by "
        f"{_text(d, 'stopped_by')})"
    ),
    "cpu_contention": lambda d: (
        f"workers were runnable but waited for a CPU for {_percent(d, 'fraction')} of their time; this is the share "
        "`contention`"
    ),
    "contention_not_measured": lambda d: (
        "who used the CPUs is unknown: an older version did not store it, or this kernel does not count run-queue delay"
    ),
    "witnesses_disagree": REASONS["witnesses_disagree"],
    "real_not_measured": lambda d: "the arm `real` has no complete step",
    "arms_not_measured": lambda d: (
        f"{_list(d, 'arms')}: {NO_ARMS[_text(d, 'why')]}. Figures that need these arms are missing"
    ),
    "launch_not_measured": lambda d: "this device reports no busy time, so compute includes the launch gaps",
    "no_files": lambda d: "the loader reads no files, so a step has no storage time",
    "no_transfer": lambda d: f"no copy figures: {NO_TRANSFER[_text(d, 'why')]}",
    "loader_owns_transfer": lambda d: "the loader delivers batches on the device, so transfer is part of prep",
    "link_not_measured": lambda d: f"the link's ceiling was not measured: {_text(d, 'reason')}",
    "storage_bytes_unknown": lambda d: (
        _text(d, "reason") if d.get("reason") else "the storage's byte counter could not be read"
    ),
    "ceiling_not_measured": lambda d: f"the storage's ceiling was not measured: {NO_CEILING[_text(d, 'why')](d)}",
    "ceiling_still_rising": lambda d: (
        f"the storage was still getting faster at {_text(d, 'readers')} readers (stopped by {_text(d, 'stopped_by')}), "
        "so the reported ceiling is a lower bound"
    ),
    "ceiling_probe_limited": lambda d: "the storage probe was CPU-bound, so the storage may deliver more",
    "stages_not_measured": lambda d: (
        "the time per image in each stage is unknown: "
        + (_text(d, "reason") if d.get("reason") else "this loader does not report read, decode and augment separately")
    ),
    "cpu_not_measured": lambda d: (
        f"{', '.join('cpu.' + str(name) for name in cast(list[Json], d.get('names') or []))}: the windows were "
        "shorter than the sampling interval"
    ),
    "worker_memory_not_measured": lambda d: (
        f"the memory of the loader's workers is unknown: {d.get('reason') or 'an older version did not store it'}"
    ),
    "overhead_not_measured": lambda d: "this run did not measure its own overhead",
    "first_batch_not_measured": lambda d: "this run did not measure the time to the first batch",
    "emulated_device": lambda d: (
        f"no GPU was used: step times are those of {_text(d, 'name')} (see `device` in the record)"
    ),
    "issue_unknown": lambda d: (
        "the device's profile does not give the CPU cost of launching a step, so the emulation spends no CPU time on "
        "it. With the real device the loader would have less CPU time"
    ),
    "device_memory_not_measured": lambda d: f"{_text(d, 'kind')} devices do not report their memory use",
    "nvml_not_measured": lambda d: "NVML gave no reading within the windows",
    "nvml_device_order": lambda d: (
        f"this machine has {_text(d, 'num_models')} GPU models, and CUDA numbers the fastest first. The sampled GPU "
        "may not be the measured one"
    ),
    "nvml_field_missing": lambda d: _text(d, "reason"),
    "kernel_gap_not_measured": lambda d: f"no kernel gaps: {NO_TRACE[_text(d, 'why')](d)}",
    "trace_incomplete": lambda d: f"no kernel gaps, because the trace is incomplete: {_faults(d)}",
    "trace_not_steady": lambda d: (
        f"the loader's queue was not yet steady in the {_list(d, 'arms', ' and ')} window of the kernel trace. Gaps "
        "from missing data and the cost of tracing apply to that window only"
    ),
    "busy_witnesses_disagree": lambda d: (
        f"kernels ran for {_number(d, 'kernels'):.1%} of the traced window, but other measurements say {_others(d)}. "
        "Do not trust either alone"
    ),
    "busy_not_cross_checked": lambda d: "no window was 6 s long, so NVML was not compared with the kernels",
    "watched_script": lambda d: (
        "watching a script does not show its files, kernels and copies, so those figures are missing"
    ),
    "watched_so_far": lambda d: (
        f"written {_number(d, 'seconds'):.0f} s after the script's start, while it was still running: the rest is "
        "missing"
    ),
    "not_written_so_far": lambda d: f"some saves of the run failed while the script was running: {_text(d, 'reason')}",
    "no_bursts": lambda d: (
        f"the run was never paused until its loader's queue was full ({_text(d, 'reason')}), so the step time with "
        "data ready comes from the timeline alone"
    ),
    "no_shadow": lambda d: f"the shadow reader gave no result for this run ({_text(d, 'reason')})",
    "shadow_differs": lambda d: (
        f"a shadow reader spends {_number(d, 'shadow'):.0%} of a sample on storage, the script's own workers "
        f"{_number(d, 'spans'):.0%}: one of them found other files in memory, or waits for something else"
    ),
    "no_delays": lambda d: f"known delays gave no result for this run ({_text(d, 'reason')})",
    "spans_unknown": lambda d: f"the workers' own times are unknown ({_text(d, 'reason')})",
    "sampler_failed": lambda d: f"{_list(d, 'channels')}: {_text(d, 'error')}",
    "sampler_missing": lambda d: _text(d, "reason"),
    "fp32_not_measured": lambda d: "fp32 did not run, so there is no reference to compare with",
    "fp32_repeat_not_measured": lambda d: (
        f"fp32 could not be repeated ({_text(d, 'reason')}), so its own spread is unknown"
    ),
    "memory_is_rss": lambda d: (
        "memory is the growth of the process's peak resident set, because the CPU has no memory of its own"
    ),
    "process_memory_not_measured": lambda d: _text(d, "reason"),
    "layers_do_not_sum": lambda d: (
        f"the rows are distorted: their sum is {_number(d, 'ratio'):.3f}{_ends(d)} of the whole iteration without the "
        "stopwatch, not 0.95 to 1.05"
    ),
    "issuing_takes_longer": lambda d: (
        f"the run is host-bound: an iteration takes {_number(d, 'ratio'):.2f} times the device's work in it, because "
        "the host launches no faster. Rows and shares are of the device's work"
    ),
    "stopwatch_takes_time": lambda d: (
        f"the rows are distorted: an iteration with the stopwatch takes {_number(d, 'ratio'):.3f}{_ends(d)} times as "
        "long as without it"
    ),
    "layers_hold_gaps": lambda d: (
        f"the device was idle before {_number(d, 'num'):.0f} of the rows ({_percent(d, 'share')} of the iteration), "
        "marked with *. Their times include gaps between kernels"
    ),
    "activities_unusable": lambda d: (
        f"{_number(d, 'num'):,.0f} device activities have no usable time or duration: their time counts as idle"
    ),
    "steps_not_annotated": lambda d: NO_STEP_RANGES[_text(d, "why")],
    "facts_missing": lambda d: f"an older version did not store these figures: {_list(d, 'names')}",
    "not_finite": lambda d: f"these figures were NaN or infinity and are stored as null: {_list(d, 'places')}",
}
HINTS: Mapping[str, str] = {
    "images_failed": "loaderbench dataset scan names the broken files",
    "residency_unknown": "see loaderbench doctor",
    "cold_not_proven": "see loaderbench doctor",
    "short_runs_not_measured": "use --cache cold or warm",
    "fetch_missed": "raise --duration",
    "short_run": "raise --duration or --steps",
    "ci_target_missed": "raise --duration or --steps",
    "contention_not_measured": "measure again, or see loaderbench doctor",
    "real_not_measured": "raise --duration or --steps",
    "witnesses_disagree": "measure longer, or on a quieter machine",
    "overhead_not_measured": "measure again",
    "first_batch_not_measured": "measure again",
    "nvml_device_order": "set CUDA_DEVICE_ORDER=PCI_BUS_ID",
    "layers_do_not_sum": "measure on a quieter machine, with more --steps or a larger --batch-size",
    "stopwatch_takes_time": "measure on a quieter machine, with more --steps or a larger --batch-size",
    "layers_hold_gaps": "a larger --batch-size closes them",
    "facts_missing": "measure again if you need them",
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
        f"as-is instead of cold: reads of {_text(d, 'path')} cannot be proven to come from the storage (see doctor)"
    ),
    "warm_too_large_for_max_bytes": lambda d: (
        f"warm is skipped: it reads all {_number(d, 'bytes') / 1e9:,.1f} GB, more than --max-bytes allows a run"
    ),
    "warm_does_not_fit": lambda d: (
        f"warm is skipped: memory cannot hold {_number(d, 'bytes') / 1e9:,.1f} GB; to run it anyway, use --cache"
    ),
    "note": lambda d: _text(d, "text"),
}


def note(one: Reason) -> str:
    """What a comparison left out, or did differently from the default."""
    return NOTES[one.code](one.details)

"""The sentences of a record: verdict, evidence and advice. Those of its findings are in findings/."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

from loaderbench.analysis.invariants import best_elsewhere
from loaderbench.analysis.model import WORTH
from loaderbench.analysis.verdict import HOLD_CONTENTION, MORE, SURE
from loaderbench.cases.case import FIELDS, Case, Change
from loaderbench.cases.case import flags as flags
from loaderbench.cases.options import flag_of
from loaderbench.findings.figures import between
from loaderbench.findings.table import words
from loaderbench.pipeline.fit import EXPLAINED
from loaderbench.plain import Json
from loaderbench.printable import counted
from loaderbench.recording.caveats import Reason
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
    RateChange,
    ReadFigures,
    Residual,
    RunRecord,
    Stalls,
    StorageFigures,
    Tail,
    TransferFigures,
    Verdict,
)
from loaderbench.reporting import watched_words

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


def worded(record: RunRecord) -> RunRecord:
    """The record with its sentences."""
    caveats = tuple(caveat.worded() for caveat in record.caveats)
    if record.verdict is None:
        return replace(record, caveats=caveats)
    verdict = replace(
        record.verdict,
        summary=summary(record),
        evidence=tuple(evidence(record)),
        advice=tuple(
            replace(
                advice,
                action=action(advice, record),
                not_verified=None if advice.not_verified is None else words(advice.not_verified, {}),
            )
            for advice in record.verdict.advice
        ),
    )
    return replace(record, caveats=caveats, verdict=verdict)


# -- figures in sentences ----------------------------------------------------------------------------------


def _faster(estimate: Estimate) -> str:
    """Return `1.92× faster (1.67 – 2.21)`."""
    if estimate.low is not None and estimate.high is None:
        return f"at least {estimate.low:.2f}× faster"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}× faster"
    return f"{estimate.value:.2f}× faster ({estimate.low:.2f} – {estimate.high:.2f})"


def _capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


MOST_NAMED = 3
"""Slow files that a line names."""


def _and(names: Sequence[str]) -> str:
    """`a and b and c`."""
    return " and ".join(names)


# -- the verdict -------------------------------------------------------------------------------------------

NOT_SEPARATED = ("not_separated", "nothing_read")
"""Codes of reasons for which causes stay joint."""


def summary(record: RunRecord) -> str:
    """Say what limits the run, how much faster it would be without that, and whether its rate changed meanwhile."""
    verdict, change = record.verdict, record.rate_change
    assert verdict is not None
    return _limit(record, verdict) + ("" if change is None else f" {_changed(change)}")


def _changed(change: RateChange) -> str:
    verb = "fell" if change.after < change.before else "rose"
    return (
        f"After {change.at_s:.0f} s of measuring, the rate {verb} from {change.before:,.0f} to {change.after:,.0f} "
        "images/s and stayed there: all other figures are of both parts."
    )


def _limit(record: RunRecord, verdict: Verdict) -> str:
    reasons = [one.text() for one in verdict.reasons]
    because = ". ".join([*reasons[:1], *map(_capitalized, reasons[1:])])
    if verdict.bottleneck == "undetermined":
        return f"Undetermined: {because}."
    if (by_name := watched_words.by_name(verdict, record.watched)) is not None:
        removed = verdict.gain
        return by_name + ("" if removed is None else f" Without it, the run would be {_faster(removed)}.")
    if verdict.bottleneck == "compute":
        return _of_compute(record, verdict)
    if verdict.bottleneck == "mixed":
        if verdict.joint and verdict.joint_speedup is not None:
            return f"Mixed: {_of_several(verdict, verdict.joint_speedup)}."
        return f"Mixed: {because or Reason('none_alone').text()}."
    removed = verdict.gain or verdict.joint_speedup
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
    model = "" if verdict.by_model is None else f", {verdict.by_model.value:.2f}× by the model"
    without = f" Without {'them' if several else 'it'}, the run would be "
    gain = "" if removed is None else f"{without}{_faster(removed)}{model}."
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
    return counted(cpus, "CPU")


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
    if gain.low is not None and gain.high is None:
        return f"at least {gain.low:.2g}×"
    if gain.low is None or gain.high is None:
        return f"{gain.value:.2g}× ({NOT_BOUNDED})"
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
        separated = next(one.text() for one in verdict.reasons if one.code in NOT_SEPARATED)
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
    best = best_elsewhere(verdict)
    gain = "" if best is None else f" Removing any other cause gives at most {best:.2f}×."
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
        lines.append(words("storage_idle", {"proof": record.storage.idle_proof}))
    if record.storage is not None and record.storage.ceiling is not None:
        lines.append(_of_ceiling(record.storage.ceiling))
    gain = verdict.speedup_if_removed.get("storage")
    if record.storage is not None and ("storage" in verdict.joint or (gain is not None and gain.value >= 1.02)):
        lines += of_single_files(record.storage)
    if record.device is not None and record.device.kernel_gap is not None:
        lines += _of_gaps(record.device.kernel_gap, record.device.busy_witnesses)
    if record.residual is not None:
        lines.append(explained(record.residual))
    return lines


def explained(residual: Residual) -> str:
    """How well the model explains the run."""
    off = f"{abs(residual.value) * 100:.1f} %"
    if abs(residual.value) > EXPLAINED:
        more = "longer" if residual.value > 0 else "shorter"
        return f"the model of this run takes {off} {more} for a step: expect its predictions to be off as far"
    return f"the model explains this run to {off}{'' if residual.held_out else ' (one round: by its own batches)'}"


def _of_copy(transfer: TransferFigures) -> str:
    rate, ceiling = transfer.link_bytes_per_s / 1e9, transfer.ceiling_bytes_per_s / 1e9
    return (
        f"copy to the device: {transfer.bytes_per_step / 1e6:,.1f} MB per step in {transfer.copy_s * 1e3:.2f} ms, "
        f"{transfer.exposed_s * 1e3:.2f} ms of it exposed; {rate:.1f} GB/s, the link allows {ceiling:.1f}"
    )


def _of_ceiling(ceiling: Ceiling) -> str:
    found, readers = ceiling.bytes_per_s, ceiling.readers
    wide = "" if found.low is None or found.high is None else between(found.value, found.low, found.high)
    rising = ", still rising" if ceiling.still_rising else ""
    bound = ""
    if ceiling.bound_by == "bandwidth":
        bound = "; more readers than this run uses add little: bandwidth-bound"
    elif ceiling.bound_by == "latency":
        bound = f"; doubling the readers gives {ceiling.growth_per_doubling or 0:.1f}× the rate: latency-bound"
    to = counted(readers, "reader")
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


def changed_pixels(found: PixelDifference) -> str:
    """Say how much `--decode-scale auto` changes the pixels."""
    return words("pixels_changed", vars(found))


def action(advice: Advice, record: RunRecord) -> str:
    """Say what to do."""
    change = advice.change or {}
    told = words(advice.code, {**advice.details, "change": dict(cast(Mapping[str, Json], change))})
    return told if record.watched is not None else told + _left_out(change, record.case)  # a script has other options


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

"""What a what-if asks for, resolved against the run: a change of its pipeline, and what that assumes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from loaderbench import plugins
from loaderbench.analysis import storage
from loaderbench.analysis.whatif import bytes_per_step, decoder_ratio, samples_per_step
from loaderbench.cases.case import SCALED, Case, FieldValue
from loaderbench.cases.options import Time, WhatifOptions
from loaderbench.cases.study import MIN_WORKER_LIMIT, WORKERS_PER_CPU
from loaderbench.devices.profile import Profile
from loaderbench.devices.select import known_times, parse_device, traits_of
from loaderbench.errors import ConfigError
from loaderbench.findings.table import words
from loaderbench.pipeline.change import Change, own_read_s
from loaderbench.pipeline.fit import Fitted, fair_part, fit
from loaderbench.pipeline.gains import longer
from loaderbench.pipeline.stages import Times
from loaderbench.printable import short
from loaderbench.recording.caveats import Reason
from loaderbench.recording.facts import Run
from loaderbench.recording.store import Store, load_stored
from loaderbench.recording.whatif import Missing, WhatifAsked

MOST_FACTOR = 1_000.0
RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?/s")
FACTOR = re.compile(r"(\d+(?:\.\d+)?)\s*[x×]")
LEAST_READ_S = 1e-5
"""Own reading of a batch below which nothing tells how long another storage's would be."""


@dataclass
class WhatifPlan:
    """A change of a run's pipeline."""

    fitted: Fitted
    asked: WhatifAsked
    changes: dict[str, object] = field(default_factory=dict)
    """Fields of the pipeline's change."""
    factors: dict[str, Times] = field(default_factory=dict)
    """Column of the batches → how much of its value it may be."""
    fields: dict[str, FieldValue] = field(default_factory=dict)
    """Fields of the case that would be others."""
    assumed: list[Reason] = field(default_factory=list)
    measurable: bool = True
    """Whether a run can be exactly this."""

    @property
    def run(self) -> Run:
        return self.fitted.run

    @property
    def change(self) -> Change:
        return Change(**self.changes, factors=self.factors)  # type: ignore[arg-type]

    @property
    def loader_changes(self) -> bool:
        """Whether more than the step and the ranks is another."""
        asked = self.asked
        return any(one is not None for one in (asked.workers, asked.prefetch, asked.decoder, asked.storage))

    @property
    def wanted(self) -> Case | None:
        """The case of a run that is exactly this."""
        return self.run.case.changed(**self.fields) if self.measurable and not self.fitted.is_watched else None

    @property
    def missing(self) -> Mapping[Missing, str]:
        return {} if self.wanted is not None else {"wanted": words("whatif_no_case", {})}


def planned(run: Run, options: WhatifOptions, store: Store) -> WhatifPlan:
    """The change of a run that was asked for.

    Raises:
        ConfigError: the run does not tell enough for it, with the reason; or an option means nothing.
    """
    fitted = fit(run)
    if fitted is None:
        raise ConfigError(f"{run.run_id} has no step of its loader and device together (the arm `real`) to begin from")
    asked = WhatifAsked(
        options.workers, options.prefetch, options.decoder, options.device, options.storage, options.ranks
    )
    plan = WhatifPlan(fitted, asked)
    if plan.loader_changes:
        _check_told(fitted)
    _workers(plan)
    if options.decoder is not None:
        _decoder(plan, options.decoder)
    if options.device is not None:
        _device(plan, options.device)
    if options.ranks is not None:
        rank = fitted.recording.rank
        if rank is not None:
            raise ConfigError(
                f"--ranks: {run.run_id} is itself one of {rank.place.ranks} ranks, whose steps may hold waits for the "
                "others; ask of a run of one process"
            )
        plan.assumed.append(Reason("whatif_ranks"))
        plan.measurable = False
    if options.storage is not None:
        _storage(plan, options.storage, store)
    elif options.ranks is not None and fitted.recording.facts.loader.decodes:
        plan.assumed.append(Reason("whatif_ranks_storage"))
    return plan


def _check_told(fitted: Fitted) -> None:
    """Raises ConfigError for a loader that tells nothing of what it does for a batch."""
    if not fitted.real.opaque:
        return
    run, seen = fitted.run, fitted.recording.facts.watched
    what = f"the loader {run.case.feed.loader}" if seen is None else "this script's loader"
    why = "" if seen is None or seen.no_spans is None else f" ({seen.no_spans})"
    raise ConfigError(
        f"{run.run_id}: {what} does not tell when a worker began and ended a batch{why}, so only --ranks"
        f"{' and --device' if seen is None else ''} can be asked of this run"
    )


# -- workers and decoders ----------------------------------------------------------------------------------


def _workers(plan: WhatifPlan) -> None:
    asked, real, run = plan.asked, plan.fitted.real, plan.run
    if asked.workers is None and asked.prefetch is None:
        return
    if asked.workers == 0 and real.workers:
        raise ConfigError(
            f"--workers 0 is another loader, in the main process: {run.run_id} has {real.workers} "
            f"worker{'s' * (real.workers != 1)}; ask for 1 or more"
        )
    if asked.workers is None and not real.workers:
        raise ConfigError(f"--prefetch needs workers, which {run.run_id} does not have: give --workers too")
    cpus = 1 if run.environment is None else run.environment.cpus_usable
    limit = max(MIN_WORKER_LIMIT, WORKERS_PER_CPU * cpus)
    if (asked.workers or 0) > limit:
        raise ConfigError(f"--workers {asked.workers} is more than that machine can run: at most {limit}")
    if asked.prefetch is not None:
        plan.changes["prefetch"] = plan.fields["prefetch"] = asked.prefetch
    if asked.workers is None or asked.workers == real.workers:
        return
    plan.changes["workers"] = plan.fields["workers"] = asked.workers
    processors = real.processors if math.isfinite(real.processors) else None
    plan.assumed.append(Reason("whatif_workers", {"cpus": processors}))
    if not real.workers:
        plan.changes["in_turn"] = True
        plan.changes.setdefault("prefetch", run.case.feed.prefetch or 2)
        plan.fields["loader"] = plugins.DEFAULT_LOADER
        plan.assumed.append(Reason("whatif_first_workers"))
    if plan.asked.storage is None:
        _more_readers(plan, asked.workers)
    _beside_others(plan, asked.workers)


def _more_readers(plan: WhatifPlan, workers: int) -> None:
    """What the storage gives to another number of readers."""
    fitted, facts = plan.fitted, plan.fitted.recording.facts
    num_bytes, real = bytes_per_step(fitted), fitted.real
    if not facts.loader.decodes or workers < max(1, real.workers):
        return
    if plan.run.case.subject.cache == "warm":
        plan.assumed.append(Reason("whatif_memory"))
    elif real.shared_s > 0 and num_bytes is not None:
        probed = storage.ceiling(facts.storage.ceiling) is not None
        rate = num_bytes / real.shared_s
        plan.assumed.append(Reason("whatif_readers_probed" if probed else "whatif_readers_fetched", {"rate": rate}))
    else:
        plan.assumed.append(Reason("whatif_readers_unknown"))
        plan.factors["read"] = longer(workers / max(1, real.workers))


def _beside_others(plan: WhatifPlan, workers: int) -> None:
    """Where others hold the processors that the run leaves: who decides what more workers get is the scheduler, by
    threads, or by groups of them, as between containers."""
    seen = plan.fitted.seen
    if seen is None or (before := fair_part(seen, max(1, plan.fitted.real.workers) + 1)) == 1.0:
        return
    plan.factors["cpu"] = longer(max(1.0, fair_part(seen, max(1, workers) + 1) / before))
    plan.assumed.append(Reason("whatif_others"))


def _decoder(plan: WhatifPlan, name: str) -> None:
    run, feed = plan.run, plan.run.case.feed
    decoder = plugins.DECODERS.aliases.get(name, name)
    if feed.decoder is None or plan.fitted.is_watched:
        who = "the script" if plan.fitted.is_watched else f"its loader, {feed.loader},"
        raise ConfigError(f"--decoder: {run.run_id}: {who} decodes by itself, so another decoder's cost is unknown")
    if decoder not in plugins.DECODERS.names():
        raise ConfigError(f"unknown decoder '{short(name)}'; use {', '.join(plugins.DECODERS.names())}")
    ratio = decoder_ratio(plan.fitted, decoder)
    if ratio is None:
        probe = plan.fitted.recording.facts.prep_probe
        known = [] if probe is None else [one for one, told in probe.decoders.items() if told.image_s]
        some = f"it timed {', '.join(known)}" if known else "it timed none: preparing took too little of a step"
        raise ConfigError(f"--decoder {short(name)}: {run.run_id} did not time this decoder; {some}")
    of_time, of_cpu = ratio
    plan.changes["prep"], plan.changes["cpu"] = of_time, of_cpu
    traits = plugins.DECODERS.find(decoder).traits
    scale = (feed.decode_scale or "off") if traits.scales else None
    if feed.decode_scale == SCALED and scale is None:
        plan.measurable = False
    plan.fields |= {"decoder": decoder, "decode_scale": scale}
    plan.assumed.append(Reason("whatif_decoder", {"decoder": decoder, "before": feed.decoder, "ratio": of_time}))


# -- the device --------------------------------------------------------------------------------------------


def _device(plan: WhatifPlan, text: str) -> None:
    fitted, run = plan.fitted, plan.run
    if fitted.is_watched:
        raise ConfigError(f"--device: {run.run_id} watched a script, whose own work is not told from its device's")
    if fitted.recording.facts.device.on_host_cpus:
        raise ConfigError(
            f"--device: the steps of {run.run_id} ran on the processors that load too; measure it once with "
            "--device emulated, and ask of that run"
        )
    try:
        step_s = float(Time.parse(text))
    except ValueError:
        _emulated(plan, text)
        return
    plan.changes["device_s"] = step_s
    plan.measurable = False
    plan.assumed.append(Reason("whatif_step", {"step_s": step_s}))


def _emulated(plan: WhatifPlan, text: str) -> None:
    """The device's times by its profile. Raises ConfigError where there is none for the run's model."""
    step, fitted = plan.run.case.step, plan.fitted
    if traits_of(text).times is None:
        raise ConfigError(
            f"--device {short(text)}: nothing tells its times beforehand; give emulated:PROFILE "
            "(`loaderbench doctor` lists them) or the time of a step, such as 12ms"
        )
    found = None
    for precision in (step.precision, None):
        try:
            found = parse_device(
                text, model=step.model, mode=step.mode, precision=precision, batch_size=step.batch_size, instead=()
            )
            break
        except ConfigError:
            if precision is None:
                raise
    assert found is not None
    times = known_times(found.device)
    assert isinstance(times, Profile)
    size = step.input_size or plan.run.case.subject.resolution
    duration = times.duration_ms(round(samples_per_step(fitted)), size)
    plan.changes["device_s"] = duration.value / 1e3
    plan.fields |= {"device": found.device, "precision": found.precision}
    plan.assumed.append(
        Reason(
            "whatif_device",
            {
                "device_name": times.device_name,
                "step_s": duration.value / 1e3,
                "batch_size": step.batch_size,
                "label": duration.label,
            },
        )
    )
    if found.precision != step.precision:
        plan.assumed.append(Reason("whatif_precision", {"precision": found.precision, "before": step.precision}))
    if times.issue_ms is None:
        plan.assumed.append(Reason("whatif_issue", {"issue_s": float(fitted.real.batches.issue.mean())}))
    else:
        plan.changes["issue_s"] = times.issue_ms.value / 1e3
    copied = fitted.recording.facts.copy.batch_bytes
    if copied is not None and fitted.recording.facts.device.copies and not fitted.recording.facts.loader.owns_transfer:
        plan.changes["copy_s"] = copied / times.link_bytes_per_s.value


# -- the storage -------------------------------------------------------------------------------------------


def _storage(plan: WhatifPlan, text: str, store: Store) -> None:
    fitted, run = plan.fitted, plan.run
    num_bytes, ranks = bytes_per_step(fitted), plan.asked.ranks or 1
    if not fitted.recording.facts.loader.decodes:
        raise ConfigError(f"--storage: {run.run_id} read no files")
    plan.measurable = False
    if fitted.is_watched:
        plan.assumed.append(Reason("whatif_waits"))
    if match := FACTOR.fullmatch(text.strip()):
        rate = _faster(plan, float(match[1]), num_bytes)
    elif num_bytes is None:
        raise ConfigError(
            f"--storage: {run.run_id} does not tell how many bytes a batch has; a factor such as 2x can do"
        )
    elif match := RATE.fullmatch(text.strip()):
        power = ("", "K", "M", "G", "T").index(match[2].upper())
        rate = float(match[1]) * math.pow(1024 if match[3] else 1000, power)
        if not 1 <= rate <= 1e15:
            raise ConfigError(f"--storage must be from 1B/s to 1000T/s, not {short(text)}")
        plan.assumed.append(Reason("whatif_rate", {"rate": rate}))
    else:
        rate = _of_another(plan, text, num_bytes, store)
    if rate is None or num_bytes is None:
        return
    plan.changes["rate"] = rate / num_bytes / ranks
    if ranks > 1:
        plan.assumed.append(Reason("whatif_ranks_share", {"rate": rate / ranks}))


def _faster(plan: WhatifPlan, factor: float, num_bytes: float | None) -> float | None:
    """Today's storage, so many times as fast; its rate, where several ranks are to share that."""
    if not 1 / MOST_FACTOR <= factor <= MOST_FACTOR:
        raise ConfigError(f"--storage takes a factor from {1 / MOST_FACTOR:g}x to {MOST_FACTOR:g}x, not {factor:g}x")
    plan.changes["reading"] = 1.0 / factor
    plan.assumed.append(Reason("whatif_factor", {"factor": factor}))
    if plan.asked.ranks is None:
        return None
    if num_bytes is None or not plan.fitted.real.shared_s > 0:
        raise ConfigError(
            f"--storage {factor:g}x with --ranks: {plan.run.run_id} does not tell what its storage gives at most, "
            "which the ranks would share; give a rate, such as 500M/s"
        )
    return factor * num_bytes / plan.fitted.real.shared_s


def _of_another(plan: WhatifPlan, text: str, num_bytes: float, store: Store) -> float:
    """Bytes a second of another run's storage; its reads, as far as both runs tell of them."""
    try:
        run = load_stored(store.find(text))
    except ConfigError as error:
        raise ConfigError(
            f"--storage takes a rate such as 500M/s, a factor such as 2x, or a stored run, not {short(text)!r}: {error}"
        ) from None
    other = fit(run)
    if other is None or run.case.subject.cache == "warm":
        why = "has no steps" if other is None else "read from memory (--cache warm)"
        raise ConfigError(f"--storage {run.run_id}: that run {why}, so it tells nothing of its storage")
    theirs, probed = bytes_per_step(other), storage.ceiling(other.recording.facts.storage.ceiling)
    if probed is not None:
        rate = probed.value
    elif theirs is not None and other.real.shared_s > 0:
        rate = theirs / other.real.shared_s
    else:
        raise ConfigError(
            f"--storage {run.run_id}: that run did not find out what its storage gives at most; measure it with "
            "--arms all and --cache cold"
        )
    own_s, read_s = _reading_s(plan.fitted), None
    if theirs is not None and not other.real.opaque and own_s > LEAST_READ_S:
        theirs_s = _reading_s(other) * num_bytes / theirs
        plan.changes["reading"] = theirs_s / own_s
        read_s = theirs_s + num_bytes / rate
    plan.assumed.append(
        Reason(
            "whatif_other_storage",
            {"run_id": run.run_id, "rate": rate, "by": "arms" if probed is None else "probe", "read_s": read_s},
        )
    )
    return rate


def _reading_s(fitted: Fitted) -> float:
    """Seconds of reading a batch with no other reader beside it, slow files too, less what the storage works for it."""
    return own_read_s(fitted) + float(fitted.real.batches.tail.mean())

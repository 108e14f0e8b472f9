"""`loaderbench forecast`: a stored run's steps made into a training's hours, and checked by running its epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns

from loaderbench.analysis.forecast import calibrated, held_part, predicted_epoch
from loaderbench.analysis.forecast_source import joined, layers_source, source_of
from loaderbench.analysis.ledger import collected
from loaderbench.analysis.record import predicted_gain
from loaderbench.cases.case import FIELDS, PARTS, Case, Change, FieldValue
from loaderbench.cases.options import ForecastOptions, base_type, whole_number
from loaderbench.cases.study import check_range
from loaderbench.devices.profile import for_mode
from loaderbench.errors import ConfigError
from loaderbench.machine import available_memory_bytes, environment
from loaderbench.plain import type_hints
from loaderbench.printable import short
from loaderbench.recording.checks import LATEST
from loaderbench.recording.facts import Environment, Failure
from loaderbench.recording.forecast import (
    After,
    Asked,
    CheckFacts,
    CheckpointTimes,
    EpochKind,
    EpochRun,
    EpochState,
    ForecastFacts,
    LeftOut,
    Memory,
    Past,
    SourceFacts,
    StateSteps,
)
from loaderbench.recording.machines import same_hardware
from loaderbench.recording.model_layers import LayersFacts, LayersResult
from loaderbench.recording.progress import EpochDone, Message
from loaderbench.recording.record import Estimate, RunRecord
from loaderbench.recording.store import Store, StoredRun, StoredStudy, load_stored
from loaderbench.running.jobs.table import RUN_EPOCHS, TIME_CHECKPOINTS, CheckpointsRequest, EpochsRequest
from loaderbench.running.supervisor import Child, JobFailed, prefix_of_decoder
from loaderbench.studies.kept import KeptStudy, Say, told
from loaderbench.studies.measure import judged

NUM_CHECKPOINTS = 5
MOST_PAST = 100
"""Newest checked epochs of this machine that its intervals are calibrated with."""


@dataclass(frozen=True)
class ForecastPlan:
    """What is to be forecast, and checked."""

    facts: ForecastFacts
    """Without checkpoints and check."""
    checkpoint_to: str | None
    """None: no checkpoint is to be timed."""
    check: bool


def plan_forecast(name: str, options: ForecastOptions, store: Store) -> ForecastPlan:
    """What the options ask for, from a stored run or a profile of layers.

    Raises:
        ConfigError: a value out of range; no such run; a run that tells nothing reliable, with the reason.
    """
    _check_numbers(options)
    here = environment()
    source = find_source(name, store)
    _check_machine(source, here, options)
    if options.check and source.case is None:
        raise ConfigError("--check needs a data set, which a profile of layers does not have: name a run")
    images = options.images or source.num_images
    if images is None:
        raise ConfigError(f"{source.source_id} does not record the size of its data set: give --images")
    left_out: dict[LeftOut, str] = {}
    validation = _validation(source, options, store, here, left_out)
    asked = Asked(images, options.epochs, options.val_images, options.val_every, options.checkpoint_every)
    facts = ForecastFacts(
        asked=asked,
        source=source,
        environment=here,
        memory=Memory(*available_memory_bytes()),
        past=past_of(store, here, emulated=source.emulated),
        validation=validation,
        after=None if options.then is None else _after(options.then, source, store, here, options, left_out),
    )
    _check_memory(facts)
    _tell_what_is_left_out(facts, left_out)
    return ForecastPlan(
        facts=replace(facts, left_out=left_out),
        checkpoint_to=None if asked.checkpoint_every is None else str((options.checkpoint_to or store.root).absolute()),
        check=options.check,
    )


def _check_numbers(options: ForecastOptions) -> None:
    for flag, value in (
        ("--images", options.images), ("--epochs", options.epochs), ("--val-images", options.val_images),
        ("--val-every", options.val_every), ("--checkpoint-every", options.checkpoint_every),
    ):  # fmt: skip
        check_range(flag, value, 1, math.inf)
    if options.val_run is not None and options.val_images is None:
        raise ConfigError("--val-run needs --val-images N too")
    if options.checkpoint_to is not None:
        if options.checkpoint_every is None:
            raise ConfigError("--checkpoint-to needs --checkpoint-every N too")
        if not options.checkpoint_to.is_dir():
            raise ConfigError(f"--checkpoint-to {options.checkpoint_to} is not a folder")


def _check_machine(source: SourceFacts, here: Environment, options: ForecastOptions) -> None:
    there = source.environment
    if options.on_this_machine or same_hardware(there, here):
        return
    raise ConfigError(
        f"{source.source_id} was measured on another machine ({there.cpus_usable} × {there.cpu_model}); "
        "run it here, or give --on-this-machine to use its times for this machine"
    )


def _check_memory(facts: ForecastFacts) -> None:
    """A set that memory does not hold needs an epoch from the storage. Raises ConfigError where a run tells of none."""
    pairs = [(facts.source, facts.source), (facts.validation, facts.source)]
    if facts.after is not None and facts.after.source is not None:
        pairs.append((facts.after.source, facts.after.source))
    for source, training in pairs:
        held = held_part(facts, training)
        if source is not None and source.cold is None and held is not None and held < 1:
            raise ConfigError(
                f"{source.source_id} read from memory, but memory holds only {held:.0%} of the images: measure "
                "the same setting with --cache cold too"
            )


# -- sources ---------------------------------------------------------------------------------------------


def find_source(name: str, store: Store) -> SourceFacts:
    """The run, or the profile of layers, of that name; what it lacks of the other cache state from the store. `latest`
    is the newest run, or a profile that is newer.

    Raises:
        ConfigError: there is none, or it tells nothing reliable.
    """
    stored = _newest(store) if name == LATEST else store.named(name)
    if isinstance(stored, StoredStudy):
        known = stored.study
        if known is None or not isinstance(known.facts, LayersFacts) or not isinstance(known.findings, LayersResult):
            raise ConfigError(f"{stored.study_id} is neither a run nor a profile of layers: name one of those")
        return layers_source(known.facts, known.findings, stored.study_id)
    if stored.record is None:
        raise ConfigError(f"{stored.run_id} cannot be read: {stored.problem}")
    source = _source(stored)
    assert source.case is not None
    case = source.case
    if None not in (source.cold, source.warm) and not source.opens_unknown:
        return source
    others = _runs_like(store, source, lambda other: same_setting(other, case))
    return joined(source, _readable([one for one in others if one.run_id != stored.run_id]))


def _runs_like(store: Store, source: SourceFacts, fits: Callable[[Case], bool]) -> list[StoredRun]:
    """The stored runs of the source's machine that ended well and whose case fits, oldest first."""
    return [
        one
        for one in store.runs_where(lambda line: line.status == "ok" and fits(line.case))
        if one.record is not None and same_hardware(one.record.environment, source.environment)
    ]


def _newest(store: Store) -> StoredRun | StoredStudy:
    """The newest run, or a profile of layers that is newer than all runs and studies. Raises ConfigError for none."""
    newest = store.latest()
    is_profile = (
        isinstance(newest, StoredStudy) and newest.study is not None and isinstance(newest.study.facts, LayersFacts)
    )
    return newest if newest is not None and is_profile else store.find(LATEST)


def _source(stored: StoredRun) -> SourceFacts:
    run = load_stored(stored)
    traits = None if run.recording is None else run.recording.facts.loader.traits
    if traits is not None and not traits.reads_files and traits.decodes != "nothing":
        raise ConfigError(
            f"{run.run_id}: the loader {run.case.feed.loader} decodes all images before the first batch, and "
            "runs do not time that; forecast from a run of another loader"
        )
    return source_of(run, judged(run))


def _readable(runs: Sequence[StoredRun]) -> list[SourceFacts]:
    """The sources among them; those that tell nothing reliable are no help."""
    found = []
    for stored in runs:
        try:
            found.append(_source(stored))
        except ConfigError:
            continue
    return found


def same_setting(one: Case, other: Case) -> bool:
    """Whether both differ in nothing but the state of the cache and the effort."""
    return replace(one.subject, cache="as-is") == replace(other.subject, cache="as-is") and (one.feed, one.step) == (
        other.feed,
        other.step,
    )


def _validation(
    source: SourceFacts, options: ForecastOptions, store: Store, here: Environment, left_out: dict[LeftOut, str]
) -> SourceFacts | None:
    """The run that tells of the validation; None where none is asked for or known, with the reason in `left_out`."""
    if options.val_images is None:
        left_out["validation"] = "--val-images was not given"
        return None
    if options.val_run is not None:
        found = find_source(options.val_run, store)
        if found.mode != "infer":
            raise ConfigError(f"--val-run {options.val_run}: {found.source_id} is not a run with --mode infer")
        _check_machine(found, here, options)
        return found
    case = source.case
    runs = [] if case is None else _runs_like(store, source, lambda other: _validates(other, case))
    for stored in reversed(runs):
        try:
            return find_source(stored.run_id, store)
        except ConfigError:
            continue
    left_out["validation"] = (
        "no stored run of this data set and setting used --mode infer: measure one, or name one with --val-run"
    )
    return None


def _validates(case: Case, training: Case) -> bool:
    """Whether a run of `case` tells of the validation in this training: the same model, device and data set."""
    wanted = replace(training.step, mode="infer", device=for_mode(training.step.device, "infer"))
    free = {"batch_size": 0, "optimizer": "sgd", "loss_scale": None}  # of these, none changes what is to be told
    one, other = case.subject, training.subject
    return (
        (one.dataset, one.resolution) == (other.dataset, other.resolution)
        and case.feed == training.feed
        and replace(case.step, **free) == replace(wanted, **free)  # type: ignore[arg-type]
    )


def _tell_what_is_left_out(facts: ForecastFacts, left_out: dict[LeftOut, str]) -> None:
    asked, source, validation = facts.asked, facts.source, facts.validation
    held = held_part(facts, source)
    if source.process_s is None or source.open_s is None:
        left_out["start_up"] = "the run did not record it"
    if source.kind == "layers" and source.data_set is None:
        left_out["loading"] = "a profile of layers without --data times the device only: name a run to include loading"
    if source.cold is None:
        left_out["cold"] = (
            "the run read from memory, and no stored run of this setting used --cache cold: the forecast "
            "assumes that the first epoch reads from memory too"
        )
    unknown = _unknown_later(source, asked.epochs, held)
    if unknown is not None:
        left_out["warm"] = unknown
    if source.kind == "run" and any(one is not None and one.starts is None for one in (source.cold, source.warm)):
        left_out["epoch_starts"] = "the run had no warm-up (--warmup 0), so the start of an epoch is unknown"
    if validation is not None:
        unknown = _unknown_later(validation, asked.epochs // asked.val_every, held)
        if unknown is not None:
            left_out["validation"] = f"{validation.source_id}: {unknown}"
        elif validation.cold is None:
            left_out["validation"] = (
                f"{validation.source_id} read from memory: the forecast assumes that the first validation does so too"
            )
    after = None if facts.after is None else facts.after.source
    asked_at_opens = [one.source_id for one in (source, validation, after) if one is not None and one.opens_unknown]
    if asked_at_opens and asked.epochs > 1:
        left_out["opens"] = (
            f"the file system of {', '.join(asked_at_opens)} asks its server at each open, which the arm "
            "`ram` does not measure: later epochs take at least the given time. Measure the setting with "
            "--cache warm to include it"
        )
    if asked.checkpoint_every is None:
        left_out["checkpoints"] = "--checkpoint-every was not given"
    else:
        left_out["checkpoints"] = "the writes that time them did not finish"
    left_out["logging"] = "loaderbench's own loop writes no logs"


def _unknown_later(source: SourceFacts, num_epochs: int, held: float | None) -> str | None:
    """Why nothing is known of the epochs behind the first; None where it is."""
    if num_epochs < 2 or source.one_state:
        return None
    if source.warm is None and held != 0:
        return "the time of an epoch from memory is unknown: measure the arm `ram`, or this setting with --cache warm"
    if held is None:
        return "it is unknown how many of the images fit in memory: their size or the free memory is unknown"
    return None


# -- after a change ----------------------------------------------------------------------------------------


def _after(
    text: str,
    source: SourceFacts,
    store: Store,
    here: Environment,
    options: ForecastOptions,
    left_out: dict[LeftOut, str],
) -> After:
    """What `--then` names. Raises ConfigError where nothing stored tells of it."""
    if "=" not in text:
        other = find_source(text, store)
        _check_machine(other, here, options)
        return _after_as(other.source_id if other.case is None else other.case.title, other, source)
    case = source.case
    if case is None:
        raise ConfigError("--then CHANGE needs a run's setting, which a profile of layers does not have: name a run")
    change = parse_change(text)
    wanted = case.changed(**change)
    label = ", ".join(f"{name} {value}" for name, value in change.items())
    measured = _readable(_runs_like(store, source, lambda other: same_setting(other, wanted)))
    if measured:
        return _after_as(label, joined(measured[-1], measured[:-1]), source)
    found = store.find(source.source_id)
    speedup = None if found.record is None else _advised(found.record, change)
    speedup = speedup or predicted_gain(load_stored(found), change)
    if speedup is None or speedup.low is None or speedup.high is None:
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items())
        raise ConfigError(
            f"the gain of {text} is unknown: {source.source_id} does not tell enough to predict it with an interval, "
            f"and no stored run uses it; measure one with `loaderbench run … {flags}`"
        )
    state: EpochState = "warm" if source.cold is None or source.cold.run_id != source.source_id else "cold"
    where = {"cold": "the storage", "warm": "memory"}[state]
    left_out["change"] = "validation and checkpoints are assumed unchanged"
    if not source.one_state:
        left_out["change"] += (
            f"; the advice is about an epoch from {where}; other epochs are assumed to gain from 0 to the same"
        )
    return After(label, change=change, speedup=speedup, state=state)


def _after_as(label: str, other: SourceFacts, base: SourceFacts) -> After:
    """The training after the change with the parts that the one before has too, so that their difference is the
    change's: what only the one before tells of is taken from there. Raises ConfigError where it lacks the first
    epoch."""
    if other.kind != base.kind:
        raise ConfigError(
            f"--then {other.source_id}: a run cannot be compared with a profile of layers; name two of one kind"
        )
    if base.cold is not None and other.cold is None:
        raise ConfigError(
            f"--then {other.source_id} has no times for the first epoch, which reads from the storage: "
            "measure its setting with --cache cold too"
        )
    if None in (base.process_s, base.open_s):
        other = replace(other, process_s=None)
    elif None in (other.process_s, other.open_s):
        other = replace(other, process_s=base.process_s, open_s=base.open_s, build_s=base.build_s)
    cold, warm = _with_starts(other.cold, base.cold or base.warm), _with_starts(other.warm, base.warm or base.cold)
    other = replace(other, cold=cold, warm=warm)
    return After(label, source=other)


def _with_starts(steps: StateSteps | None, base: StateSteps | None) -> StateSteps | None:
    if steps is None or base is None or None not in (steps.starts, base.starts):
        return steps
    return replace(steps, starts=base.starts)


def _advised(record: RunRecord, change: Change) -> Estimate | None:
    """The gain by the run's own advice; measured where it was verified."""
    for advice in record.verdict.advice if record.verdict is not None else ():
        if advice.change is not None and dict(advice.change) == dict(change):
            return advice.measured_speedup or advice.predicted_speedup
    return None


def parse_change(text: str) -> Change:
    """`workers=16,prefetch=4` → fields of a case. Raises ConfigError for what is none."""
    change: dict[str, FieldValue] = {}
    for part in text.split(","):
        name, _, value = (one.strip() for one in part.partition("="))
        name = name.replace("-", "_")
        if name not in FIELDS or FIELDS[name] not in ("feed", "step") or not value:
            names = ", ".join(sorted(field for field, part in FIELDS.items() if part in ("feed", "step")))
            raise ConfigError(
                f"--then needs a stored run, or changes such as workers=16, not {part!r} (fields: {names})"
            )
        change[name] = _value(name, value)
    return change


def _value(name: str, text: str) -> FieldValue:
    """A field's value. Raises ConfigError where the text is none."""
    wanted = base_type(type_hints(PARTS[FIELDS[name]])[name])
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    try:
        if wanted is bool:
            return {"true": True, "false": False}[text.lower()]
        if wanted is int:
            return whole_number(text)
        return float(text) if wanted is float else text
    except (ValueError, KeyError):
        raise ConfigError(f"--then {name} must be {words[wanted]}, not {short(text)!r}") from None


# -- the past ----------------------------------------------------------------------------------------------


def past_of(store: Store, here: Environment, *, emulated: bool) -> Past:
    """Epochs and validations that were forecast and run on this machine, the newest ones, by the ledger; those of
    emulated devices, whose steps are as long as their profiles say, or those of real ones."""
    entries = [
        one
        for one in collected((), (stored.study for stored in store.studies() if stored.study is not None)).entries
        if one.score is not None and one.emulated == emulated and same_hardware(one.environment, here)
    ][-MOST_PAST:]
    return Past(
        scores=tuple(one.score for one in entries if one.score is not None),
        errors=tuple(one.error_fraction for one in entries),
        held=tuple(bool(one.held) for one in entries),
    )


# -- the study -------------------------------------------------------------------------------------------


class ForecastStudy(KeptStudy):
    """One forecast. It is stored before it is checked; what was checked is kept, however `run` ends."""

    def __init__(self, plan: ForecastPlan, store: Store) -> None:
        self._plan = plan
        source = plan.facts.source
        super().__init__(store.new_study("forecast", [source.model, f"{plan.facts.asked.epochs}-epochs"]))
        self._facts = replace(plan.facts, others=source.others)  # its steps' times are of that machine

    def facts(self) -> ForecastFacts:
        """What is known so far."""
        return self._facts

    @property
    def kept(self) -> str:
        """What an interruption left out too."""
        if self._facts.check is None and self._plan.checkpoint_to is not None:
            return "the forecast is kept; checkpoints were not timed"
        return "the forecast is kept; the check did not finish"

    @property
    def failed(self) -> bool:
        """Whether the check did not get to its end."""
        return self._facts.check is not None and self._facts.check.failure is not None

    def run(self, say: Say) -> None:
        """Time checkpoints, forecast, and run the check. What fails is kept with the reason.

        Raises:
            CaseFailed: the results cannot be written.
        """
        self._folder.begin()
        if self._plan.checkpoint_to is not None:
            self._time_checkpoints(self._plan.checkpoint_to, say)
        self.store()
        if self._plan.check:
            self._check(say)

    def _time_checkpoints(self, folder: str, say: Say) -> None:
        case = self._facts.source.case
        if case is None:
            self._leave_out("checkpoints", "a profile of layers does not record how to build the model")
            return
        try:
            with Child(self._log) as child:
                request = CheckpointsRequest(case.step, folder, NUM_CHECKPOINTS, case.effort.seed)
                done = child.ask(TIME_CHECKPOINTS, request, told(say, "checkpoints"))
        except JobFailed as error:
            self._leave_out("checkpoints", str(error))
            return
        known = dict(self._facts.left_out)
        known.pop("checkpoints", None)
        times = CheckpointTimes(done.num_bytes, done.seconds)
        self._facts = replace(self._facts, checkpoints=times, left_out=known)

    def _leave_out(self, part: LeftOut, why: str) -> None:
        self._facts = replace(self._facts, left_out={**self._facts.left_out, part: why})

    def _check(self, say: Say) -> None:
        """Run the first epoch, one from memory where there are several, and the same of the validation."""
        source, validation = self._facts.source, self._facts.validation
        assert source.case is not None
        check = CheckFacts(
            num_images=source.num_images or self._facts.asked.images,
            val_images=None if validation is None else validation.num_images,
        )
        self._facts = replace(self._facts, check=check)
        say(f"running {self._length()}", True)
        states = _states(source, self._facts.asked.epochs)
        if self._epochs("train", source.case, states, say) and validation is not None and validation.case is not None:
            states = _states(validation, self._facts.asked.epochs // self._facts.asked.val_every)
            self._epochs("validation", validation.case, states, say)
        self.store()

    @property
    def _checked(self) -> CheckFacts:
        assert self._facts.check is not None
        return self._facts.check

    def _length(self) -> str:
        """How much is run, and how long that takes by the forecast."""
        factor, num = calibrated(self._facts.past), self._checked.num_images
        epochs = [
            predicted_epoch(self._facts, factor, "train", state, num, first=number == 0)
            for number, state in enumerate(_states(self._facts.source, self._facts.asked.epochs))
        ]
        seconds = sum(epoch.own.value for epoch in epochs if epoch is not None)
        noun = "epoch" if len(epochs) == 1 else "epochs"
        return f"{len(epochs)} {noun} of {num:,} images, about {seconds:.0f} s by the forecast"

    def _epochs(self, kind: EpochKind, case: Case, states: tuple[EpochState, ...], say: Say) -> bool:
        """Run these epochs; each is kept as it ends. Returns whether all were run."""
        where = "training" if kind == "train" else kind
        progress, started_ns = told(say, where), perf_counter_ns()

        def message(message: Message) -> None:
            if not isinstance(message, EpochDone):
                progress(message)
                return
            wanted = states[sum(epoch.kind == kind for epoch in self._checked.epochs)]
            run = EpochRun(kind, message.num_images, message.seconds, message.resident_before, wanted)
            check = replace(self._checked, epochs=(*self._checked.epochs, run))
            if kind == "train" and len(check.epochs) == len(states):
                check = replace(check, training_s=message.since_start_s)
            self._facts = replace(self._facts, check=check)
            self.store()

        try:
            with Child(self._log, prefix_of_decoder(case.feed.decoder)) as child:
                child.ask(RUN_EPOCHS, EpochsRequest(case, states, started_ns), message)
        except JobFailed as error:
            failure = Failure(error.failure.kind, f"{where}: {error.failure.message}")
            self._facts = replace(self._facts, check=replace(self._checked, failure=failure))
            return False
        return True


def _states(source: SourceFacts, num_epochs: int) -> tuple[EpochState, ...]:
    """The epochs that a check runs: the first, and one more where later ones differ."""
    if source.cold is None:
        return ("warm",)
    return ("cold", "warm") if num_epochs > 1 and source.warm is not None else ("cold",)

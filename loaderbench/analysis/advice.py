"""What to try next, each action with what it is predicted to give.

A prediction is the step time of a changed case, put together from what was measured of the present one:

    T' = max(consumer, storage, loader)          speed-up = T_real ÷ T' (per sample)

consumer  T_host with the copy in proportion to the bytes, beside T_device or (without overlap) what of it is exposed
          behind it; with another batch size max(busy + copy, issue), with overlap max(busy, copy, issue)
storage   T_fetch where the files are read cold, else nothing
loader    L ÷ N for N workers, L being the worker time of a batch (the loader's own step time × the present
          workers), and not less than (CPU seconds of a batch + those of its consumer) ÷ usable CPUs. A loader
          without workers stands in line with issuing: L + issue.

Another decoder, output or hand-over replaces the stages decode, augment and collate of L by the ratio of their costs in
running/prep_probe.py. Processors that are all busy are slower than one alone; the probe says by how much.
How far predictions are off is measured by benchmarks/verify.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis import storage
from loaderbench.analysis.attribution import Attribution, Quantity, Times, arm_times
from loaderbench.analysis.statistics import interval
from loaderbench.analysis.steps import STALLED_FRACTION, ArmSteps
from loaderbench.cases.case import Case
from loaderbench.recording.types import SPAN_FIELDS, Estimate

WORTH_TRYING = 1.03
KNEE = 0.97
"""The knee is the least number of workers with this part of the best predicted rate."""
MOST_ACTIONS = 5
MOST_READERS = 32
"""Workers that are proposed to hide a storage's latency, whatever the number of processors."""
MODEL_ERROR = 0.10
"""Half-width that the model itself adds to a prediction's interval."""
HANDOVER = {"serial": "private", "multiprocess": "shared", "threaded": "reused"}
"""Which memory a loader writes its samples into (see prep_probe)."""
PIXEL_BYTES = {"float32": 4, "uint8": 1}

Draws = NDArray[np.float64]
"""[1 + num_draws]: the value, then its bootstrap draws."""
Change = dict[str, Any]
"""Fields of Case → their new values."""


@dataclass(frozen=True)
class Action:
    """One thing to try."""

    cause: str
    text: str
    change: Change | None = None
    """None: nothing that loaderbench can run."""
    predicted: Estimate | None = None


def advise(
    case: Case,
    found: Attribution,
    arms: Mapping[str, ArmSteps],
    spans: NDArray[np.int64] | None,
    facts: Mapping[str, Any],
    *,
    consumer_cpu_s: float | None,
    usable_cpus: int,
    contention: bool,
) -> list[dict[str, Any]]:
    """At most MOST_ACTIONS of {action, cause, change, predicted_speedup, at_most}, the best predicted first.

    Args:
        arms: window steps of each arm; `real` must be there.
        spans: those of the real arm's window batches; None where the loader gives none.
        facts: the recording's.
        consumer_cpu_s: CPU seconds a step of the thread that takes batches and issues; None: unknown.
        contention: the workers wait for a processor.

    `at_most` is the gain of removing the action's cause wholly. `predicted_speedup` is None where the outcome
    does not follow from what was measured; such actions come last. Predictions below WORTH_TRYING are dropped.
    """
    causes = found.joint if found.bottleneck == "mixed" else (found.bottleneck,)
    model = _Model(case, arms, spans, facts, consumer_cpu_s, usable_cpus)
    actions: list[Action] = []
    for cause in causes:
        if cause == "storage":
            actions += _for_storage(case, model, arms)
        elif cause == "prep":
            actions += _for_prep(case, model, contention)
        elif cause == "transfer":
            actions += _for_transfer(case, model)
        elif cause == "launch":
            actions += _for_launch(case, model)
    if {"storage", "prep"} <= set(causes):
        actions += _together(model, actions)
    known = [one for one in actions if one.predicted is not None and one.predicted.value >= WORTH_TRYING]
    known.sort(key=lambda one: -one.predicted.value if one.predicted else 0.0)
    # The same change may be proposed for two causes.
    unique = {repr(sorted(one.change.items())) if one.change else one.text: one for one in reversed(known)}
    chosen = [one for one in known if one in unique.values()]
    chosen += [one for one in actions if one.predicted is None]
    return [_plain(one, found) for one in chosen[:MOST_ACTIONS]]


def _plain(action: Action, found: Attribution) -> dict[str, Any]:
    most = found.speedup_if_removed.get(action.cause)
    return {
        "action": action.text,
        "cause": action.cause,
        "change": action.change,
        "predicted_speedup": None if action.predicted is None else action.predicted.to_json(),
        "at_most": None if most is None else most.to_json(),
    }


def flags(change: Mapping[str, Any]) -> str:
    """The change as options of the command line."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items() if value not in ({}, None))


class _Model:
    """Predicts the step time of a changed case from the measured parts of the present one."""

    def __init__(
        self,
        case: Case,
        arms: Mapping[str, ArmSteps],
        spans: NDArray[np.int64] | None,
        facts: Mapping[str, Any],
        consumer_cpu_s: float | None,
        usable_cpus: int,
    ) -> None:
        self.case, self.facts, self.cpus = case, facts, usable_cpus
        loader = facts["loader"]
        self.times: Times = arm_times(arms, reads_files=loader["decodes"])
        times = self.times
        self.real = _array(times.real)
        self.num_blocks = times.real.n
        self.device = None if times.device is None else _array(times.device)
        self.busy = None if times.busy is None else _array(times.busy)
        base = times.device if loader["owns_transfer"] else times.host
        self.base = None if base is None else _array(base)
        issuing = arms.get("device")
        self.issue = np.zeros_like(self.real) if issuing is None else _arm(issuing, "issue")
        copying = arms.get("host")
        self.copy = np.zeros_like(self.real) if copying is None else _arm(copying, "copy")
        self.overlap = bool(facts["device"].get("overlap"))
        self.lanes = max(case.workers, 1)
        self.lane = self._lane(arms, "real", times.free or times.prep)
        self.lane_in_memory = self._lane(arms, "ram", times.prep or (times.free if case.cache == "warm" else None))
        self.fetch = None if times.fetch is None or case.cache != "cold" else _array(times.fetch)
        self.lane_cpu, self.stage_part, self.stage_cpu_part = _worker_parts(spans, self.real)
        # Beside issuing, the consumer takes over batches and gives their memory back; a serial loader is in it.
        own = 0.0 if self.lane_cpu is None or case.workers else float(self.lane_cpu[0])
        self.consumer_cpu = np.maximum(self.issue, (consumer_cpu_s or 0.0) - own)
        if case.device == "cpu":  # PyTorch's threads compute on every processor
            self.consumer_cpu = self.consumer_cpu + self.issue * (usable_cpus - 1)
        self.probe = facts.get("prep_probe") or {}
        # Beyond the processors workers help only while others wait for the storage.
        self.most_workers = usable_cpus
        if case.cache != "warm":
            self.most_workers = max(
                2 * usable_cpus, min(storage.readers_needed(facts.get("ceiling")) or 0, MOST_READERS)
            )

    def _lane(self, arms: Mapping[str, ArmSteps], paced_by: str, alone: Quantity | None) -> Draws | None:
        """Worker seconds of a batch: the loader's own step time × its workers.

        Where the arm waited for the loader, what the loader delivered there beside the running device counts.
        """
        seconds = None if alone is None else _array(alone)
        arm = arms.get(paced_by)
        if arm is not None and arm.mean("stall") > STALLED_FRACTION * arm.mean("duration"):
            step = _array(self.times.real if paced_by == "real" or self.times.ram is None else self.times.ram)
            if self.case.workers == 0:  # in line with issuing
                step = np.maximum(step - self.issue, 1e-9)
            seconds = step if seconds is None else np.maximum(seconds, step)
        return None if seconds is None else seconds * self.lanes

    def speedup(self, change: Change) -> Draws | None:
        """T_real ÷ T', per sample; None where something that it rests on was not measured."""
        step = self._step_s(change)
        if step is None:
            return None
        return self.real / step * replace(self.case, **change).batch_size / self.case.batch_size

    def predict(self, change: Change) -> Estimate | None:
        """The speed-up with its interval, which holds the model's own error unless the outcome was measured."""
        gain = self.speedup(change)
        if gain is None:
            return None
        if change == {"cache": "warm"}:
            return interval(gain[0], gain[1:], "ratio", self.num_blocks, "the arm `ram`; block bootstrap, 95 %")
        spread = np.random.default_rng(7).normal(0.0, np.log1p(MODEL_ERROR) / 1.96, len(gain) - 1)
        method = f"model of measured parts (analysis/advice.py), ± {MODEL_ERROR:.0%} of its own; block bootstrap, 95 %"
        return interval(gain[0], gain[1:] * np.exp(spread), "ratio", self.num_blocks, method)

    def _step_s(self, change: Change) -> Draws | None:
        new, old = replace(self.case, **change), self.case
        in_memory = new.cache == "warm" and old.cache != "warm"
        if change == {"cache": "warm"}:
            return None if self.times.ram is None else _array(self.times.ram)
        factor = new.batch_size / old.batch_size
        consumer = self._consumer(new, factor)
        lane = self.lane_in_memory if in_memory else self.lane
        if consumer is None or lane is None:
            return None
        cpu = self.lane_cpu
        if (new.loader, new.decoder, new.output) != (old.loader, old.decoder, old.output):
            ratio = self._stage_ratio(new)
            if ratio is None or self.stage_part is None:
                if (new.loader, new.decoder) != (old.loader, old.decoder):
                    return None
                ratio = np.ones_like(lane)  # fewer bytes never cost the workers more
            lane = lane * (1 - (self.stage_part or 0.0) * (1 - ratio))
            cpu = None if cpu is None else cpu * (1 - self.stage_cpu_part * (1 - ratio))
        if new.workers == 0:
            return np.asarray(np.maximum(consumer, factor * lane + self.issue))
        lanes_change = new.workers != self.lanes or old.workers == 0
        if lanes_change and cpu is None:
            return None  # how many workers the processors can feed is not known
        crowd = self._crowding(new.workers) / self._crowding(self.lanes)
        parts = [consumer, factor * lane * crowd / new.workers]
        if cpu is not None:
            parts.append((factor * cpu * crowd + self.consumer_cpu) / self.cpus)
        if factor > 1.0:
            parts.append(self.real)  # a step of more samples is never shorter
        if self.fetch is not None and not in_memory:
            parts.append(factor * self._fetch_with(new.workers))
        if new.loader == "threaded" and new.decoder in self.probe.get("decoders", {}):
            rate = self.probe["decoders"][new.decoder].get("all_cpus_rate")
            if rate and new.workers >= self.cpus:  # Python's lock included
                parts.append(np.full_like(lane, new.batch_size / rate))
        return np.asarray(np.maximum.reduce(parts))

    def _consumer(self, new: Case, factor: float) -> Draws | None:
        """Step time of device and copy when data are always ready."""
        if self.base is None or self.device is None:
            return None
        smaller = PIXEL_BYTES[new.output] / PIXEL_BYTES[self.case.output]
        copy = self.copy * smaller
        if factor == 1.0 and self.overlap:
            rest = self.base - np.maximum(self.device, self.copy)
            return np.asarray(np.maximum(self.device, copy) + np.maximum(rest, 0.0))
        if factor == 1.0:
            return np.asarray(self.device + (self.base - self.device) * smaller)
        if self.busy is None:
            return None
        both = np.maximum(self.busy, copy) if self.overlap else self.busy + copy
        return np.asarray(np.maximum(factor * both, self.issue))

    def _stage_ratio(self, new: Case) -> Draws | None:
        """Cost of decode, augment and collate after the change ÷ before, by the probe; None: not probed."""
        before, after = self._stage_s(self.case), self._stage_s(new)
        return None if before is None or after is None else after / before

    def _stage_s(self, case: Case) -> Draws | None:
        """Probed CPU seconds an image, the same resampled images for every decoder."""
        image_s = self.probe.get("decoders", {}).get(case.decoder, {}).get("image_s")
        handover = self.probe.get("handover_s", {}).get(case.output, {}).get(HANDOVER.get(case.loader))
        if not image_s or handover is None:
            return None
        seconds = np.asarray(image_s, dtype=np.float64)
        picks = np.random.default_rng(11).integers(len(seconds), size=(len(self.real) - 1, len(seconds)))
        means = np.concatenate([[seconds.mean()], seconds[picks].mean(axis=1)])
        return np.asarray(means + handover)

    def _crowding(self, workers: int) -> float:
        """CPU time of an image with so many processors busy ÷ with one: linear between one and all."""
        measured = self.probe.get("decoders", {}).get(self.case.decoder, {})
        if self.cpus < 2 or not measured.get("image_s") or "all_cpus_image_s" not in measured:
            return 1.0
        whole = max(1.0, float(measured["all_cpus_image_s"]) / float(np.mean(measured["image_s"])))
        return 1.0 + (whole - 1.0) * (min(workers, self.cpus) - 1) / (self.cpus - 1)

    def _fetch_with(self, workers: int) -> Draws:
        """T_fetch was measured with the present readers. What others get is the storage probe's; where it did not
        run more of them may be faster, which widens the interval."""
        assert self.fetch is not None
        gain = storage.gain_with_readers(self.facts.get("ceiling"), self.lanes, workers)
        if gain is not None:
            return self.fetch / gain
        best = min(1.0, self.lanes / workers)
        spread = np.random.default_rng(13).uniform(best, 1.0, len(self.fetch))
        spread[0] = 1.0
        return self.fetch * spread

    def knee(self, change: Change, numbers: Iterable[int]) -> int | None:
        """The least number of workers that gives KNEE of the best predicted rate; None where unpredictable."""
        gains = {}
        for number in numbers:
            gain = self.speedup({**change, "workers": number})
            if gain is None:
                return None
            gains[number] = float(gain[0])
        if not gains:
            return None
        best = max(gains.values())
        return min(number for number, gain in gains.items() if gain >= KNEE * best)

    def fastest_decoder(self) -> str | None:
        """By the probe; None where nothing was probed."""
        probed = {name: np.mean(one["image_s"]) for name, one in self.probe.get("decoders", {}).items()}
        return min(probed, key=lambda name: float(probed[name])) if probed else None


def _array(quantity: Quantity) -> Draws:
    return np.concatenate([[quantity.value], quantity.draws])


def _arm(arm: ArmSteps, quantity: str) -> Draws:
    return np.concatenate([[arm.mean(quantity)], arm.drawn(quantity)])


def _worker_parts(spans: NDArray[np.int64] | None, like: Draws) -> tuple[Draws | None, float | None, float]:
    """(CPU seconds of a batch, part of a worker's wall time in decode, augment and collate, part of its
    CPU time there)."""
    if spans is None or len(spans) == 0:
        return None, None, 0.0

    def of(name: str) -> NDArray[np.int64]:
        return spans[:, SPAN_FIELDS.index(name)]

    wall = float((of("ready_ns") - of("start_ns")).mean())
    stage = float((of("decode_ns") + of("augment_ns") + of("collate_ns")).mean())
    cpu = of("cpu_ns") / 1e9
    if not wall > 0 or not cpu.mean() > 0:
        return None, None, 0.0
    picks = np.random.default_rng(17).integers(len(cpu), size=(len(like) - 1, min(len(cpu), 64)))
    draws = np.concatenate([[cpu.mean()], cpu.mean() + (cpu[picks].mean(axis=1) - cpu.mean())])
    queued = float(of("runqueue_ns").mean()) if (of("runqueue_ns") >= 0).all() else 0.0
    running = max(0.0, 1.0 - queued / wall)  # these stages compute only: what they did not run they stood in the queue
    return draws, min(1.0, stage / wall), min(1.0, stage * running / 1e9 / float(cpu.mean()))


def _for_storage(case: Case, model: _Model, arms: Mapping[str, ArmSteps]) -> list[Action]:
    text = "keep the data set in memory (--cache warm), or put it on faster storage"
    real, ram, probe = arms["real"], model.times.ram, model.facts.get("ceiling")
    if ram is not None and real.encoded_bytes:
        text += f": {storage.headroom(real.encoded_bytes / real.num_steps / ram.value, probe)}"
    predicted = model.predict({"cache": "warm"})
    fits = (model.facts.get("ram") or {}).get("memory_holds_all", True)
    actions = [Action("storage", text, {"cache": "warm"} if fits and case.cache != "warm" else None, predicted)]
    return actions + _more_readers(case, model) if storage.bound_by(probe, model.lanes) == "latency" else actions


def _more_readers(case: Case, model: _Model) -> list[Action]:
    """Against a latency: more files asked for at once."""
    if case.loader == "dali":  # its one reader reads file after file
        return []
    change: Change = {"loader": "multiprocess"} if case.workers == 0 else {}
    number = model.knee(change, range(model.lanes, max(model.lanes, model.most_workers) + 1))
    if number is None or number <= case.workers:
        return []
    change["workers"] = number
    text = f"ask for more files at once: {flags(change)} (this storage answers late: it gives more to more readers)"
    return [Action("storage", text, change, model.predict(change))]


def _for_prep(case: Case, model: _Model, contention: bool) -> list[Action]:
    actions = [*_more_workers(case, model), *_other_decoders(case, model)]
    if case.loader == "multiprocess" and case.output == "float32":
        text = "hand over uint8 and normalize on the device: --output uint8"
        actions.append(Action("prep", text, {"output": "uint8"}, model.predict({"output": "uint8"})))
    if case.resolution and case.input_size and case.resolution >= 2 * case.input_size:
        actions.append(Action("prep", f"store smaller images: loaderbench dataset derive --res {case.resolution // 2}"))
    if contention:
        actions.append(Action("prep", "the workers wait for a processor: free some, or add cores"))
    return [one for one in actions if one.change is None or one.predicted is not None]


def _more_workers(case: Case, model: _Model) -> list[Action]:
    """More workers, or a loader that has them; with the knee."""
    actions = []
    limit = model.most_workers
    if case.loader == "serial":
        number = model.knee({"loader": "multiprocess"}, range(1, limit + 1))
        if number is None:
            text = f"use a parallel loader: --loader multiprocess --workers {model.cpus}"
            actions.append(Action("prep", text))
        else:
            change = {"loader": "multiprocess", "workers": number}
            text = f"prepare batches in parallel: {flags(change)} (knee: more workers add less than 3 %)"
            actions.append(Action("prep", text, change, model.predict(change)))
    elif case.workers < limit and case.loader != "threaded":
        number = model.knee({}, range(case.workers, limit + 1))
        if number is None and case.workers < model.cpus:
            actions.append(Action("prep", f"add workers: --workers {model.cpus} (now {case.workers})"))
        elif number is not None and number > case.workers:
            change = {"workers": number}
            text = f"add workers: {flags(change)} (now {case.workers}; knee: more add less than 3 %)"
            actions.append(Action("prep", text, change, model.predict(change)))
    return [*actions, *_threads(case, model)]


def _threads(case: Case, model: _Model) -> list[Action]:
    """Threads instead of processes, with the fastest decoder, or more of them."""
    if case.loader not in HANDOVER:
        return []
    change: Change = {}
    if case.loader != "threaded":
        change = {"loader": "threaded", "decoder": model.fastest_decoder(), "output": "uint8"}
        change |= {name: {} for name in ("loader_options", "decoder_options") if getattr(case, name)}
        change |= {"decode_scale": None} if case.decode_scale else {}
    number = model.knee(change, range(max(case.workers, 1), max(model.most_workers, case.workers) + 1))
    if number is None or (not change and number <= case.workers):
        return []
    change["workers"] = number
    what = "decode in threads, straight into the batch" if case.loader != "threaded" else "add threads"
    text = f"{what}: {flags(change)} (knee: more add less than 3 %)"
    return [Action("prep", text, change, model.predict(change))]


def _other_decoders(case: Case, model: _Model) -> list[Action]:
    fastest = model.fastest_decoder()
    if fastest is None or fastest == case.decoder:
        return []
    change: Change = {"decoder": fastest} | ({"decoder_options": {}} if case.decoder_options else {})
    change |= {"decode_scale": None} if case.decode_scale else {}
    return [Action("prep", f"decode with {fastest}: {flags(change)}", change, model.predict(change))]


def _for_transfer(case: Case, model: _Model) -> list[Action]:
    actions = []
    if case.output == "float32":
        text = "copy uint8, a quarter of the bytes, and normalize on the device: --output uint8"
        actions.append(Action("transfer", text, {"output": "uint8"}, model.predict({"output": "uint8"})))
    if model.facts.get("pinned") is False:
        actions.append(Action("transfer", "hand over batches in pinned memory, so that the copy needs no host time"))
    return actions


def _for_launch(case: Case, model: _Model) -> list[Action]:
    change = {"batch_size": 2 * case.batch_size}
    text = f"launch less often: {flags(change)} (now {case.batch_size})"
    return [
        Action("launch", text, change, model.predict(change)),
        Action("launch", "replay the step as a CUDA graph, or compile the model"),
    ]


def _together(model: _Model, actions: Sequence[Action]) -> list[Action]:
    """Storage and preparation bound the run together: the best change of prep with the data in memory."""
    best: Action | None = None
    for one in actions:
        if one.cause != "prep" or one.change is None:
            continue
        change = {**one.change, "cache": "warm"}
        predicted = model.predict(change)
        if predicted is not None and (best is None or best.predicted is None or predicted.value > best.predicted.value):
            best = Action("prep", f"both: {one.text}, and the data in memory: --cache warm", change, predicted)
    return [] if best is None else [best]

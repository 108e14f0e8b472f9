"""What a run would gain if its case were another one, by replay of its batches (pipeline/change.py).

Another decoder, output or hand-over scales what workers do besides reading by the ratio of their costs in the run's
probe. Other workers meet the storage and the processors otherwise, and a processor is slower when all are busy than
when it is alone: the probe says by how much. Another batch size scales all but issuing.
How far predictions are off is measured by benchmarks/verify.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import numpy as np

from loaderbench.analysis import storage
from loaderbench.analysis.prep_costs import PrepCosts
from loaderbench.analysis.quantities import Draws
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import SAMPLES, Case, FieldValue
from loaderbench.cases.case import Change as CaseChange
from loaderbench.cases.traits import Work
from loaderbench.pipeline.change import Change, changed
from loaderbench.pipeline.edits import busy_s
from loaderbench.pipeline.gains import Replays
from loaderbench.recording.facts import SPAN, Table
from loaderbench.recording.record import Estimate

WAITED = 0.1
"""Of the workers' time, the part that they waited for processors, from which on all of these are at work."""
KNEE = 0.97
"""The knee is the least number of workers with this part of the best predicted rate."""
MODEL_ERROR = 0.10
"""Half-width that the model itself adds to a prediction's interval."""
PIXEL_BYTES = {"float32": 4, "uint8": 1}
MEMORY: CaseChange = {"cache": "warm"}
"""The data set in memory."""
IO_THREADS = "io_threads"
"""The loader option that `--io-threads` sets, of loaders that read ahead."""


def knee(numbers: Iterable[int], gain: Callable[[int], float]) -> int:
    """The least of the numbers that gives KNEE of the best gain. Gains grow up to there: each power of two of the
    numbers is looked at, then halves of the part in which the knee lies, since each look is a replay."""
    ordered = sorted(numbers)
    looked: dict[int, float] = {}

    def at(place: int) -> float:
        if place not in looked:
            looked[place] = gain(ordered[place])
        return looked[place]

    last = len(ordered) - 1
    places = sorted({*((1 << power) - 1 for power in range(last.bit_length())), last})
    least = KNEE * max(at(place) for place in places)
    high = next(place for place in places if at(place) >= least)
    low = max((place for place in places if place < high), default=-1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) >= least else (middle, high)
    return ordered[high]


class Predictions:
    """Of one run."""

    def __init__(self, replays: Replays, cpus: int, *, storage_costs: bool, storage_known: bool) -> None:
        """`cpus`: that it may use. `storage_costs`: the loader reads from a storage that takes time; `storage_known`:
        what that gives was measured or probed."""
        self.replays, self.fitted = replays, replays.fitted
        self.case, self.facts = self.fitted.run.case, self.fitted.recording.facts
        self.cpus, self.num = cpus, len(replays.order.rows)
        self.costs = PrepCosts(self.case, self.facts, cpus, self.num)
        self.known, self.traits = self.costs.known, self.facts.loader.traits
        self.storage_costs, self.storage_known = storage_costs, storage_known

    def gain(self, change: CaseChange, *, roughly: bool = False) -> Draws | None:
        """Samples a second after ÷ before, [1 + draws]; None where a part of it is not known. `roughly`: the value
        alone."""
        new = self.case.changed(**change)
        told = self._change(new)
        if told is None:
            return None
        replays = self._roughly if roughly else self.replays
        step = replays.step_s(changed(self.fitted, told))
        factor = new.step.batch_size / self.case.step.batch_size
        if self._is_unknown(new):  # the storage may take all of the time
            floor = np.random.default_rng(29).uniform(0.0, 1.0, len(step))
            floor[0] = 0.0
            step = np.maximum(step, floor * replays.now_s)
        if factor > 1.0:  # a step of more samples is never shorter
            step = np.maximum(step, replays.now_s)
        return np.asarray(replays.now_s / np.maximum(step, 1e-12) * factor)

    @cached_property
    def _roughly(self) -> Replays:
        return Replays(self.fitted, 0)

    def predict(self, change: CaseChange) -> Estimate | None:
        """The gain with its interval, which holds the model's own error unless the outcome was measured."""
        gain = self.gain(change)
        if gain is None:
            return None
        return self.replays.estimate(gain, own=0.0 if change == MEMORY else MODEL_ERROR)

    def work_of(self, new: Case) -> tuple[float, float] | None:
        """(seconds of a worker besides reading, CPU seconds of all threads) of another case, each ÷ this one's; None:
        what it costs is not known."""
        ratio = self.costs.ratio(new, crowded=self._crowded)
        if ratio is None:
            return None
        prep, cpu = self._work(new, self._with_the_price(new, ratio), 1.0)
        return float(prep[0]), float(cpu[0])

    def knee(self, change: CaseChange, numbers: Iterable[int]) -> int | None:
        """The least number of workers that gives KNEE of the best predicted rate; None where unpredictable."""
        return self.knee_of({number: {**change, "workers": number} for number in numbers})

    def knee_of(self, changes: Mapping[int, CaseChange]) -> int | None:
        """The same for other numbers: each with its change."""
        if not changes or any(self._change(self.case.changed(**one)) is None for one in changes.values()):
            return None

        def gain(number: int) -> float:
            found = self.gain(changes[number], roughly=True)
            assert found is not None
            return float(found[0])

        return knee(changes, gain)

    # -- from a case to a pipeline -----------------------------------------------------------------------------

    def moves_to_memory(self, new: Case) -> bool:
        return new.subject.cache == "warm" and self.case.subject.cache != "warm"

    def _is_unknown(self, new: Case) -> bool:
        """Whether what its storage gives was not measured."""
        return self.storage_costs and not self.storage_known and not self.moves_to_memory(new)

    def _change(self, new: Case) -> Change | None:
        """How the pipeline changes; None where that is not known."""
        old, stages = self.case, self.fitted.real
        in_memory, crew = self.moves_to_memory(new), _crew(new) != _crew(old)
        ratio = self.costs.ratio(new, crowded=self._crowded)
        if ratio is None or (in_memory and not {Arm.RAM, Arm.PREP} & self.fitted.arms.keys()):
            return None
        if crew and (stages.opaque or not self.worker_cpu_s or self._is_unknown(new)):
            return None  # how many workers the processors, or the storage, can feed is not known
        factor, device_s = new.step.batch_size / old.step.batch_size, None
        if factor != 1.0:
            device_s = factor * busy_s(self.fitted)
            if not np.isfinite(device_s):
                return None
        prep, cpu = self._work(new, self._with_the_price(new, ratio), factor)
        # Threads do at least what they did.
        did_s = factor * stages.measured_s if self._is_alike(new) else float("inf")
        threads_s = self.costs.threads_batch_s(new, did_s) if new.feed.workers >= self.cpus else None
        traits, readers = self.known[new.feed.loader], self._new_readers(new)
        return Change(
            workers=new.feed.workers if crew else None,
            depth=traits.buffer_batches(new.feed) if crew else None,
            in_turn=traits.work != "threads" if crew else None,
            reading=factor if readers is None else 0.0,
            rate=None if readers is None else 1.0 / max(factor * self._fetch_s(readers), 1e-12),
            prep=float(prep[0]), cpu=float(cpu[0]), factors={"prep": prep / prep[0], "cpu": cpu / cpu[0]},
            copy=factor * PIXEL_BYTES[new.feed.output] / PIXEL_BYTES[old.feed.output], device_s=device_s,
            without=frozenset({"storage"}) if in_memory else frozenset(), least_s=threads_s or 0.0,
        )  # fmt: skip

    def _is_alike(self, new: Case) -> bool:
        return self.in_threads and new.feed.decoder == self.case.feed.decoder

    @cached_property
    def spans(self) -> Table:
        """Of the batches of `real` that were measured; no row where the loader tells none."""
        found = [one.spans[one.num_warmup : len(one.steps)] for one in self.fitted.recording.of(Arm.REAL)
                 if one.spans is not None]  # fmt: skip
        return np.concatenate(found) if found else np.zeros((0, len(SPAN)), dtype=np.int64)

    def _mean_s(self, *columns: str) -> float:
        spans = self.spans
        return float(spans[:, [SPAN[f"{one}_ns"] for one in columns]].sum(axis=1).mean()) / 1e9 if len(spans) else 0.0

    @cached_property
    def worker_cpu_s(self) -> float:
        """CPU seconds of a batch in its worker; 0 where it is not told."""
        return self._mean_s("cpu")

    @cached_property
    def _wall_s(self) -> float:
        return self._mean_s("ready") - self._mean_s("start")

    @cached_property
    def waited(self) -> float:
        """Part of the workers' time in which they waited for a processor."""
        known = len(self.spans) and (self.spans[:, SPAN["runqueue_ns"]] >= 0).all() and self._wall_s > 0
        return self._mean_s("runqueue") / self._wall_s if known else 0.0

    @property
    def _crowded(self) -> bool:
        return self.fitted.seen is not None and self.waited > WAITED

    @cached_property
    def _stage_cpu_s(self) -> float:
        """CPU seconds of a batch in decode, augment and collate, which only compute."""
        reading = self.spans[:, SPAN["read_cpu_ns"]] if self.spans.shape[1] > SPAN["read_cpu_ns"] else np.full(1, -1)
        if len(reading) and reading.sum() > 0 and (reading >= 0).all():
            return max(0.0, self.worker_cpu_s - float(reading.mean()) / 1e9)
        # Where they did not run they waited for a processor.
        return min(self.worker_cpu_s, self._mean_s("decode", "augment", "collate") * (1.0 - self.waited))

    def _with_the_price(self, new: Case, ratio: Draws) -> Draws:
        """With what more workers than processors cost, as they take the caches from each other: how much more their
        work is than the probe says, whose threads are as many as the processors. Fewer workers do not pay it; another
        decoder, which needs less of the caches, pays all of it or nothing."""
        alone = self.costs.sample_s(self.case, crowded=True)
        if alone is None or not self._crowded or self.case.feed.lanes <= self.cpus:
            return ratio
        price = max(1.0, self._stage_cpu_s / (float(alone[0]) * self.case.step.batch_size))
        if new.feed.workers <= self.cpus:
            return ratio / price
        if new.feed.decoder == self.case.feed.decoder:
            return ratio
        less = np.random.default_rng(19).uniform(1.0 / price, 1.0, len(ratio))
        less[0] = (1.0 / price + 1.0) / 2  # measured: some pay all of it, some nothing
        return ratio * less

    def _work(self, new: Case, ratio: Draws, factor: float) -> tuple[Draws, Draws]:
        """(seconds of a worker besides reading, CPU seconds of all threads) after a change of what preparing costs and
        of the batch size, each ÷ before."""
        one, more = self.fitted.real.batches, factor
        more *= self.costs.crowding(new.feed.lanes) / self.costs.crowding(self.case.feed.lanes)
        stage_s, all_s, issue_s = self._mean_s("decode", "augment", "collate"), float(one.cpu.mean()), one.issue.mean()
        part = min(1.0, stage_s / max(self._wall_s - self._mean_s("read"), 1e-12)) if len(self.spans) else 1.0
        worker_s = self.worker_cpu_s - self._stage_cpu_s * (1.0 - ratio)
        handing_s = max(0.0, all_s - self.worker_cpu_s - float(issue_s))
        if self.costs.in_threads(new.feed.loader) and not self.in_threads:  # nothing is handed to another process
            handing_s = 0.0
        spent_s = more * (worker_s + handing_s) + min(float(issue_s), max(0.0, all_s - self.worker_cpu_s))
        return (1.0 - part * (1.0 - ratio)) * more, np.maximum(spent_s / max(all_s, 1e-12), 1e-6)

    # -- readers -----------------------------------------------------------------------------------------------

    def readers_of(self, case: Case) -> int:
        """Files that the loader of a case reads at once."""
        traits = self.known.get(case.feed.loader)
        if traits is None:
            return case.feed.lanes
        ahead = int(case.feed.loader_options.get(IO_THREADS, 0)) if traits.reads_ahead else 0
        return ahead or traits.readers or case.feed.lanes

    @property
    def readers(self) -> int:
        return self.readers_of(self.case)

    def _new_readers(self, new: Case) -> int | None:
        """Of a case that reads with other threads of its own; None where it does not. A worker's time is then its own
        work, and the wait for them, which their number decides."""
        old, now = self.case.feed, new.feed
        apart = now.loader_options.get(IO_THREADS) != old.loader_options.get(IO_THREADS) and now.loader == old.loader
        return self.readers_of(new) if apart else None

    def _fetch_s(self, readers: int) -> float:
        """Seconds a batch of so many readers that do nothing else: the measured ones × the ratio by the probe."""
        gain = storage.gain_with_readers(self.facts.storage.ceiling, self.readers, readers)
        return self.fitted.fetch_s / (gain or 1.0)

    # -- what could be another one -----------------------------------------------------------------------------

    @property
    def memory_helps(self) -> bool:
        """Whether the data set can be kept in memory, and is not yet."""
        copy = self.facts.storage.ram_copy
        return self.case.subject.cache != "warm" and (copy is None or copy.memory_holds_all is not False)

    @property
    def in_threads(self) -> bool:
        """Whether the present loader makes samples with our decoders in threads of one process."""
        return self.costs.in_threads(self.case.feed.loader)

    def loader_with(self, work: Work) -> str | None:
        """A loader that works in `work` and whose preparation can be predicted; None: there is none."""
        return next((name for name, traits in self.facts.loader.alternatives.items() if traits.work == work), None)

    def with_loader(self, name: str) -> dict[str, FieldValue]:
        """Another loader, with those of the case's options that it takes by its traits."""
        feed, traits = self.case.feed, self.known[name]
        taken = {SAMPLES: traits.as_torchvision, IO_THREADS: traits.reads_ahead}
        options = {key: value for key, value in feed.loader_options.items() if taken.get(key)}
        return {"loader": name} | ({} if options == feed.loader_options else {"loader_options": options})

    def with_decoder(self, name: str) -> dict[str, FieldValue]:
        """A decoder, without the case's options where it is another one; `--decode-scale` stays if it takes that."""
        feed, change = self.case.feed, dict[str, FieldValue](decoder=name)
        if name != feed.decoder:
            change |= {"decoder_options": {}} if feed.decoder_options else {}
            change |= {"decode_scale": None} if feed.decode_scale and not self.costs.scales(name) else {}
        return change


def _crew(case: Case) -> tuple[object, ...]:
    return case.feed.workers, case.feed.prefetch, case.feed.loader

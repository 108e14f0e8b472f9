"""`loaderbench capacity`: how many ranks with emulated devices a storage feeds from this machine.

docs/capacity.md defines every figure.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import get_args

from loaderbench import plugins
from loaderbench.analysis.capacity import curve_of, point_of
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.cases.options import CapacityOptions, EffortOptions, Options, Words, one_of_each
from loaderbench.cases.study import check_choice, check_range, check_seconds
from loaderbench.devices.select import traits_of
from loaderbench.errors import CaseFailed, ConfigError, LoaderbenchError
from loaderbench.images.filesystem import storage_behind
from loaderbench.images.index import first_image, index_images
from loaderbench.machine import environment
from loaderbench.recording.capacity import Barrier, CapacityFacts, Look
from loaderbench.recording.facts import Failure
from loaderbench.recording.progress import Message, Phase
from loaderbench.recording.store import Store
from loaderbench.running.crew import Crew, OneFailed
from loaderbench.running.jobs.table import (
    OPEN_RANK,
    PROBE_CEILING,
    RUN_RANK,
    SURVEY_FILES,
    RankProbeRequest,
    RankRequest,
    RankRunRequest,
    SurveyRequest,
)
from loaderbench.running.supervisor import JobFailed, prefix_of_decoder
from loaderbench.studies.capacity_search import next_ranks
from loaderbench.studies.kept import KeptStudy, Say
from loaderbench.studies.refusals import planned
from loaderbench.studies.request import resolve
from loaderbench.temporary import TemporaryFolder

MOST_RANKS = 256
"""Each is a process that imports PyTorch."""
PATIENCE_S = 5.0
"""For the other ranks, once one has failed."""
PROBE_PART, LEAST_PROBE_S, MOST_PROBE_S = 0.4, 2.0, 6.0
"""Seconds of the storage's probe: this part of a look, within these."""
ONE_OF_EACH = ("res", "cache", "loader", "decoder", "workers", "prefetch", "model", "precision", "batch_size")


@dataclass(frozen=True)
class CapacityPlan:
    """What is to be measured."""

    facts: CapacityFacts
    """Without a look."""
    seconds: float
    """Of a look."""


def plan_capacity(dataset: str, options: Options, asked: CapacityOptions) -> CapacityPlan:
    """What the options ask for.

    Raises:
        ConfigError: a value out of range, no such folder, a device that is not emulated, a loader that reads no image
            files, or too few images.
    """
    if not 0 < asked.au < 1:
        raise ConfigError(f"--au is a fraction above 0 and below 1, such as 0.9, not {asked.au:g}")
    if not 1 <= asked.max_ranks <= MOST_RANKS:
        raise ConfigError(f"--max-ranks is from 1 to {MOST_RANKS}, not {asked.max_ranks}")
    check_seconds("--duration", asked.duration)
    check_range("--steps", asked.steps, 1)
    barrier: Barrier = check_choice("--barrier", asked.barrier, get_args(Barrier))
    one_of_each("capacity", options, *ONE_OF_EACH)
    options = replace(options, effort=EffortOptions(Words((Arm.REAL.value,)), duration=asked.duration, seed=asked.seed))
    resolution = options.subject.res[0] if options.subject.res else None
    if options.step.device != "auto" and traits_of(options.step.device).computes:
        raise ConfigError(
            f"capacity starts many ranks on one machine, each with an emulated device: give --device emulated, not "
            f"{options.step.device}"
        )
    request = resolve(options, [(dataset, resolution)])
    (case,) = planned(request)
    _check_case(case)
    images = index_images(case.subject.dataset)
    needed = asked.max_ranks * case.step.batch_size
    if len(images) < needed:
        raise ConfigError(
            f"{asked.max_ranks} ranks of batch {case.step.batch_size} need {needed:,} images, and {dataset} has "
            f"{len(images):,}: give a larger set, or {_fewer(len(images), case.step.batch_size, asked.max_ranks)}"
        )
    behind = storage_behind(first_image(case.subject.dataset) or case.subject.dataset)
    facts = CapacityFacts(
        case=case,
        au_target=asked.au,
        max_ranks=asked.max_ranks,
        barrier=barrier,
        least_steps=asked.steps,
        environment=environment(),
        num_images=len(images),
        image_bytes=int(images.sizes.sum()),
        file_system=behind.type,
        in_memory=behind.is_memory,
    )
    return CapacityPlan(facts, asked.duration)


def _fewer(num_images: int, batch_size: int, max_ranks: int) -> str:
    """The options with which so many images are enough."""
    ranks, batch = num_images // batch_size, num_images // max_ranks
    use = [f"--max-ranks {ranks}"] if ranks else []
    use += [f"--batch-size {batch}"] if batch else []
    return " or ".join(use) or "--batch-size 1 --max-ranks 1"


def _check_case(case: Case) -> None:
    """Raises ConfigError for what ranks cannot have."""
    traits = plugins.LOADERS.find(case.feed.loader).traits
    if not traits.reads_files or traits.format is not None or traits.needs_gpu:
        raise ConfigError(
            f"capacity gives each rank its own image files, which --loader {case.feed.loader} does not read from the "
            "processors: use serial, multiprocess or threaded"
        )
    if case.subject.cache == "warm":
        raise ConfigError("--cache warm would measure memory, not the storage: use cold or as-is")
    if case.step.input_size is None and case.subject.resolution is None:
        raise ConfigError("--input-size full has no known size here: give --res N, or --input-size N")


class CapacityStudy(KeptStudy):
    """One search. What was measured is kept and stored, however `run` ends."""

    def __init__(self, plan: CapacityPlan, store: Store) -> None:
        super().__init__("capacity", store.new_study("capacity", [plan.facts.case.subject.dataset_name]))
        self._seconds, self._facts = plan.seconds, plan.facts
        self._case = plan.facts.case
        self._num_open = 0
        self.error: LoaderbenchError | None = None
        """What ended it, once what it found can be shown."""

    def facts(self) -> CapacityFacts:
        """What is known so far."""
        return self._facts

    @property
    def begun(self) -> bool:
        return bool(self._facts.looks)

    @property
    def num_looks(self) -> int:
        """Looks that were finished."""
        return len(self._facts.looks)

    def run(self, say: Say) -> None:
        """Probe the storage, then look at 1, 2, 4 … ranks, and in between, until the edge is known.

        A rank that fails ends it: `error` says which, and what was measured is kept.

        Raises:
            LoaderbenchError: a rank failed before anything was measured.
        """
        self._folder.begin()
        meetings = TemporaryFolder()
        said = [""]

        def on_message(number: int, message: Message) -> None:
            if isinstance(message, Phase) and number == 0:
                say(f"{said[0]}: {message.text}", False)

        try:
            prefix = prefix_of_decoder(self._case.feed.decoder)
            with Crew(self._log, on_message, prefix=prefix, patience_s=PATIENCE_S) as crew:
                self._open(crew, 1, say, said)
                self._probe(crew, say, said)
                while (ranks := self._next()) is not None:
                    self._look(crew, ranks, f"{meetings.path}/{self.num_looks}", say, said)
            self._facts = replace(self._facts, interrupted=False)
        except JobFailed as error:  # another process is changing the decoder's package
            raise error.error from error
        except OneFailed as error:
            self._fail(error)
        finally:
            meetings.remove()
            if not self.begun:
                self._folder.discard()

    def _next(self) -> int | None:
        return next_ranks(curve_of(self._facts), self._facts.au_target, self._facts.max_ranks)

    def _fail(self, error: OneFailed) -> None:
        cause = error.cause.error
        name = f"rank {error.number} of {self._num_open}"
        message = str(cause) if isinstance(cause, ConfigError) else f"{name}: {cause}"
        self.error = ConfigError(message) if isinstance(cause, ConfigError) else CaseFailed(message)
        if not self.num_looks:  # nothing to keep
            raise self.error from error
        self._facts = replace(self._facts, failure=Failure(type(self.error).__name__, message), interrupted=False)
        self.store()

    def _open(self, crew: Crew, ranks: int, say: Say, said: list[str]) -> None:
        """Have as many processes ready."""
        if ranks <= self._num_open:
            return
        new = range(self._num_open, ranks)
        said[0] = "starting a rank" if ranks == 1 else f"starting ranks {new[0]} to {new[-1]}"
        say(said[0], False)
        self._num_open = ranks
        crew.grow(ranks)
        most = self._facts.max_ranks
        opened = crew.ask(OPEN_RANK, {number: RankRequest(self._case, number, most) for number in new})
        first = opened[new[0]]
        self._facts = replace(self._facts, device=first.device, step_ns=first.step_ns, period_ns=first.period_ns)

    def _probe(self, crew: Crew, say: Say, said: list[str]) -> None:
        said[0] = "the storage's ceiling"
        say(said[0], False)
        self._survey(crew, before=True)
        seconds = min(max(PROBE_PART * self._seconds, LEAST_PROBE_S), MOST_PROBE_S)
        request = RankProbeRequest(self._case, 0, self._facts.max_ranks, seconds)
        self._facts = replace(self._facts, probe=crew.ask(PROBE_CEILING, {0: request})[0])

    def _survey(self, crew: Crew, *, before: bool) -> tuple[float | None, dict[str, int] | None]:
        found = crew.ask(SURVEY_FILES, {0: SurveyRequest(self._case, 0, self._facts.max_ranks, before)})[0]
        self._facts = replace(self._facts, storage_source=found.source, no_storage_counter=found.no_counter)
        return found.resident, found.counters

    def _look(self, crew: Crew, ranks: int, meeting: str, say: Say, said: list[str]) -> None:
        """Run so many ranks once, keep it and store it."""
        self._open(crew, ranks, say, said)
        again = sum(look.ranks == ranks for look in self._facts.looks)
        said[0] = f"{ranks} rank{'s' * (ranks != 1)}{', again' if again else ''}"
        say(said[0], False)
        resident, counters = self._survey(crew, before=True)
        begun = time.perf_counter()
        requests = {
            number: RankRunRequest(
                self._case, number, self._facts.max_ranks, ranks, self.num_looks, self._seconds,
                self._facts.least_steps, self._facts.barrier == "step", meeting,
            )
            for number in range(ranks)
        }  # fmt: skip
        parts = crew.ask(RUN_RANK, requests)
        resident_after, counters_after = self._survey(crew, before=False)
        moved = None
        if counters is not None and counters_after is not None:
            moved = {name: counters_after[name] - counters[name] for name in counters_after}
        look = Look(ranks, tuple(parts[number] for number in range(ranks)), resident, resident_after, moved)
        self._facts = replace(self._facts, looks=(*self._facts.looks, look))
        self.store()
        seen = point_of([look], self._facts)
        took = time.perf_counter() - begun
        rate = f"{seen.samples_per_s.value:,.0f} images/s"
        say(f"{said[0]}: AU {100 * seen.au_fraction:.1f} %, {rate} ({seen.num_steps} steps, {took:.0f} s)", True)

"""`loaderbench capacity`: how many ranks with emulated devices a storage feeds from this machine.

docs/capacity.md defines every figure.
"""

from __future__ import annotations

import time
from dataclasses import replace

from loaderbench.analysis.capacity import curve_of, point_of
from loaderbench.errors import CaseFailed, ConfigError, LoaderbenchError
from loaderbench.printable import counted
from loaderbench.recording.capacity import CapacityFacts, Look
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
from loaderbench.studies.capacity_plan import CapacityPlan
from loaderbench.studies.capacity_search import next_ranks
from loaderbench.studies.kept import KeptStudy, Say
from loaderbench.temporary import TemporaryFolder

PATIENCE_S = 5.0
"""For the other ranks, once one has failed."""
PROBE_PART, LEAST_PROBE_S, MOST_PROBE_S = 0.4, 2.0, 6.0
"""Seconds of the storage's probe: this part of a look, within these."""


class CapacityStudy(KeptStudy):
    """One search. What was measured is kept and stored, however `run` ends."""

    keeps_empty = False

    def __init__(self, plan: CapacityPlan, store: Store) -> None:
        super().__init__(store.new_study("capacity", [plan.facts.case.subject.dataset_name]))
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
    def kept(self) -> str:
        return f"{self.num_looks} measurements finished and are kept"

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
        said[0] = f"{counted(ranks, 'rank')}{', again' if again else ''}"
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

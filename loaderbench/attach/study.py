"""A look at some jobs, kept as a study."""

from __future__ import annotations

from collections.abc import Sequence

from loaderbench.attach.facts import AttachFacts, JobFacts
from loaderbench.attach.find import Process, hidden, may_see
from loaderbench.attach.measure import Gpus, Job, Looked, watch_jobs
from loaderbench.cases.options import Price
from loaderbench.errors import ConfigError
from loaderbench.recording.store import Store
from loaderbench.studies.kept import KeptStudy, Say


class AttachStudy(KeptStudy):
    """Looks at jobs for some seconds; what was seen until an interrupt is kept."""

    def __init__(self, jobs: Sequence[Process], asked: str, seconds: float, price: Price | None, store: Store) -> None:
        super().__init__(store.new_study("attach", [asked.replace(" ", "-")]))
        self._processes, self._asked, self._seconds, self._price = jobs, asked, seconds, price
        self._looked = Looked([])
        self._seen: tuple[JobFacts, ...] = ()

    @property
    def kept(self) -> str:
        """What an interrupt leaves."""
        return "what was seen until then is kept"

    @property
    def begun(self) -> bool:
        """Whether anything was seen."""
        return bool(self._seen)

    keeps_empty = False

    def facts(self) -> AttachFacts:
        """What was seen."""
        looked = self._looked
        return AttachFacts(
            self._asked, self._seconds, self._seen, tuple(looked.refused), looked.cpu_s, looked.wall_s,
            looked.interrupted, self._price,
        )  # fmt: skip

    def run(self, say: Say) -> None:
        """Look. Raises KeyboardInterrupt after Ctrl-C."""
        jobs = []
        refused = []
        for process in self._processes:
            if not may_see(process.pid):
                refused.append(hidden(process))
                continue
            try:
                jobs.append(Job(process))
            except (OSError, ValueError) as error:
                refused.append(f"PID {process.pid}: {error}")
        if not jobs:
            raise ConfigError("; ".join(refused))
        gpus = Gpus([job.process.pid for job in jobs])

        def tell(part: float, _: Looked) -> None:
            gpus.read()
            say(
                f"{self._asked}: {part:.0%} of {self._seconds:g} s; {' · '.join(job.so_far() for job in jobs[:3])}",
                False,
            )

        try:
            self._looked = watch_jobs(jobs, self._seconds, tell)
            self._looked.refused += refused
            self._seen = tuple(job.facts(gpus.of(job.process.pid)) for job in jobs)
        finally:
            gpus.close()
            for job in jobs:
                job.close()
        if self._looked.interrupted:
            raise KeyboardInterrupt

"""`loaderbench model io`: what a batch's way to a device and its outputs' way back take, over a range of batches."""

from __future__ import annotations

from dataclasses import replace

from loaderbench.cases.inputs import sample_bytes
from loaderbench.errors import CaseFailed, OutOfMemory
from loaderbench.machine import environment
from loaderbench.recording.model_io import CopiesFacts, IoFacts
from loaderbench.recording.store import Store
from loaderbench.running.jobs.table import TIME_COPIES, CopiesRequest
from loaderbench.running.supervisor import Child, JobFailed
from loaderbench.studies.io_plan import IoPlan
from loaderbench.studies.kept import KeptStudy, Say, told
from loaderbench.studies.split_plan import FLOAT_BYTES

SECONDS = 0.2
"""For each way of each batch."""
NUM_OUTPUTS = 1000
"""Of an emulated device's model, which is one for ImageNet."""


class IoStudy(KeptStudy):
    """All batches on one device. What was measured is kept and stored, however `run` ends."""

    def __init__(self, plan: IoPlan, store: Store) -> None:
        self._plan = plan
        super().__init__(store.new_study("model_io", [plan.step.model, plan.step.device]))
        self._facts = IoFacts(
            model=plan.step.model,
            precision=plan.step.precision,
            device_name=plan.step.device,
            input_size=plan.step.input_size,
            channels=plan.step.channels,
            inputs=plan.step.inputs,
            seed=plan.seed,
            environment=environment(),
            known=plan.known,
            num_batches=len(plan.batches),
        )

    def facts(self) -> IoFacts:
        """What is known so far."""
        return self._facts

    @property
    def begun(self) -> bool:
        return bool(self._facts.batches)

    @property
    def kept(self) -> str:
        return f"{len(self._facts.batches)} batch sizes finished and are kept"

    @property
    def failed(self) -> bool:
        """Whether no batch has times."""
        return all(one.failure is not None for one in self._facts.batches)

    def run(self, say: Say) -> None:
        """Copy every batch. One that does not fit ends it, and is kept with the reason.

        Raises:
            ConfigError: the model is unknown, or does not take the images.
            UnavailableError: the device does not start.
            CaseFailed: the process ended, or the results cannot be written.
        """
        if self._plan.known is not None:
            step = self._plan.step
            image_bytes = sample_bytes(step)
            for size in self._plan.batches:
                self._add(CopiesFacts(size, size * image_bytes, size * NUM_OUTPUTS * FLOAT_BYTES))
            return
        self._folder.begin()
        with Child(self._log) as child:
            for number, size in enumerate(self._plan.batches, start=1):
                where = f"[batch {number} of {len(self._plan.batches)}] {size} images on {self._plan.step.device}"
                if not self._copy(child, size, say, where):
                    return

    def _copy(self, child: Child, size: int, say: Say, where: str) -> bool:
        """Time one batch; whether larger ones are to be tried."""
        say(where, False)
        request = CopiesRequest(self._plan.step, self._plan.seed, size, SECONDS)
        try:
            done = child.ask(TIME_COPIES, request, told(say, where))
        except JobFailed as error:
            if not isinstance(error.error, OutOfMemory):
                if self.begun:
                    self.store()
                raise (CaseFailed(f"{where}: {error}") if type(error.error) is CaseFailed else error.error) from error
            self._add(CopiesFacts(size, failure=error.failure))
            return False
        self._facts = replace(self._facts, device=done.device)
        self._add(CopiesFacts(size, done.in_bytes, done.out_bytes, done.in_s, done.out_s))
        return True

    def _add(self, batch: CopiesFacts) -> None:
        self._facts = replace(self._facts, batches=(*self._facts.batches, batch))
        self.store()

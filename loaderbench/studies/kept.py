"""A study that has no runs: its facts are kept and judged whenever something is finished."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.analysis.studies import judge
from loaderbench.recording.facts import SCHEMA
from loaderbench.recording.kinds import kind_of
from loaderbench.recording.others import TimedFacts
from loaderbench.recording.progress import Message, Phase, StepsDone
from loaderbench.recording.store import LOG_FILE, StudyFolder
from loaderbench.recording.studies import Findings, StudyFacts, StudyRecord
from loaderbench.samplers.cpu import Others

Say = Callable[[str, bool], None]
"""Called with (a line, whether it stays); a line that does not stay is replaced by the next."""


class KeptStudy(ABC):
    """A study of one model. What is finished is kept and stored, however `run` ends."""

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self._others = Others()

    @abstractmethod
    def run(self, say: Say) -> None:
        """Do all of it. Raises as the kind of study says."""

    @abstractmethod
    def facts(self) -> StudyFacts:
        """What is known so far."""

    keeps_empty = True
    """Whether it is stored where nothing was measured."""

    @property
    def begun(self) -> bool:
        """Whether there is anything to show."""
        return True

    @property
    @abstractmethod
    def kept(self) -> str:
        """What an interrupt leaves of it, in words."""

    @property
    def failed(self) -> bool:
        """Whether its command ends with an error, although it came to its end."""
        return False

    @property
    def _log(self) -> Path:
        return self._folder.path / LOG_FILE

    def discard(self) -> None:
        """Leave nothing of it, unless something was stored."""
        self._folder.discard()

    def study(self) -> StudyRecord:
        """The study as it is stored."""
        facts = self.facts()
        if isinstance(facts, TimedFacts) and facts.others is None:
            facts = replace(facts, others=self._others.seen())
        return record_in(self._folder, facts, judge(facts, {}))

    def store(self) -> StudyRecord:
        """Store what is known so far. Raises CaseFailed where it cannot be written."""
        study = self.study()
        self._folder.write(study)
        return study


def record_in(
    folder: StudyFolder,
    facts: StudyFacts,
    findings: Findings | None,
    runs: Sequence[str] = (),
    own_runs: Sequence[str] = (),
) -> StudyRecord:
    """A study of any kind as it is stored in its folder, by today's rules."""
    return StudyRecord(
        schema=SCHEMA,
        rules_version=RULES_VERSION,
        study_id=folder.study_id,
        kind=kind_of(facts),
        started_at=folder.started_at,
        facts=facts,
        findings=findings,
        runs=tuple(runs),
        own_runs=tuple(own_runs),
    )


def told(say: Say, where: str) -> Callable[[Message], None]:
    """A handler of a measuring process's messages that says where it is."""

    def message(message: Message) -> None:
        if isinstance(message, StepsDone | Phase):
            say(f"{where}: {message.text}", False)

    return message

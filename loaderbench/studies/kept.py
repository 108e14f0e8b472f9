"""A study that has no runs: its facts are kept and judged whenever something is finished."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.analysis.studies import judge
from loaderbench.recording.facts import SCHEMA
from loaderbench.recording.progress import Message, Phase, StepsDone
from loaderbench.recording.store import LOG_FILE, StudyFolder
from loaderbench.recording.studies import StudyFacts, StudyKind, StudyRecord

Say = Callable[[str, bool], None]
"""Called with (a line, whether it stays); a line that does not stay is replaced by the next."""


class KeptStudy(ABC):
    """A study of one model. What is finished is kept and stored, however `run` ends."""

    def __init__(self, kind: StudyKind, folder: StudyFolder) -> None:
        self._kind, self._folder = kind, folder

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
        return StudyRecord(
            schema=SCHEMA,
            rules_version=RULES_VERSION,
            study_id=self._folder.study_id,
            kind=self._kind,
            started_at=self._folder.started_at,
            facts=facts,
            findings=judge(facts, {}),
        )

    def store(self) -> StudyRecord:
        """Store what is known so far. Raises CaseFailed where it cannot be written."""
        study = self.study()
        self._folder.write(study)
        return study


def told(say: Say, where: str) -> Callable[[Message], None]:
    """A handler of a measuring process's messages that says where it is."""

    def message(message: Message) -> None:
        if isinstance(message, StepsDone | Phase):
            say(f"{where}: {message.text}", False)

    return message

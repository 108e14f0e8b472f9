"""How a kind of study looks: printed, in the list, in a report, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from loaderbench import plain
from loaderbench.plain import JsonObject
from loaderbench.recording.kinds import KINDS, part
from loaderbench.recording.record import RunRecord
from loaderbench.reporting.tables import Page

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F")
R = TypeVar("R")


class Shown(Generic[F, R]):
    """Of facts F and findings R. A kind of study overrides what differs; the registry names its class."""

    id_key = "study_id"
    """Key of its id in `--json`."""
    id_leads = False
    """Whether it stands before all else there."""
    is_paged = False
    """Whether a report gives it a page of its own (`page`)."""

    def about(self, facts: F) -> str:
        """What the study is about, in a few words."""
        raise NotImplementedError

    def interrupted(self, facts: F) -> bool:
        """Whether a study without runs did not come to its end. A study of runs can be continued, and its runs tell."""
        return False

    def sentence(self, found: R) -> str:
        """Its answer in a line of the list."""
        return self.page(found, "", drawn=False).sentence

    def page(self, found: R, name: str, *, drawn: bool) -> Page:
        """Its page in a report. `name`: prefix of its figures' names; `drawn`: whether it has any."""
        raise NotImplementedError

    def print(self, facts: F, found: R, console: Console, runs: Sequence[RunRecord], *, whole: bool) -> None:
        """Print it as its command does. `runs`: those of a sweep; `whole`: with all their caveats in words."""
        self.print_found(found, console)

    def print_found(self, found: R, console: Console) -> None:
        """Print findings that say all by themselves: all that most kinds override of `print`."""
        raise NotImplementedError

    def answer(self, found: R) -> list[str] | None:
        """The lines of its answer, which lead its JSON; None: it has none."""
        return None

    def as_json(self, facts: F, found: R) -> JsonObject:
        """What `--json` gives, but for the study's id."""
        value, answer = plain.to_json(found), self.answer(found)
        assert isinstance(value, dict)
        return value if answer is None else {"answer": [*answer], **value}


@cache
def shown_as(kind: str) -> Shown[Any, Any]:
    """How a kind of the registry looks."""
    made: Shown[Any, Any] = part(KINDS[kind].shown_at)()
    return made

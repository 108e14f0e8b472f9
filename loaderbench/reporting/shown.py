"""How a kind of study looks: printed, in the list, in a report, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Generic, TypeVar

from loaderbench import plain
from loaderbench.plain import JsonObject
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.kinds import KINDS, part
from loaderbench.recording.record import RunRecord
from loaderbench.reporting.result import Result

F = TypeVar("F")
R = TypeVar("R")


class Shown(Generic[F, R]):
    """Of facts F and findings R. A kind of study overrides what differs; the registry names its class."""

    id_key = "study_id"
    """Key of its id in `--json`."""
    id_leads = False
    """Whether it stands before all else there."""
    is_paged = True
    """Whether a report gives it a part of its own, which its runs belong to."""

    is_priced = False
    """Whether `--price` says what its runs cost."""

    def about(self, facts: F) -> str:
        """What the study is about, in a few words: of a model's step the model and its mode."""
        step: Any = getattr(facts, "step", facts)
        model = step.model.rpartition(".")[2] if ":" in step.model else step.model  # of a.b.models:make the end tells
        return f"{model}, {step.mode}"

    def interrupted(self, facts: F) -> bool:
        """Whether a study without runs did not come to its end. A study of runs can be continued, and its runs tell."""
        return bool(getattr(facts, "interrupted", False))

    def result(self, facts: F, found: R) -> Result:
        """What every form of output shows of it."""
        raise NotImplementedError

    def with_runs(self, facts: F, found: R, runs: Sequence[RunRecord]) -> Result:
        """The same from the records of its runs too, for a kind that shows them."""
        return self.result(facts, found)

    def sentence(self, facts: F, found: R) -> str:
        """Its answer in a line of the list."""
        return self.result(facts, found).headline

    def as_json(self, facts: F, found: R) -> JsonObject:
        """What `--json` gives, but for the study's id: its answer, then its figures by name. Caveats have words."""
        caveats = [one.worded() for one in getattr(found, "caveats", ()) if isinstance(one, Caveat)]
        in_words = {"caveats": plain.to_json(caveats)} if caveats else {}
        return {"answer": [*self.result(facts, found).answer], **plain.to_object(found), **in_words}


@cache
def shown_as(kind: str) -> Shown[Any, Any]:
    """How a kind of the registry looks."""
    made: Shown[Any, Any] = part(KINDS[kind].shown_at)()
    return made

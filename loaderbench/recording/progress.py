"""Progress messages of a measuring process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loaderbench.cases.arms import Arm
from loaderbench.plain import Json
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import Facts, Segment
from loaderbench.recording.record import Verdict


@dataclass(frozen=True)
class Phase:
    """What the process is doing now, in a few words."""

    text: str


@dataclass(frozen=True)
class Notice:
    """Something that the user must know before it happens: a line that stays on the screen."""

    text: str
    whole_s: float | None = field(default=None, compare=False)
    """How long the run takes by now, where that is what is said."""


@dataclass(frozen=True)
class SoFar:
    """What the windows measured so far say, by the rules that judge the whole run; or, before these can, some signs."""

    verdict: Verdict
    since_start_s: float
    """From the start of the measuring process."""
    signs: str = ""
    """By which signs, in words, it is a rough verdict (running/rough.py); empty: it is by the rules."""


@dataclass(frozen=True)
class Look:
    """What the windows so far say."""

    verdict: Verdict
    is_clear: bool
    """The cause, its kind and its gain are beyond all limits, by this look alone."""
    said: tuple[Json, ...]
    """Cause, kind and order of advice: what must be the same at the next look."""
    telling: tuple[Arm, ...]
    """Arms besides `real` by how much of what is unknown of the largest gain is theirs, the most first."""

    def is_decided(self, before: Look | None) -> bool:
        """Whether two looks, one after the other, are clear and say the same."""
        return self.is_clear and before is not None and before.is_clear and self.said == before.said


@dataclass(frozen=True)
class Measured:
    """Windows that are done: they are kept where the run does not come to its end."""

    segments: tuple[Segment, ...]
    """Those since the message before."""
    facts: Facts | None
    """As far as they are known; None: as the message before says."""
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True)
class SegmentDone:
    """A window was measured."""

    arm: Arm
    round: int
    num_steps: int
    """Warm-up included."""
    num_samples: int
    encoded_bytes: int
    step_s: float | None
    """Mean seconds of a step of the window; None where it holds no complete step."""


@dataclass(frozen=True)
class StepsDone:
    done: int
    total: int | None
    """None: as many as fit into a time."""

    @property
    def text(self) -> str:
        return f"step {self.done}" if self.total is None else f"step {self.done} of {self.total}"


@dataclass(frozen=True)
class EpochDone:
    """One whole epoch was run."""

    num_images: int
    seconds: float
    """From asking for its batches to the end of its last step."""
    resident_before: float | None
    """Fraction of the files' sampled pages that were in memory before it; None where that cannot be seen."""
    since_start_s: float
    """From the start of the process, without what evicting or reading the files before the epochs took."""


@dataclass(frozen=True)
class Alive:
    """A sign of life of one of several ranks."""

    waits_s: float | None
    """Since its last step; None outside a window."""
    longest_s: float
    """Longest step so far."""


Message = Alive | Phase | Notice | SoFar | Measured | SegmentDone | StepsDone | EpochDone
Report = Callable[[Message], None]

"""Who else used the processors while a study measured."""

from __future__ import annotations

from dataclasses import dataclass, field

NOTED = 0.05
"""Of the processors: less is what any machine does in the background."""
DISTURBED = 0.25
"""Of the processors, from which on times are those of a shared machine."""


@dataclass(frozen=True)
class OtherPrograms:
    """Means over the study."""

    cpus: float
    """That other programs used."""
    num_cpus: int
    """That the study may use."""
    seconds: float
    stolen_fraction: float = 0.0
    """Of their time, that the hypervisor gave to other guests."""

    @property
    def fraction(self) -> float:
        """Of the processors, that the study could not have."""
        return self.cpus / max(self.num_cpus, 1) + self.stolen_fraction


@dataclass(frozen=True)
class TimedFacts:
    """The facts of a study that measures times."""

    others: OtherPrograms | None = field(default=None, kw_only=True)
    """None where the kernel does not tell, or it was stored before this was counted."""


def sentence(others: OtherPrograms) -> str | None:
    """What to know about them; None where they used next to nothing."""
    if others.fraction < NOTED:
        return None
    parts = [f"other processes used {others.cpus:.2f} of {others.num_cpus} CPUs"] if others.cpus >= 0.01 else []
    if others.stolen_fraction >= 0.01:
        parts.append(f"the hypervisor took {others.stolen_fraction:.0%} of their time")
    what = f"While this was measured {' and '.join(parts)}"
    if others.fraction < DISTURBED:
        return f"{what}."
    return f"{what}: the times are those of a shared machine. Measure again when it is idle."

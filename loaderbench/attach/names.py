"""Names of functions for threads that are looked at, where they can be had without touching the process."""

from __future__ import annotations

from loaderbench.recording.thread_samples import Place


class Names:
    """Of one job's processes."""

    def __init__(self, pid: int, *, enabled: bool = True) -> None:
        self.problem: str | None = "not asked for" if not enabled else "not supported"

    def of(self, pid: int, thread: int) -> tuple[Place | None, str | None]:
        """(place, part of the training loop); None: unknown."""
        return None, None

    def close(self) -> None:
        """May be called twice."""

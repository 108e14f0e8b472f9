"""Weights & Biases: points go into a run's history, the verdict into its summary, the page into its media."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from loaderbench.trackers.tracker import PREFIX, Library, Point, Summary, Target

PROJECT = "loaderbench"
"""Of a run of our own, where WANDB_PROJECT names none."""
STEP = f"{PREFIX}step"


class Wandb(Library):
    """The library, in the script's process or in ours."""

    def script_run(self) -> Any:
        """Return `wandb.run`."""
        return getattr(sys.modules.get("wandb"), "run", None)

    def logged(self, run: Any) -> WandbRun:
        """Log to the script's run."""
        return WandbRun(run, is_own=False)

    def before_finish(self, run: Any, do: Callable[[], None]) -> None:
        """Call `do` before the script finishes its run, however it does: by finish(), at the end of a `with`, at exit.

        W&B has no public hook for that. Where its own is not there, the run keeps the summary of the last judging.
        """
        try:
            from wandb.sdk.wandb_run import TeardownHook, TeardownStage

            run._teardown_hooks.append(TeardownHook(do, TeardownStage.EARLY))
        except (ImportError, AttributeError, TypeError):
            return

    def target_of(self, name: str) -> Target:
        """None that another process can log to."""
        return Target(name=name)

    def open_run(self, target: Target) -> WandbRun:
        """Open a run of our own. It asks for nothing on a terminal, prints nothing, and is not the script's.

        Raises what wandb.init does, such as UsageError without a login.
        """
        import wandb

        project = os.environ.get("WANDB_PROJECT") or PROJECT
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, program=target.name or None)
        run = wandb.init(project=project, name=target.name or None, reinit="create_new", settings=settings)
        return WandbRun(run, is_own=True)


class WandbRun:
    """A run of W&B.

    Into the script's own, nothing is committed: a point joins the next row that the script logs, so that the script's
    steps keep their numbers. Points that a later one replaced before that are in the table of the summary.
    """

    def __init__(self, run: Any, *, is_own: bool) -> None:
        self._run, self._is_own = run, is_own
        run.define_metric(STEP, hidden=True)
        run.define_metric(f"{PREFIX}*", step_metric=STEP)

    def point(self, point: Point) -> None:
        """Log the figures at one step."""
        values = {f"{PREFIX}{name}": value for name, value in point.values.items()}
        self._run.log({STEP: point.step, **values}, commit=self._is_own)

    def summarize(self, summary: Summary) -> None:
        """Set the run's summary; with a page, log that and a table of all points."""
        import wandb

        self._run.summary.update({f"{PREFIX}{name}": value for name, value in summary.values.items()})
        if summary.page is None:
            return
        media: dict[str, Any] = {f"{PREFIX}report": wandb.Html(summary.page, inject=False)}
        if summary.points and not self._is_own:
            columns = list(dict.fromkeys(name for point in summary.points for name in point.values))
            rows = [[point.step, *(point.values.get(name) for name in columns)] for point in summary.points]
            media[f"{PREFIX}over_steps"] = wandb.Table(columns=["step", *columns], data=rows)
        self._run.log(media, commit=self._is_own)

    def close(self, *, failed: bool) -> None:
        """Finish a run of our own."""
        if self._is_own:
            self._run.finish(exit_code=int(failed))


LIBRARY = Wandb()

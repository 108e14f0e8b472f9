"""MLflow: points are metrics, the verdict is in tags, the page is an artifact."""

from __future__ import annotations

import sys
import time

from loaderbench.trackers.tracker import PREFIX, Library, Point, Summary, Target

PAGE = f"{PREFIX}report.html"
TAG = "loaderbench."
"""Begins the tags that hold words: MLflow's metrics are numbers."""
LONGEST_TAG = 5000
"""Characters of a tag's value: newer versions of MLflow store 8,000 (MAX_TAG_VAL_LENGTH of its validation.py)."""


class Mlflow(Library):
    """The library, in a process of ours."""

    def target_of(self, name: str) -> Target:
        """The active run of the calling thread: MLflow knows one for each thread."""
        mlflow = sys.modules.get("mlflow")
        if mlflow is None:
            return Target(name=name)
        active = mlflow.active_run()
        return Target(None if active is None else active.info.run_id, mlflow.get_tracking_uri(), name)

    def open_run(self, target: Target) -> MlflowRun:
        """Open the script's run, or a new one in the experiment of MLFLOW_EXPERIMENT_NAME or _ID.

        Raises what MLflow does, such as MlflowException for an experiment that does not exist.
        """
        import mlflow

        if target.place is not None:
            mlflow.set_tracking_uri(target.place)
        if target.run is not None:
            mlflow.MlflowClient().get_run(target.run)  # whether it can be reached
            return MlflowRun(target.run, is_own=False)
        source = {"mlflow.source.name": target.name} if target.name else None  # not this process
        run = mlflow.start_run(run_name=target.name or None, tags=source, log_system_metrics=False)
        return MlflowRun(run.info.run_id, is_own=True)


class MlflowRun:
    """A run of MLflow, by its id: it need not be the active one, and may have ended."""

    def __init__(self, run_id: str, *, is_own: bool) -> None:
        from mlflow import MlflowClient

        self._run_id, self._is_own, self._client = run_id, is_own, MlflowClient()

    def point(self, point: Point) -> None:
        """Log the figures at one step."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [Metric(f"{PREFIX}{name}", value, now_ms, point.step) for name, value in point.values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def summarize(self, summary: Summary) -> None:
        """Set tags and metrics; the page is an artifact."""
        for name, value in summary.values.items():
            if isinstance(value, str):
                self._client.set_tag(self._run_id, f"{TAG}{name}", value[:LONGEST_TAG])
            else:
                self._client.log_metric(self._run_id, f"{PREFIX}{name}", value)
        if summary.page is not None:
            self._client.log_text(self._run_id, summary.page, PAGE)

    def close(self, *, failed: bool) -> None:
        """End a run of our own."""
        if self._is_own:
            import mlflow

            mlflow.end_run("FAILED" if failed else "FINISHED")


LIBRARY = Mlflow()

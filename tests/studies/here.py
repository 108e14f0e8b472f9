"""A measuring process that is the test's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loaderbench.errors import LoaderbenchError
from loaderbench.recording.facts import Failure
from loaderbench.running.jobs.table import Job
from loaderbench.running.supervisor import JobFailed


class Here:
    """A measuring process that is this one: jobs run at once, and may be made to fail."""

    failing: Callable[[Any], Failure | None] = staticmethod(lambda request: None)

    def __init__(self, log: Path) -> None:
        pass

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def child(self, decoder: str | None) -> Here:
        return self

    def end(self) -> None:
        pass

    def ask(self, job: Job[Any, Any], request: Any, on_message: Callable[[Any], None]) -> Any:
        if (failure := type(self).failing(request)) is not None:
            raise JobFailed(failure)
        try:
            return getattr(importlib.import_module(job.module), job.function)(request, on_message)
        except LoaderbenchError as error:
            raise JobFailed(Failure(type(error).__name__, str(error))) from error

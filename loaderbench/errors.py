"""All errors that loaderbench raises on purpose, and the exit code each one ends the program with."""

from __future__ import annotations


class LoaderbenchError(Exception):
    """Base of every error that loaderbench raises on purpose."""

    exit_code = 1


class ConfigError(LoaderbenchError):
    """The request is wrong: bad flag, missing path, contradiction. Exit code 2."""

    exit_code = 2


class MissingExtra(ConfigError):
    """What was asked for needs packages that an extra brings; the message is the command that installs them."""


class BatchTooSmall(ConfigError):
    """The model trains only on batches of two images or more: batch norm needs two values a channel."""


class UnavailableError(LoaderbenchError):
    """The machine lacks what the case needs. The case is skipped; the message says how to enable it."""


class CaseFailed(LoaderbenchError):
    """The case started but failed. Other cases continue. Exit code 1."""


class OutOfMemory(CaseFailed):
    """The request does not fit in memory. This is a result: loaderbench never continues with less."""


class DoesNotFit(OutOfMemory):
    """Not even with everything that can go to the host on the host."""


class PlanMismatch(CaseFailed):
    """A step saves or uses other tensors than the trace that its offloading was planned by."""


KINDS: dict[str, type[LoaderbenchError]] = {
    kind.__name__: kind
    for kind in (
        ConfigError, MissingExtra, BatchTooSmall, UnavailableError, CaseFailed, OutOfMemory, DoesNotFit, PlanMismatch,
    )
}  # fmt: skip
"""Name → class: errors cross a pipe, and are stored, by their names."""

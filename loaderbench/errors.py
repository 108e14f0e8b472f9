"""The errors a user can meet. Each carries one line that says what to change."""


class LoaderbenchError(Exception):
    """Base of every error that loaderbench raises on purpose."""

    exit_code = 1


class ConfigError(LoaderbenchError):
    """The request is wrong: bad flag, missing path, contradiction. Exit code 2."""

    exit_code = 2


class UnavailableError(LoaderbenchError):
    """The machine lacks what the case needs. The case is skipped; the message says how to enable it."""


class CaseFailed(LoaderbenchError):
    """The case was started and could not be finished. Other cases go on. Exit code 1."""

"""Which of the self-test's beds this machine can make, for `doctor`."""

from __future__ import annotations

import importlib

from loaderbench.doctor import MISSING, Finding, from_error, ok
from loaderbench.errors import UnavailableError

BEDS = ("throttled_loop", "slow_fuse")


def examine_beds() -> list[Finding]:
    """One finding for each bed."""
    return [_bed(name) for name in BEDS]


def _bed(name: str) -> Finding:
    title = f"test bed {name}"
    try:
        importlib.import_module(f"loaderbench.selftest.{name}").check_available()
    except ImportError as error:
        step = "install loaderbench with the extra `beds`"
        return Finding(title, MISSING, f"its module does not load ({error})", step)
    except UnavailableError as error:
        return from_error(title, str(error), "run `loaderbench selftest` as root on Debian 12 or newer")
    return ok(title, "storage of known speed for `loaderbench selftest`")

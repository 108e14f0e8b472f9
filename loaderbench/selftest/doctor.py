"""Which test beds this machine can make, for `doctor`."""

from __future__ import annotations

import importlib

from loaderbench.doctor import MISSING, Finding, from_error, ok
from loaderbench.errors import UnavailableError

SELFTEST = (
    "storage of known speed for `loaderbench selftest`",
    "run `loaderbench selftest` as root on Debian 12 or newer",
)
NFS = ("an NFS server of known speed for `make test-beds`", "run `make test-beds` as root on Debian 12 or newer")
BEDS = {
    "throttled_loop": ("throttled_loop", *SELFTEST),
    "slow_fuse": ("slow_fuse", *SELFTEST),
    "uml_nfs": ("uml", *NFS),
}
"""Of each bed: the module that can tell, what it is for, and what enables it where the reason names no step."""


def examine_beds() -> list[Finding]:
    """One finding for each bed."""
    return [_bed(name, *about) for name, about in BEDS.items()]


def _bed(name: str, module: str, purpose: str, step: str) -> Finding:
    title = f"test bed {name}"
    try:
        importlib.import_module(f"loaderbench.selftest.{module}").check_available()
    except ImportError as error:
        extra = "install loaderbench with the extra `beds`"
        return Finding(title, MISSING, f"its module does not load ({error})", extra)
    except UnavailableError as error:
        return from_error(title, str(error), step)
    return ok(title, purpose)

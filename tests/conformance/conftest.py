"""What earlier tests left to this process is reaped before a test looks at its children."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil
import pytest

from tests.warm import own_children


@pytest.fixture(autouse=True)
def _orphans_are_reaped() -> None:
    """A measuring process makes its parent, here pytest, the reaper of orphans (PR_SET_CHILD_SUBREAPER): what a test
    kills together with its parent then stays as a zombie."""
    for child in own_children():
        with suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)

"""Whether freed memory is faulted in again, by the kernel's own count of page faults."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from loaderbench.running.heap import VARIABLES

DECODE_AND_FREE = """
import ctypes, os, resource, sys
from loaderbench.running.heap import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def images(times):
    for _ in range(times):
        blocks = [libc.malloc(900_000) for _ in range(3)]
        for block in blocks:
            libc.memset(block, 1, 900_000)
        for block in reversed(blocks):
            libc.free(block)

if sys.argv[1] == "kept":
    keep_freed_memory()
images(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
if pid := os.fork():
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.exit(status)
images(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
images(100)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 100, flush=True)
os._exit(0)
"""


def faults_an_image(how: str, **variables: str) -> float:
    """Page faults of a forked worker for each three blocks of 900 kB that it takes, fills and frees."""
    done = subprocess.run(
        [sys.executable, "-c", DECODE_AND_FREE, how],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


@pytest.mark.skipif(
    not hasattr(os, "confstr") or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""), reason="glibc"
)
def test_a_worker_does_not_fault_freed_memory_in_again() -> None:
    # given glibc's own settings, each of the 660 pages is faulted in again for each image
    assert faults_an_image("default") > 300
    # when the measuring process has asked for its memory to be kept, then its forked worker has none
    assert faults_an_image("kept") < 5


def test_what_the_user_has_set_stays() -> None:
    # given a user who lets glibc return everything
    given = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    assert faults_an_image("kept", **given) > 300
    assert faults_an_image("kept", GLIBC_TUNABLES="glibc.malloc.trim_threshold=0") > 300


def test_processes_that_are_started_have_it_by_their_environment() -> None:
    code = "import os; from loaderbench.running.heap import keep_freed_memory as k; k(); print(dict(os.environ))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = eval(done.stdout)
    assert {name: found.get(name) for name in VARIABLES} == {name: str(value) for name, value in VARIABLES.items()}

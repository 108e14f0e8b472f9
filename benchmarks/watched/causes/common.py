"""What the scripts of this folder share: how long they run, and what they print. `FIX=1` takes a script's cause out."""

import hashlib
import json
import os
import time
from pathlib import Path

FIXED = bool(os.environ.get("FIX"))
SECONDS = float(os.environ.get("SECONDS", "10"))
WARM = 8


class Stopwatch:
    """Mean seconds a step, all pauses included, and what the steps saw."""

    def __init__(self) -> None:
        self.num, self.begun, self.seen = 0, time.perf_counter(), hashlib.sha256()

    def step(self, *values: float) -> bool:
        """A step has ended. Whether the script goes on."""
        self.num += 1
        if self.num <= WARM + 32:  # the same in any run
            self.seen.update(repr([round(float(one), 6) for one in values]).encode())
        if self.num == WARM:
            self.begun = time.perf_counter()
            trains()
        return self.num < WARM + 40 or time.perf_counter() - self.begun < SECONDS

    def say(self) -> None:
        took = (time.perf_counter() - self.begun) / (self.num - WARM)
        print("TIMED " + json.dumps({"seconds_per_step": took, "losses_and_order": self.seen.hexdigest()}))


def burn(seconds: float) -> None:
    """So much processor time of Python code."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def trains() -> None:
    """Tell who waits for it, by a file."""
    if os.environ.get("BEGUN"):
        Path(os.environ["BEGUN"]).touch()


def whole() -> float:
    """When the script began, of one whose epochs are timed with their starts."""
    trains()
    return time.perf_counter()


def say_whole(begun: float, num: int) -> None:
    """The time of the whole script, by its steps."""
    took = (time.perf_counter() - begun) / num
    print("TIMED " + json.dumps({"seconds_per_step": took, "losses_and_order": str(num)}))

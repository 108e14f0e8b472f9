"""Whether two environments are one machine. Two notions, for two questions.

`same_hardware`: processors and GPUs, whatever is installed: how good predictions were on a machine is asked for years,
and packages change meanwhile. `same_setup`: the packages and Python too, where one run is to stand for another.
"""

from __future__ import annotations

from operator import attrgetter

from loaderbench.recording.facts import Environment

HARDWARE = attrgetter("cpu_model", "cpus_usable", "gpus")
"""A GPU's driver is part of `gpus`."""
SOFTWARE = attrgetter("packages", "python")


def same_hardware(there: Environment | None, here: Environment) -> bool:
    """Whether both have the same processors and GPUs; packages and Python may differ. None: an unknown machine."""
    return there is not None and bool(HARDWARE(there) == HARDWARE(here))


def same_setup(there: Environment | None, here: Environment) -> bool:
    """Whether both have the same hardware, packages and Python. None: an unknown machine."""
    return same_hardware(there, here) and bool(SOFTWARE(there) == SOFTWARE(here))

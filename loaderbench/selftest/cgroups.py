"""The control groups that limit what a test bed's processes may have: which hierarchy can, and a group of one's own.

Formats: cgroups(7), proc(5); Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst of the Linux kernel.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from loaderbench.errors import UnavailableError
from loaderbench.selftest.base import Resources


@dataclass(frozen=True)
class Controller:
    """A mounted hierarchy that has a controller."""

    version: int
    root: str
    name: str
    """Of the controller: in version 1 also an option of its mount."""


def find_controller(v1: str, v2: str) -> Controller | None:
    """The first mounted hierarchy with the controller, called `v1` in the one version and `v2` in the other."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        root, kind, options = left.split()[4], right.split()[0], right.split()[-1].split(",")
        if kind == "cgroup" and v1 in options:
            return Controller(1, root, v1)
        if kind == "cgroup2":
            controllers = Path(root, "cgroup.controllers")
            if controllers.exists() and v2 in controllers.read_text().split():
                return Controller(2, root, v2)
    return None


def make_group(controller: Controller, resources: Resources) -> str:
    """A group for one bed, noted with it. Its processes move to this process's group when the bed ends.

    Raises:
        UnavailableError: groups cannot be made here.
    """
    group = os.path.join(controller.root, f"loaderbench-{os.path.basename(resources.folder)}")
    resources.cgroups.append((group, _own_group(controller)))
    resources.save()
    try:
        if controller.version == 2:
            Path(controller.root, "cgroup.subtree_control").write_text(f"+{controller.name}")
        Path(group).mkdir()
    except OSError as error:
        raise UnavailableError(
            f"{resources.bed} cannot make a cgroup with the {controller.name} controller in {controller.root}: "
            f"{error.strerror} (inside a container, give it a writable cgroup)"
        ) from error
    return group


def _own_group(controller: Controller) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if (controller.version == 1 and controller.name in names.split(",")) or (controller.version == 2 and not names):
            group = controller.root + path.rstrip("/")
            return group if Path(group).is_dir() else controller.root
    return controller.root


def command_prefix(group: str) -> list[str]:
    """Put before a command, this starts the command inside the group."""
    return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', os.path.join(group, "cgroup.procs")]


def enter(group: str, pid: int) -> None:
    """Put a process into the group; processes that it starts later are in it too."""
    Path(group, "cgroup.procs").write_text(str(pid))

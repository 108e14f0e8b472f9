"""The machines of a report's runs in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from loaderbench.recording.facts import Environment
from loaderbench.reporting import format as fmt

T = TypeVar("T")


def environment_rows(environments: Sequence[Environment | None]) -> list[tuple[str, list[str]]]:
    """(what, its value, or its values where the runs differ), for all that is known."""
    known = [one for one in environments if one is not None]
    rows = []
    for title, of in ROWS.items():
        values = list(dict.fromkeys(text for one in known if (text := of(one))))
        if values:
            rows.append((title, values))
    return rows


def _listed(values: Mapping[str, str], joint: str) -> str:
    return ", ".join(f"{name}{joint}{value}" for name, value in sorted(values.items()))


def _processors(one: Environment) -> str:
    total = "" if one.cpus_online in (None, one.cpus_usable) else f" of {one.cpus_online}"
    reason = f" ({one.cpu_limit_reason})" if one.cpu_limit_reason else ""
    return f"{one.cpus_usable}{total} usable{reason}"


def _memory(one: Environment) -> str:
    by = "" if one.memory_limit_source == "MemTotal" else f", limited by {one.memory_limit_source}"
    return "" if one.memory_limit_bytes is None else f"{fmt.size(one.memory_limit_bytes)}{by}"


def _gpus(one: Environment) -> str:
    found = [
        f"{gpu.name}, {fmt.size(gpu.memory_total_bytes)}, driver {gpu.driver} (up to CUDA {gpu.cuda_driver})"
        for gpu in one.gpus
    ]
    return "; ".join(found) or f"none ({one.gpus_reason or 'no reason was recorded'})"


def _size(value: int | None) -> str:
    return "" if value is None else fmt.size(value)


ROWS: Mapping[str, Callable[[Environment], str]] = {
    "Processor": lambda one: " ".join(filter(None, (one.cpu_model, f"({one.architecture})"))),
    "Processors": _processors,
    "Frequency governor": lambda one: one.cpu_governor or "",
    "Memory": _memory,
    "GPU": _gpus,
    "Operating system": lambda one: f"Linux {one.kernel}",
    "Container": lambda one: one.container or "",
    "Shared memory (/dev/shm)": lambda one: _size(one.shm_size_bytes),
    "Memory that may be locked": lambda one: _size(one.memlock_limit_bytes),
    "Files that may be open": lambda one: "" if one.open_files_limit is None else f"{one.open_files_limit:,}",
    "Huge pages": lambda one: one.transparent_huge_pages or "",
    "Python": lambda one: one.python,
    "Packages": lambda one: _listed(one.packages, " "),
    "Environment variables": lambda one: _listed(one.variables, "="),
}
"""What a row tells → its text; empty where it is not known."""

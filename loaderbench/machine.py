"""Read what this machine offers: usable CPUs, memory, limits, and the facts stored with each result. Stdlib only."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import re
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import loaderbench
from loaderbench.errors import UnavailableError

if TYPE_CHECKING:
    from loaderbench.recording.facts import Environment, Gpu

PACKAGES = re.compile(
    r"torch|torchvision|nvidia-dali-cuda\d+|pillow|pillow-simd|simplejpeg|opencv-python(-headless)?|numpy|nvidia-ml-py",
    re.IGNORECASE,
)
"""Distributions whose version may change a number."""

ENVIRONMENT_VARIABLES = re.compile(
    r"(OMP|MKL|OPENBLAS|GOMP|KMP)_\w+|MALLOC_\w+|CUDA_\w+|NVIDIA_VISIBLE_DEVICES|LD_PRELOAD|PYTHONMALLOC"
    r"|PYTORCH_\w*ALLOC_CONF|TORCH_\w*(ALLOW|CUDNN|NUM)\w*|CUBLAS_WORKSPACE_CONFIG|DALI_\w+"
)
"""Variables that change results. Stored without folders and device serial numbers."""

UNLIMITED_BYTES = 1 << 60
"""cgroup v1 writes a number near 2^63 where there is no limit."""


def _text(path: Path) -> str | None:
    """A small kernel file's content; None where it is absent or may not be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _cgroup_folders(controller: str, root: Path, pid: int | str = "self") -> Iterator[Path]:
    """The folders whose limits hold for a process, v2 first, from its own cgroup up to the mount's root.

    Formats: cgroups(7), /proc/PID/cgroup. In a container the file may name a path of the host that is
    not visible inside; what is mounted at the root is then the container's own cgroup.
    """
    # One hierarchy may have several names there: `cpu` is mostly a link to `cpu,cpuacct`.
    v1_mounts = {
        entry.resolve(): entry.name
        for entry in sorted((root / "sys/fs/cgroup").glob("*"))
        if controller in entry.name.split(",") and entry.is_dir()
    }
    for line in (_text(root / f"proc/{pid}/cgroup") or "").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            mounts = ["", "unified"]
        elif controller in controllers.split(","):
            mounts = [*v1_mounts.values()]
        else:
            continue
        for mount in mounts:
            top = root / "sys/fs/cgroup" / mount
            folder = top / path.lstrip("/")
            while True:
                yield folder
                if folder == top:
                    break
                folder = folder.parent


class Quota(NamedTuple):
    """A cgroup's CPU quota."""

    cpus: float
    source: Path
    """The file that states the quota."""
    period_s: float
    """Seconds between renewals of the quota; 0.1 s by default."""


def cpu_quota(root: Path = Path("/"), pid: int | str = "self") -> Quota | None:
    """The tightest cgroup quota that holds for a process; None without one."""
    quotas = [found for folder in _cgroup_folders("cpu", root, pid) if (found := _quota_in(folder)) is not None]
    return min(quotas, default=None)


def _quota_in(folder: Path) -> Quota | None:
    """Read one cgroup's own quota from cgroup v2 or v1, which give both times in microseconds."""
    v2 = (_text(folder / "cpu.max") or "").split()
    if len(v2) == 2 and v2[0] != "max":
        return Quota(int(v2[0]) / int(v2[1]), folder / "cpu.max", int(v2[1]) / 1e6)
    quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    if quota and period and int(quota) > 0:
        return Quota(int(quota) / int(period), folder / "cpu.cfs_quota_us", int(period) / 1e6)
    return None


def quota_counters(root: Path = Path("/"), pid: int | str = "self") -> list[Path]:
    """The `cpu.stat` of each cgroup whose CPU quota holds for a process; empty without a quota."""
    return [
        folder / "cpu.stat"
        for folder in _cgroup_folders("cpu", root, pid)
        if _quota_in(folder) is not None and (folder / "cpu.stat").exists()
    ]


def _cpu_limit(root: Path) -> tuple[int, str | None]:
    online = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0))
    reason = f"the affinity mask allows {usable} of {online} CPUs (taskset, cpuset)" if usable < online else None
    quota = cpu_quota(root)
    if quota is not None and math.ceil(quota.cpus) < usable:
        usable = max(1, math.ceil(quota.cpus))
        reason = f"a cgroup quota of {quota.cpus:g} CPUs ({quota.source})"
    return usable, reason


def machine_cpus(root: Path = Path("/")) -> int:
    """CPUs that this process could be allowed: those of its container's cpuset, else all that are online."""
    online = os.cpu_count() or 1
    for folder in _cgroup_folders("cpuset", root):
        text = _text(folder / "cpuset.cpus.effective")
        if text:
            ends = [part.split("-") for part in text.strip().split(",")]
            return min(online, sum(int(one[-1]) - int(one[0]) + 1 for one in ends))
    return online


def usable_cpus(root: Path = Path("/")) -> int:
    """CPUs this process may use: the affinity mask and the cgroup quota, a broken quota rounded up.

    `root` is where /proc and /sys are looked for.
    """
    return _cpu_limit(root)[0]


def cpu_limit_reason(root: Path = Path("/")) -> str | None:
    """Explain why this process cannot use all CPUs; None if it can."""
    return _cpu_limit(root)[1]


def memory_limit_bytes(root: Path = Path("/")) -> tuple[int | None, str]:
    """(bytes, source): the tightest of the machine's memory and the cgroup limits; None where /proc is not there."""
    limits = []
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            limits.append((int(line.split()[1]) * 1024, "MemTotal"))
    for folder in _cgroup_folders("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _text(folder / name)
            if text is not None and text.isdigit() and int(text) < UNLIMITED_BYTES:
                limits.append((int(text), str(folder / name)))
    return min(limits, default=(None, "no /proc/meminfo"))


def available_memory_bytes(root: Path = Path("/")) -> tuple[int | None, str]:
    """(bytes, source): what a program can take now: the kernel's MemAvailable (proc(5)), or what a cgroup's limit
    leaves, if that is less; None where /proc is not there. Pages of files count as free in a cgroup too: the kernel
    takes them back first (`active_file` and `inactive_file` of memory.stat: the kernel's cgroup documents)."""
    found = []
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            found.append((int(line.split()[1]) * 1024, "MemAvailable"))
    for folder in _cgroup_folders("memory", root):
        for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, used = _text(folder / limit), _text(folder / usage)
            if most is not None and most.isdigit() and int(most) < UNLIMITED_BYTES and used and used.isdigit():
                left = max(int(most) - int(used) + _file_pages(folder), 0)
                found.append((min(left, int(most)), f"the cgroup's {limit} less {usage}, without pages of files"))
    return min(found, default=(None, "no /proc/meminfo"))


def _file_pages(folder: Path) -> int:
    """Read the bytes of files in a cgroup's usage, children included; 0 if the kernel does not report it."""
    told = dict(line.split() for line in (_text(folder / "memory.stat") or "").splitlines() if len(line.split()) == 2)
    prefix = "total_" if "total_active_file" in told else ""  # version 1 gives the cgroup's own without it
    return sum(int(told.get(f"{prefix}{name}", 0)) for name in ("active_file", "inactive_file"))


def oom_kills(root: Path = Path("/")) -> int | None:
    """Count the processes of this cgroup that the kernel's OOM killer has ended so far; None if the kernel does not
    report it (memory.events, memory.oom_control: the kernel's cgroup documents)."""
    for folder in _cgroup_folders("memory", root):
        for name in ("memory.events", "memory.oom_control"):
            for line in (_text(folder / name) or "").splitlines():
                key, _, number = line.partition(" ")
                if key == "oom_kill" and number.isdigit():
                    return int(number)
    return None


def shm_bytes(path: str = "/dev/shm") -> tuple[int, int] | None:
    """(size, free) of the shared memory that worker processes pass batches through; None where there is none."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def open_files_limit() -> int | None:
    """Return the limit of open file descriptors (RLIMIT_NOFILE, soft); None is unlimited."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def cpu_model(root: Path = Path("/")) -> str | None:
    """`model name` of /proc/cpuinfo, on ARM the implementer and part numbers; None where it has neither."""
    facts: dict[str, str] = {}
    for line in (_text(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    if "model name" in facts:
        return facts["model name"]
    if "CPU part" in facts:
        return f"{platform.machine()} implementer {facts.get('CPU implementer')} part {facts['CPU part']}"
    return None


BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})
"""Of /proc/cpuinfo: instructions that multiply bf16 numbers, of x86 and of Arm (arch/x86/include/asm/cpufeatures.h,
Documentation/arch/arm64/elf_hwcaps.rst of the Linux kernel)."""


def has_bf16_instructions(cpuinfo: str = "/proc/cpuinfo") -> bool | None:
    """Whether the processor multiplies bf16 numbers itself; None where the kernel does not tell."""
    try:
        lines = Path(cpuinfo).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), None)
    return None if flags is None else not BF16_FLAGS.isdisjoint(flags.partition(":")[2].split())


def largest_cache_bytes(root: Path = Path("/")) -> int | None:
    """The largest cache of a processor (Linux, Documentation/ABI/testing/sysfs-devices-system-cpu: `size`, in KiB as
    `107520K`); None if the kernel does not report it."""
    texts = map(_text, root.glob("sys/devices/system/cpu/cpu[0-9]*/cache/index*/size"))
    sizes = [int(text[:-1]) << 10 for text in texts if text and text[-1] == "K" and text[:-1].isdecimal()]
    return max(sizes, default=None)


def container_hint(root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> str | None:
    """The kind of container this seems to be (`docker`, `podman`, `kubernetes`, …); None without a sign of one."""
    environ = os.environ if environ is None else environ
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    if environ.get("container"):
        return environ["container"]
    groups = _text(root / "proc/1/cgroup") or ""
    return next((word for word in ("kubepods", "docker", "lxc") if word in groups), None)


def package_versions() -> dict[str, str]:
    """Installed versions of PACKAGES, found without importing any; and loaderbench's own."""
    versions = {"loaderbench": loaderbench.__version__}
    for distribution in importlib.metadata.distributions():
        # The folder's name gives name and version without reading the metadata of every package.
        path = getattr(distribution, "_path", None)
        stem = Path(path).name.partition("-")[0].replace("_", "-") if path is not None else distribution.name
        if PACKAGES.fullmatch(stem):
            versions.setdefault(distribution.name.lower(), distribution.version)
    return dict(sorted(versions.items()))


def memlock_limit_bytes() -> int | None:
    """Bytes this process may lock in memory; None is unlimited (RLIMIT_MEMLOCK, or CAP_IPC_LOCK)."""
    from loaderbench.images import cache_state  # late: few ask for it

    return cache_state.memlock_limit_bytes()


def _gpus() -> tuple[list[Gpu], str | None]:
    """(GPUs, why they are not known)."""
    from loaderbench.samplers.nvml import gpu_facts  # late: it needs numpy

    try:
        return gpu_facts(), None
    except UnavailableError as error:
        return [], str(error)


def _transparent_huge_pages(root: Path) -> str | None:
    text = _text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text or "")
    return chosen[1] if chosen else None


def _relevant_variables(environ: Mapping[str, str]) -> dict[str, str]:
    def shortened(value: str) -> str:
        return re.sub(r"\b(GPU|MIG)-[0-9a-fA-F][\w-]*", r"\1-…", re.sub(r"[^\s:=,]*/", "", value))

    return {name: shortened(value) for name, value in sorted(environ.items()) if ENVIRONMENT_VARIABLES.fullmatch(name)}


def environment(root: Path = Path("/")) -> Environment:
    """Collect the facts stored with each run; None for those that this machine does not report.

    They include no host or user name, no serial number and no folder of the user.
    """
    from loaderbench.recording.facts import Environment  # late: it needs numpy

    usable, cpu_reason = _cpu_limit(root)
    memory, memory_source = memory_limit_bytes(root)
    gpus, gpus_reason = _gpus()
    shm = shm_bytes()
    return Environment(
        python=platform.python_version(),
        kernel=platform.release(),
        architecture=platform.machine(),
        cpu_model=cpu_model(root),
        cpus_online=os.cpu_count(),
        cpus_usable=usable,
        cpu_limit_reason=cpu_reason,
        cpu_governor=_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_limit_bytes=memory,
        memory_limit_source=memory_source,
        transparent_huge_pages=_transparent_huge_pages(root),
        shm_size_bytes=shm[0] if shm else None,
        open_files_limit=open_files_limit(),
        memlock_limit_bytes=memlock_limit_bytes(),
        container=container_hint(root),
        packages=package_versions(),
        gpus=tuple(gpus),
        gpus_reason=gpus_reason,
        variables=_relevant_variables(os.environ),
    )

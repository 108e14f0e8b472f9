"""Check what this machine can measure, and name the step that enables the rest."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loaderbench import lacking, machine, plugins
from loaderbench.cases.traits import Needs
from loaderbench.devices import profile
from loaderbench.devices.select import has_intel_gpu
from loaderbench.errors import ConfigError, MissingExtra, UnavailableError
from loaderbench.images import cache_state
from loaderbench.images.filesystem import FileSystem, storage_behind
from loaderbench.images.listing import first_image
from loaderbench.samplers.cpu import parse_meminfo, pressure_off_reason
from loaderbench.samplers.nvml import gpu_facts
from loaderbench.samplers.process_io import runqueue_off_reason
from loaderbench.samplers.sources import storage_sampler
from loaderbench.temporary import temporary_folder

OK, DEGRADED, MISSING = "ok", "degraded", "missing"

MEMORY_WANTED_BYTES = 4 << 30
"""torch with its CUDA libraries, one model and a few workers need about this much."""
MEMLOCK_WANTED_BYTES = 1 << 30
"""Below this only a very small data set can be locked in memory for the `ram` arm."""
OPEN_FILES_WANTED = 1024
OPEN_FILES_PER_WORKER = 32
"""Pipes and shared-memory batches of one worker process, with a margin."""
DEFAULT_BATCH_BYTES = 64 * 3 * 224 * 224 * 4
"""One float32 batch of the default run."""
DEFAULT_PREFETCH = 2
PROBE_BYTES = 1 << 20


@dataclass(frozen=True)
class Finding:
    """One thing that a run may want from the machine."""

    name: str
    state: str
    """`ok`, `degraded` (works, with a stated loss) or `missing`."""
    what: str
    """What is there, or what cannot be measured without it."""
    enable: str | None = None
    """The one step that fixes it; None where the state is ok."""


def ok(name: str, what: str) -> Finding:
    return Finding(name, OK, what)


def from_error(name: str, message: str, enable: str, state: str = MISSING) -> Finding:
    """A finding from an error of the form `what is wrong; what to do`; `enable` if the message has no second part."""
    what, _, step = message.partition("; ")
    return Finding(name, state, what, step or enable)


def _size(num_bytes: int | None) -> str:
    return "unlimited" if num_bytes is None else f"{num_bytes / (1 << 30):.1f} GiB"


def _cpus() -> Finding:
    usable, reason = machine.usable_cpus(), machine.cpu_limit_reason()
    if usable == 1:
        return Finding(
            "cpus",
            DEGRADED,
            "one usable CPU: workers and the training step share it, so every loader looks contended",
            "give the machine, container or job at least 2 CPUs",
        )
    if reason is not None and "quota" in reason:
        return Finding(
            "cpus",
            DEGRADED,
            f"{usable} usable CPUs because of {reason}: the kernel stops threads when the quota is used up",
            "raise the CPU limit of the container (docker: --cpus, Kubernetes: resources.limits.cpu)",
        )
    return ok("cpus", f"{usable} usable CPUs" + (f": {reason}" if reason else ""))


def _memory() -> Finding:
    limit, source = machine.memory_limit_bytes()
    try:
        available = parse_meminfo(Path("/proc/meminfo").read_bytes()).get("MemAvailable")
    except OSError as error:
        return Finding("memory", MISSING, f"/proc/meminfo cannot be read ({error.strerror})", "mount /proc")
    if limit is not None and available is not None:
        available = min(limit, available)
    what = f"{_size(limit)} ({source}), {_size(available)} available"
    if available is not None and available < MEMORY_WANTED_BYTES:
        return Finding(
            "memory",
            DEGRADED,
            f"{what}: below {_size(MEMORY_WANTED_BYTES)} the kernel may kill larger models and many workers",
            "end other programs, or raise the memory limit of the container",
        )
    return ok("memory", what)


def _shared_memory() -> Finding:
    size = machine.shm_bytes()
    wanted = machine.usable_cpus() * (DEFAULT_PREFETCH + 1) * DEFAULT_BATCH_BYTES
    wanted_gib = -(-wanted // (1 << 30))
    if size is None:
        return Finding(
            "shared memory",
            MISSING,
            "/dev/shm does not exist: the multiprocess loader cannot pass batches",
            "mount a tmpfs on /dev/shm",
        )
    what = f"/dev/shm has {_size(size[0])}, {_size(size[1])} free"
    if size[1] < wanted:
        return Finding(
            "shared memory",
            DEGRADED,
            f"{what}; the default multiprocess run needs {_size(wanted)}",
            f"start the container with --shm-size={wanted_gib}g, or `mount -o remount,size={wanted_gib}G /dev/shm`",
        )
    return ok("shared memory", what)


def _open_files() -> Finding:
    limit = machine.open_files_limit()
    wanted = OPEN_FILES_WANTED + OPEN_FILES_PER_WORKER * machine.usable_cpus()
    if limit is not None and limit < wanted:
        return Finding(
            "open files",
            DEGRADED,
            f"at most {limit} file descriptors; a worker on every CPU may need {wanted}",
            f"`ulimit -n {wanted}` in the shell that starts loaderbench",
        )
    return ok("open files", f"at most {'unlimited' if limit is None else limit} file descriptors")


def _memlock() -> Finding:
    limit = cache_state.memlock_limit_bytes()
    if limit is not None and limit < MEMLOCK_WANTED_BYTES:
        return Finding(
            "locked memory",
            DEGRADED,
            f"at most {limit:,} bytes may be locked: the `ram` arm uses a copy in /dev/shm instead",
            "`ulimit -l unlimited` (docker: --ulimit memlock=-1), or run with CAP_IPC_LOCK",
        )
    return ok("locked memory", f"may lock {_size(limit)}")


def _page_cache(dataset_path: str | None) -> Finding:
    """Evict one file that is in the page cache, and check that it is gone."""
    name = "page cache"
    if dataset_path is not None:
        path = first_image(dataset_path)
        if path is None:
            return Finding(name, MISSING, f"there is no image below {dataset_path} to try", "name a folder with images")
        return _evict_one(name, path, "the data set's first image")
    with temporary_folder() as folder:
        (folder / "probe").write_bytes(os.urandom(PROBE_BYTES))
        label = f"a file in {tempfile.gettempdir()} (name a data set to try its files)"
        return _evict_one(name, str(folder / "probe"), label)


def _evict_one(name: str, path: str, label: str) -> Finding:
    try:
        with open(path, "rb") as file:
            file.read()
        before = cache_state.residency([path])
        after = cache_state.evict_files([path])
    except OSError as error:
        return Finding(name, MISSING, f"{label} cannot be read ({error.strerror})", "make the data set readable")
    if before.fraction is None or after.fraction is None:
        return Finding(
            name,
            DEGRADED,
            f"residency is unknown ({after.reason or before.reason}): only byte counters can prove a cold run",
            "run as the user who owns the files, or as root",
        )
    if after.fraction > 0:
        return Finding(
            name,
            DEGRADED,
            f"{after.fraction:.0%} of {label} stayed after eviction: cold runs are not possible there",
            "put the data set on a disk, NFS or FUSE mount, not on tmpfs, and close programs that map its files",
        )
    return ok(name, f"{label} can be evicted; residency by {after.method}")


def _cachestat() -> Finding:
    if cache_state.has_cachestat():
        return ok("cachestat", "cachestat(2) answers: residency costs a few microseconds a file")
    return Finding(
        "cachestat",
        DEGRADED,
        "this kernel has no cachestat(2): residency comes from mincore(2), which is slower and does not "
        "count evictions",
        "use Linux 6.5 or newer (in a container: a seccomp profile that allows system call 451)",
    )


def _storage(file_system: FileSystem) -> Finding:
    try:
        sampler = storage_sampler(file_system)
    except UnavailableError as error:
        return from_error("storage bytes", str(error), "put the data set on a local disk or an NFS mount")
    sampler.close()
    return ok("storage bytes", f"{file_system.type} from {file_system.source}, counted by {sampler.source}")


def _pressure() -> Finding:
    reason = pressure_off_reason()
    if reason is None:
        return ok("pressure (PSI)", "/proc/pressure shows the waits for CPU, storage and memory")
    return from_error("pressure (PSI)", reason, "boot with `psi=1`")


def _runqueue() -> Finding:
    reason = runqueue_off_reason()
    if reason is None:
        return ok(
            "run-queue delay",
            "/proc/PID/schedstat counts it, which separates workers that wait for a CPU from slow storage",
        )
    return from_error("run-queue delay", f"contention for CPUs cannot be measured: {reason}", "boot with `delayacct`")


def _gpu() -> Finding:
    try:
        gpus = gpu_facts()
    except UnavailableError as error:
        return from_error("GPU (NVML)", str(error), "check that `nvidia-smi` works")
    if not gpus:
        return Finding("GPU (NVML)", MISSING, "NVML lists no GPU", "start the container with `--gpus all`")
    names = ", ".join(sorted({gpu.name for gpu in gpus}))
    return ok("GPU (NVML)", f"{len(gpus)} × {names}, driver {gpus[0].driver}")


def torch_cuda_version() -> tuple[bool, str | None]:
    """(installed, CUDA version torch was built for or None), from the package's files: torch is not imported."""
    return _torch_built_for("cuda")


def _torch_built_for(name: str) -> tuple[bool, str | None]:
    """(installed, version of what torch's `version.py` calls `name`, or None where it was built without)."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False, None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return True, None
    found = re.search(rf"^{name}\b[^=]*=\s*['\"]([\w.+-]+)['\"]", text, re.MULTILINE)
    return True, found[1] if found else None


def _xpu() -> list[Finding]:
    """One finding where there is an Intel GPU, none elsewhere."""
    if not has_intel_gpu():
        return []
    version = _torch_built_for("xpu")[1]
    if version is None:
        what = "this torch was built without XPU: --device xpu does not work with the Intel GPU here"
        step = "install the XPU build of torch, and Intel's GPU driver (Level Zero)"
        return [Finding("Intel GPU", MISSING, what, step)]
    return [ok("Intel GPU", f"found one, and torch is built for XPU {version} (torch was not started)")]


def _cuda() -> Finding:
    installed, version = torch_cuda_version()
    if not installed:
        return Finding("CUDA in torch", MISSING, "torch is not installed", f"`{lacking.RUN_EXTRA}`")
    if version is None:
        return Finding(
            "CUDA in torch",
            MISSING,
            "this torch was built without CUDA: only --device cpu and emulated work",
            "install a CUDA build of torch (the default one of `pip install torch` on Linux)",
        )
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Finding(
            "CUDA in torch",
            MISSING,
            f"torch is built for CUDA {version}, but there is no libcuda.so.1: --device auto means emulated",
            "install the NVIDIA driver, or start the container with `--gpus all`",
        )
    return ok("CUDA in torch", f"torch is built for CUDA {version} and libcuda is installed (torch was not started)")


def _plugin(table: plugins.Table[Any], name: str) -> Finding | None:
    """A finding for a plug-in that needs something installed or is broken, else None. A proof may take seconds."""
    kind, title = table.kind, f"{table.kind} {name}"
    try:
        needs: Needs = table.find(name).traits.needs
    except (ConfigError, UnavailableError) as error:
        return Finding(title, MISSING, str(error), f"fix or uninstall the package whose entry point names it: {name}")
    if needs.install is None:
        return None
    step = f"`{needs.install}`"
    reason = plugins.missing(needs)
    if reason is not None:
        what, _, better = reason.partition("; ")
        return Finding(title, MISSING, f"--{kind} {name} is not available: {what}", better or step)
    if needs.prove is None:
        return ok(title, ", ".join(plugins.brought_by(needs)) or "installed")
    try:
        return ok(title, plugins.function(needs.prove)())
    except UnavailableError as error:
        return from_error(title, str(error), step)


def _profiles() -> list[Finding]:
    """One finding for each machine that can be emulated: its profiles, and where their times are from."""
    shipped = profile.shipped()
    findings = []
    for name in sorted({one.machine for one in shipped}):
        theirs = [one for one in shipped if one.machine == name]
        groups: dict[str, list[str]] = {}
        for one in theirs:
            groups.setdefault(f"{one.mode} {one.precision} {_batches(one)}", []).append(one.model)
        origin = ", ".join(sorted({one.origin for one in theirs}))
        held = "; ".join(f"{key}: {', '.join(models)}" for key, models in groups.items())
        findings.append(ok(f"emulated {name}", f"{origin}; {held}"))
    return findings


def _batches(one: profile.Profile) -> str:
    first, last = one.steps[0].batch_size, one.largest_batch
    return f"(batch {first})" if first == last else f"(batch {first} to {last})"


def _perf() -> Finding:
    if shutil.which("perf") is None:
        return Finding(
            "perf",
            MISSING,
            "perf is missing: no hardware counters or CPU profiles",
            "install the Debian package linux-perf",
        )
    try:
        paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    except (OSError, ValueError):
        return Finding(
            "perf",
            MISSING,
            "this kernel has no perf events",
            "use a kernel with CONFIG_PERF_EVENTS (any distribution's)",
        )
    if paranoid > 2 and os.geteuid() != 0:
        return Finding(
            "perf",
            DEGRADED,
            f"kernel.perf_event_paranoid is {paranoid}: only root may count events",
            "`sysctl kernel.perf_event_paranoid=2` as root",
        )
    return ok("perf", "perf is installed and may count this user's events")


def examine(dataset_path: str | Path | None = None) -> list[Finding]:
    """Everything a run may want from this machine, in the order in which to fix it.

    With a data set's folder its own storage is examined; one of its files is read and evicted.

    Raises:
        ConfigError: the folder is not there.
    """
    path = None if dataset_path is None else str(Path(dataset_path).absolute())
    if path is not None and not Path(path).is_dir():
        raise ConfigError(f"{path} is not a folder; name the folder that holds the images")
    checks: list[Callable[[], Finding]] = [
        _cpus,
        _memory,
        _shared_memory,
        _open_files,
        _memlock,
        lambda: _storage(storage_behind(path or Path.cwd())),
        lambda: _page_cache(path),
        _cachestat,
        _pressure,
        _runqueue,
        _gpu,
        _cuda,
    ]
    findings = [*(check() for check in checks), *_xpu()]
    try:
        lacking.require_run("loaderbench run")
    except MissingExtra as error:
        what, _, step = str(error).rpartition(": ")
        does = "watch, show, report and analyze work; decoders and loaders were not looked at"
        return [*findings, Finding("measuring", MISSING, f"{what}; {does}", f"`{step}`"), _perf(), *_profiles()]
    for table in (plugins.DECODERS, plugins.LOADERS):
        findings += [found for name in table.names() if (found := _plugin(table, name)) is not None]
    return [*findings, _perf(), *_profiles()]

"""What an NVIDIA GPU does, from NVML (the driver's management library, Python package `nvidia-ml-py`).

`utilization.gpu` is the part of its own sampling period in which at least one kernel ran: not
accelerator utilization (AU), and no measure of how full the GPU was.
`nvmlDeviceGetPcieThroughput` blocks 20 ms a call and is not used; the PCIe byte counters are.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loaderbench import lacking
from loaderbench.cases.options import is_count
from loaderbench.errors import UnavailableError
from loaderbench.printable import short
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import Gpu
from loaderbench.samplers.base import Channel

SLOW_FIELD_S = 0.001
"""A field whose first reading took longer is read once in SLOW_INTERVAL_S instead of at every tick."""
SLOW_INTERVAL_S = 1.0

THROTTLE_REASONS: Mapping[str, str] = {
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "software thermal slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake",
}
"""The clocks-event reasons (nvml.h) that slow a busy GPU. Idle, application clocks, sync boost and
display clocks are settings or idleness, not throttling."""
THROTTLE_MASK = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""The bits of THROTTLE_REASONS in the channel `gpu_clocks_event_reasons`."""


def open_nvml(nvml: Any = None) -> Any:
    """The `pynvml` module (or the one given), initialized. Pair it with `nvmlShutdown()`.

    Raises:
        UnavailableError: no package, no driver, or no permission.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except lacking.LOAD_ERRORS as error:
            raise lacking.package("pynvml", error, "`pip install nvidia-ml-py` to sample the GPU") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        missing = error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
        enable = (
            "install the NVIDIA driver, or start the container with access to the GPU (`--gpus all`)"
            if missing
            else "check that `nvidia-smi` works for this user"
        )
        raise UnavailableError(f"NVML does not start ({error}); {enable}") from error
    return nvml


def _text(value: Any) -> str:
    """Old versions of the package return bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def gpu_facts(nvml: Any = None) -> list[Gpu]:
    """Every GPU of the machine. No serial numbers.

    Raises UnavailableError where NVML cannot tell.
    """
    nvml = open_nvml(nvml)
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
        facts: list[Gpu] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            facts.append(
                Gpu(
                    name=_text(nvml.nvmlDeviceGetName(handle)),
                    memory_total_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                    driver=driver,
                    cuda_driver=f"{cuda // 1000}.{cuda % 1000 // 10}",
                )
            )
        return facts
    except nvml.NVMLError as error:
        raise UnavailableError(f"NVML cannot list the GPUs ({error}); check that `nvidia-smi` works") from error
    finally:
        nvml.nvmlShutdown()


def find_device(nvml: Any, ordinal: int, visible: str | None) -> Any:
    """The NVML handle of CUDA device `ordinal`, given the value of CUDA_VISIBLE_DEVICES.

    NVML numbers all GPUs in PCI order; CUDA numbers those in CUDA_VISIBLE_DEVICES (indices or UUID
    prefixes). With GPUs of different models CUDA sorts the fastest first unless
    CUDA_DEVICE_ORDER=PCI_BUS_ID: see `order_caveat`.

    Raises:
        UnavailableError: there is no such device.
    """
    wanted = str(ordinal)
    if visible is not None and visible.strip():
        entries = [entry.strip() for entry in visible.split(",")]
        if ordinal >= len(entries):
            raise UnavailableError(
                f"cuda:{ordinal} does not exist: CUDA_VISIBLE_DEVICES={short(visible)} shows {len(entries)} device(s)"
            )
        wanted = entries[ordinal]
    try:
        if is_count(wanted):
            return nvml.nvmlDeviceGetHandleByIndex(int(wanted))
        if wanted.startswith("MIG-"):
            return nvml.nvmlDeviceGetHandleByUUID(wanted)
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(wanted):
                return handle
    except nvml.NVMLError as error:
        raise UnavailableError(f"NVML has no GPU for cuda:{ordinal} ({error}); see `nvidia-smi -L`") from error
    shown = f"CUDA_VISIBLE_DEVICES={short(visible)}"
    raise UnavailableError(f"NVML has no GPU for cuda:{ordinal} ({shown}); see `nvidia-smi -L`")


def process_memory_bytes(ordinal: int, pid: int, nvml: Any = None) -> int:
    """Memory that process `pid` holds on CUDA device `ordinal` now (nvmlDeviceGetComputeRunningProcesses).

    The process must be using the device. NVML knows the PIDs of the host, not those of a container: where it lists a
    single process on the device, that is the one.

    Raises:
        UnavailableError: NVML does not start, lists other processes only, or does not tell their memory.
    """
    nvml = open_nvml(nvml)
    try:
        handle = find_device(nvml, ordinal, os.environ.get("CUDA_VISIBLE_DEVICES"))
        listed = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError as error:
        raise UnavailableError(f"NVML lists no processes on this GPU ({error})") from error
    finally:
        nvml.nvmlShutdown()
    own = [process for process in listed if process.pid == pid] or (listed if len(listed) == 1 else [])
    if not own:
        raise UnavailableError(
            f"NVML lists {len(listed)} processes on this GPU but not PID {pid}: share the host's PIDs (`--pid host`)"
        )
    if own[0].usedGpuMemory is None:
        raise UnavailableError("NVML does not report the memory of processes on this GPU (MIG or WSL)")
    return int(own[0].usedGpuMemory)


def order_caveat(nvml: Any, environ: Mapping[str, str]) -> Caveat | None:
    """A caveat where CUDA's device numbers may differ from NVML's: with GPUs of several models.

    CUDA numbers the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID, so the GPU that is sampled may be another than
    the one measured.
    """
    if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return None
    count = nvml.nvmlDeviceGetCount()
    models = {_text(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index))) for index in range(count)}
    if len(models) < 2:
        return None
    return Caveat("nvml_device_order", {"num_models": len(models)})


class _Counter:
    """Unwraps a counter that wraps at the width of its type."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._sum = 0

    def update(self, raw: int, bits: int) -> int:
        if self._last is None:
            self._sum = raw
        else:
            self._sum += (raw - self._last) % (1 << bits)
        self._last = raw
        return self._sum


def _field_value(nvml: Any, value: Any) -> tuple[int, int]:
    """(number, width in bits) of one unsigned integer answer of nvmlDeviceGetFieldValues. Raises NVMLError."""
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    if value.valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return int(value.value.uiVal), 32
    if value.valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_LONG:
        return int(value.value.ulVal), 64
    if value.valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
        return int(value.value.ullVal), 64
    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)


@dataclass
class _Query:
    """One NVML call and the channels that it fills."""

    channels: Sequence[Channel]
    call: Callable[[], Sequence[float | None]]
    interval_s: float = 0.0
    due_s: float = field(default=-float("inf"))


class NvmlSampler:
    """Utilization, memory, clock, throttle reasons, power, temperature and PCIe bytes of one GPU.

    Which figures the GPU has is checked once, when the sampler is built; a missing one gets a caveat and
    no channel.
    """

    def __init__(
        self,
        ordinal: int,
        tree_pids: Callable[[], Collection[int]] = tuple,
        nvml: Any = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`ordinal`: CUDA's number of the device. `tree_pids`: the processes whose GPU memory is summed.

        Raises:
            UnavailableError: no package, no driver, no such GPU, or no permission.
        """
        environ = os.environ if environ is None else environ
        self.caveats: list[Caveat] = []
        self._clock = clock
        self._tree_pids = tree_pids
        self._nvml = nvml = open_nvml(nvml)
        try:
            self._handle = find_device(nvml, ordinal, environ.get("CUDA_VISIBLE_DEVICES"))
            order = order_caveat(nvml, environ)
        except (UnavailableError, nvml.NVMLError) as error:
            nvml.nvmlShutdown()
            if isinstance(error, UnavailableError):
                raise
            raise UnavailableError(f"NVML cannot name the GPUs ({error}); check that `nvidia-smi` works") from error
        if order is not None:
            self.caveats.append(order)
        self._closed = False
        self._transmitted, self._received = _Counter(), _Counter()
        self._gpm_samples: list[Any] = []
        """The last sample and one to fill, allocated by the driver; empty before the first reading."""
        self._gpm_read_s = 0.0
        self._queries = [query for query in self._all_queries() if self._is_supported(query)]
        self.channels: Sequence[Channel] = [channel for query in self._queries for channel in query.channels]

    def _all_queries(self) -> list[_Query]:
        nvml, handle = self._nvml, self._handle

        def query(name: str, unit: str, call: Callable[[], float | None], source: str) -> _Query:
            return _Query([Channel(name, unit, "gauge", f"NVML {source}")], lambda: (call(),))

        return [
            query(
                "gpu_utilization_fraction",
                "fraction",
                lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0,
                "nvmlDeviceGetUtilizationRates().gpu",
            ),
            query(
                "gpu_memory_used_bytes",
                "bytes",
                lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
                "nvmlDeviceGetMemoryInfo().used, all processes",
            ),
            query(
                "gpu_sm_clock_mhz",
                "MHz",
                lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                "nvmlDeviceGetClockInfo(NVML_CLOCK_SM)",
            ),
            query("gpu_clocks_event_reasons", "bitmask", self._clocks_event_reasons, "clocks event reasons"),
            query(
                "gpu_power_w",
                "W",
                lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
                "nvmlDeviceGetPowerUsage (mean over 1 s on Ampere and newer)",
            ),
            query(
                "gpu_temperature_c",
                "degC",
                lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                "nvmlDeviceGetTemperature(NVML_TEMPERATURE_GPU)",
            ),
            *self._queries_of_several(),
        ]

    def _queries_of_several(self) -> list[_Query]:
        """Queries whose single call fills two channels."""
        pcie = "NVML nvmlDeviceGetFieldValues NVML_FI_DEV_PCIE_COUNT"
        return [
            _Query(
                [
                    Channel("gpu_pcie_tx_bytes", "bytes", "counter", f"{pcie}_TX_BYTES, sent by the GPU"),
                    Channel("gpu_pcie_rx_bytes", "bytes", "counter", f"{pcie}_RX_BYTES, received by the GPU"),
                ],
                self._pcie_bytes,
            ),
            _Query(
                [
                    Channel("gpu_gpm_graphics_fraction", "fraction", "gauge", "NVML GPM NVML_GPM_METRIC_GRAPHICS_UTIL"),
                    Channel("gpu_gpm_sm_fraction", "fraction", "gauge", "NVML GPM NVML_GPM_METRIC_SM_UTIL"),
                ],
                self._gpm_utilization,
                SLOW_INTERVAL_S,
            ),
            _Query(
                [
                    Channel("gpu_process_memory_bytes", "bytes", "gauge", "NVML nvmlDeviceGetComputeRunningProcesses"),
                    Channel("gpu_num_processes", "processes", "gauge", "NVML nvmlDeviceGetComputeRunningProcesses"),
                ],
                self._process_memory,
                SLOW_INTERVAL_S,
            ),
        ]

    def _clocks_event_reasons(self) -> int:
        # The driver's name before version 535 is "throttle reasons"; the bits are the same.
        try:
            return int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        except (AttributeError, self._nvml.NVMLError) as error:
            newer = isinstance(error, AttributeError) or error.value == self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND
            if not newer:
                raise
            return int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))

    def _pcie_bytes(self) -> Sequence[float | None]:
        nvml = self._nvml
        try:
            fields = [nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES]
        except AttributeError:
            # A package older than these counters (12.560).
            raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND) from None
        sent, received = nvml.nvmlDeviceGetFieldValues(self._handle, fields)
        return (
            self._transmitted.update(*_field_value(nvml, sent)),
            self._received.update(*_field_value(nvml, received)),
        )

    def _gpm_utilization(self) -> Sequence[float | None]:
        """Since the last reading: fraction of time with a kernel on the GPU, fraction of busy SMs. Hopper and newer.

        The hardware updates its counters about every 100 ms, so readings closer than half a second give nothing.
        """
        nvml = self._nvml
        try:
            supported = bool(nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)
        except AttributeError:
            supported = False  # a package older than GPM (12.525)
        if not supported:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        if not self._gpm_samples:
            self._gpm_samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
            nvml.nvmlGpmSampleGet(self._handle, self._gpm_samples[0])
            self._gpm_read_s = self._clock()
            return (None, None)
        if self._clock() - self._gpm_read_s < SLOW_INTERVAL_S / 2:
            return (None, None)
        before, now = self._gpm_samples
        nvml.nvmlGpmSampleGet(self._handle, now)
        self._gpm_samples, self._gpm_read_s = [now, before], self._clock()
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 2
        asked.sample1, asked.sample2 = before, now
        asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_GRAPHICS_UTIL
        asked.metrics[1].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
        answers = nvml.nvmlGpmMetricsGet(asked).metrics
        return [answer.value / 100.0 if answer.nvmlReturn == nvml.NVML_SUCCESS else None for answer in answers[:2]]

    def _process_memory(self) -> Sequence[float | None]:
        """Memory of the tree's processes, None where NVML does not list them; number of all processes on the GPU.

        In a container with its own PID namespace NVML may list other PIDs than /proc, or none.
        """
        processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        pids = set(self._tree_pids())
        own = [process.usedGpuMemory for process in processes if process.pid in pids]
        known = bool(own) and all(used is not None for used in own)
        return (sum(own) if known else None, len(processes))

    def _is_supported(self, query: _Query) -> bool:
        begun_s = self._clock()
        try:
            query.call()
        except self._nvml.NVMLError as error:
            self._lose(query, f"is not available on this GPU ({error}); it needs a newer GPU or driver, or MIG off")
            return False
        if self._clock() - begun_s > SLOW_FIELD_S:
            query.interval_s = SLOW_INTERVAL_S
        return True

    def _lose(self, query: _Query, why: str) -> None:
        names = ", ".join(channel.name for channel in query.channels)
        self.caveats.append(Caveat("nvml_field_missing", {"reason": f"{names} ({query.channels[0].source}) {why}"}))

    def read(self) -> Sequence[float | None]:
        now_s = self._clock()
        values: list[float | None] = []
        for query in self._queries:
            answer: Sequence[float | None] = (None,) * len(query.channels)
            if now_s >= query.due_s:
                query.due_s = now_s + query.interval_s
                try:
                    answer = query.call()
                except self._nvml.NVMLError as error:
                    # One lost figure does not cost the others.
                    query.due_s = float("inf")
                    self._lose(query, f"was lost while sampling ({error})")
            values += answer
        return values

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for sample in self._gpm_samples:
                self._nvml.nvmlGpmSampleFree(sample)
            self._nvml.nvmlShutdown()

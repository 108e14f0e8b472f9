"""NVML without a GPU: a driver of known answers behind the real package's names and constants."""

# ruff: noqa: N802, N803 - the fake driver has the names of NVML
from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from loaderbench.errors import UnavailableError
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import Gpu
from loaderbench.samplers import nvml as nvml_sampler
from loaderbench.samplers.nvml import NvmlSampler, find_device, gpu_facts, open_nvml, process_memory_bytes


class Driver:
    """Answers like NVML on a machine with two GPUs; constants and errors are the real package's.

    `failing` maps a function's name to the error it raises; `pcie` are the raw counter values.
    """

    def __init__(self, models: tuple[str, ...] = ("NVIDIA H200", "NVIDIA H200")) -> None:
        self.models = models
        self.failing: dict[str, int] = {}
        self.pcie = (1000, 2000)
        self.pcie_type = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        self.processes = [SimpleNamespace(pid=11, usedGpuMemory=300), SimpleNamespace(pid=99, usedGpuMemory=50)]
        self.num_open = 0
        self.gpm = True
        self.samples: dict[int, tuple[float, float]] = {}
        """Each GPM sample: busy seconds of the GPU and of its SMs until then; a freed one is gone."""
        self.busy_s = (0.0, 0.0)
        self.held: list[Any] = []
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        """Constants and error classes come from the real package; its functions must not be reached."""
        value = getattr(pynvml, name)
        assert not name.startswith("nvml") or not callable(value), f"{name} has no answer here"
        return value

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise pynvml.NVMLError(self.failing[name])

    def nvmlInit(self) -> None:
        self._called("nvmlInit")
        self.num_open += 1

    def nvmlShutdown(self) -> None:
        self.num_open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return len(self.models)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index >= len(self.models):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return f"GPU-{'ab' if handle else 'cd'}{handle}0-1234".encode()

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.models[handle]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self._called("nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=37, memory=5)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=150_000_000_000, used=4_000_000_000, free=146_000_000_000)

    def nvmlDeviceGetClockInfo(self, handle: int, type: int) -> int:
        self._called("nvmlDeviceGetClockInfo")
        assert type == pynvml.NVML_CLOCK_SM
        return 1980

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        self._called("nvmlDeviceGetCurrentClocksEventReasons")
        return int(pynvml.nvmlClocksEventReasonSwPowerCap)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        self._called("nvmlDeviceGetCurrentClocksThrottleReasons")
        return 0x40

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        self._called("nvmlDeviceGetPowerUsage")
        return 431_500

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        self._called("nvmlDeviceGetTemperature")
        return 41

    def nvmlDeviceGetFieldValues(self, handle: int, fieldIds: list[int]) -> Any:
        self._called("nvmlDeviceGetFieldValues")
        answers = (pynvml.c_nvmlFieldValue_t * len(fieldIds))()
        raw = dict(
            zip(
                (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES), self.pcie, strict=True
            )
        )
        for answer, number in zip(answers, fieldIds, strict=True):
            answer.valueType = self.pcie_type
            answer.nvmlReturn = self.failing.get("pcie", pynvml.NVML_SUCCESS)
            if self.pcie_type == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
                answer.value.uiVal = raw[number]
            else:
                answer.value.ullVal = raw[number]
        return answers

    def nvmlGpmQueryDeviceSupport(self, device: int) -> Any:
        return SimpleNamespace(isSupportedDevice=int(self.gpm))

    def nvmlGpmSampleAlloc(self) -> Any:
        made = pynvml.pointer(pynvml.struct_c_nvmlGpmSample_t())
        self.samples[ctypes.addressof(made.contents)] = (0.0, 0.0)
        self.held.append(made)
        return made

    def nvmlGpmSampleGet(self, device: int, gpmSample: Any) -> Any:
        self._called("nvmlGpmSampleGet")
        self.samples[ctypes.addressof(gpmSample.contents)] = self.busy_s
        return gpmSample

    def nvmlGpmSampleFree(self, gpmSample: Any) -> None:
        del self.samples[ctypes.addressof(gpmSample.contents)]

    def nvmlGpmMetricsGet(self, metricsGet: Any) -> Any:
        """Percent of the one second that lies between two samples of these tests."""
        assert metricsGet.version == 1 and metricsGet.numMetrics == 2
        before, now = (self.samples[ctypes.addressof(one.contents)] for one in (metricsGet.sample1, metricsGet.sample2))
        for metric in metricsGet.metrics[:2]:
            number = {pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: 0, pynvml.NVML_GPM_METRIC_SM_UTIL: 1}[metric.metricId]
            metric.value = 100 * (now[number] - before[number])
        return metricsGet

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        self._called("nvmlDeviceGetComputeRunningProcesses")
        return self.processes


def sampler(driver: Driver, clock: Callable[[], float] = lambda: 0.0, **more: Any) -> NvmlSampler:
    return NvmlSampler(0, lambda: [10, 11], nvml=driver, environ=more.get("environ", {}), clock=clock)


def row(one: NvmlSampler) -> dict[str, float | None]:
    return dict(zip([channel.name for channel in one.channels], one.read(), strict=True))


def test_the_driver_here_has_the_real_packages_functions() -> None:
    """A name or parameter that the installed package does not have would pass every other test here."""
    for name, function in vars(Driver).items():
        if name.startswith("nvml"):
            real = inspect.unwrap(getattr(pynvml, name))
            theirs = [p for p in inspect.signature(real).parameters.values() if p.default is p.empty]
            ours = list(inspect.signature(function).parameters)[1:]
            assert len(theirs) == len(ours), name


def test_throttle_mask_is_made_of_the_packages_bits() -> None:
    bits = 0
    for name in nvml_sampler.THROTTLE_REASONS:
        bits |= getattr(pynvml, name)
    assert bits == nvml_sampler.THROTTLE_MASK
    assert not bits & pynvml.nvmlClocksEventReasonGpuIdle


def test_units_are_converted() -> None:
    driver = Driver()
    one = sampler(driver)
    assert row(one) == {
        "gpu_utilization_fraction": 0.37,
        "gpu_memory_used_bytes": 4_000_000_000,
        "gpu_sm_clock_mhz": 1980,
        "gpu_clocks_event_reasons": 4,
        "gpu_power_w": 431.5,
        "gpu_temperature_c": 41,
        "gpu_pcie_tx_bytes": 1000,
        "gpu_pcie_rx_bytes": 2000,
        "gpu_gpm_graphics_fraction": None,  # needs two samples some time apart
        "gpu_gpm_sm_fraction": None,
        "gpu_process_memory_bytes": 300,
        "gpu_num_processes": 2,
    }
    assert one.caveats == []
    one.close()
    one.close()
    assert driver.num_open == 0
    assert driver.samples == {}
    assert "nvmlDeviceGetPcieThroughput" not in driver.calls


def test_gpm_tells_what_was_busy_since_its_last_sample() -> None:
    driver, now_s = Driver(), [0.0]
    one = sampler(driver, clock=lambda: now_s[0])
    read = []
    for number in range(31):
        now_s[0] = number / 10
        driver.busy_s = (0.75 * now_s[0], 0.5 * now_s[0] ** 2)
        read.append(row(one))
    seen = [(now["gpu_gpm_graphics_fraction"], now["gpu_gpm_sm_fraction"]) for now in read[10::10]]
    assert seen == [pytest.approx((0.75, 0.5)), pytest.approx((0.75, 1.5)), pytest.approx((0.75, 2.5))]
    assert all(now["gpu_gpm_sm_fraction"] is None for number, now in enumerate(read) if number % 10 or not number)
    assert driver.calls.count("nvmlGpmSampleGet") == 4


def test_a_gpu_older_than_hopper_has_no_gpm() -> None:
    driver = Driver()
    driver.gpm = False
    one = sampler(driver)
    assert "gpu_gpm_sm_fraction" not in row(one)
    assert (
        "gpu_gpm_graphics_fraction" in one.caveats[0].details["reason"]
        and "newer GPU" in one.caveats[0].details["reason"]
    )
    one.close()


def test_pcie_counters_grow_on_where_they_wrap() -> None:
    driver = Driver()
    driver.pcie = (2**32 - 10, 5)
    one = sampler(driver)
    first = row(one)
    driver.pcie = (20, 25)
    second = row(one)
    assert (second["gpu_pcie_tx_bytes"] or 0) - (first["gpu_pcie_tx_bytes"] or 0) == 30
    assert (second["gpu_pcie_rx_bytes"] or 0) - (first["gpu_pcie_rx_bytes"] or 0) == 20


def test_64_bit_pcie_counters() -> None:
    driver = Driver()
    driver.pcie_type = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    driver.pcie = (2**40, 2**41)
    assert row(sampler(driver))["gpu_pcie_rx_bytes"] == 2**41


@pytest.mark.parametrize(
    ("function", "channel"),
    [
        ("nvmlDeviceGetUtilizationRates", "gpu_utilization_fraction"),
        ("nvmlDeviceGetClockInfo", "gpu_sm_clock_mhz"),
        ("nvmlDeviceGetPowerUsage", "gpu_power_w"),
        ("nvmlDeviceGetComputeRunningProcesses", "gpu_num_processes"),
        ("pcie", "gpu_pcie_tx_bytes"),
    ],
)
def test_an_unsupported_figure_is_a_caveat_and_no_channel(function: str, channel: str) -> None:
    driver = Driver()
    driver.failing[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    one = sampler(driver)
    assert channel not in row(one)
    assert len(one.caveats) == 1
    assert channel in one.caveats[0].details["reason"]
    assert "Not Supported" in one.caveats[0].details["reason"]
    calls = driver.calls.count(function)
    one.read()
    assert driver.calls.count(function) == calls or function == "pcie"  # asked once, when built


def test_a_figure_lost_while_sampling_costs_only_itself() -> None:
    driver = Driver()
    one = sampler(driver)
    driver.failing["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_UNKNOWN
    after = row(one)
    assert after["gpu_power_w"] is None
    assert after["gpu_utilization_fraction"] == 0.37
    assert "gpu_power_w" in one.caveats[0].details["reason"]
    driver.failing.clear()
    assert row(one)["gpu_power_w"] is None


def test_an_older_driver_calls_them_throttle_reasons() -> None:
    driver = Driver()
    driver.failing["nvmlDeviceGetCurrentClocksEventReasons"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    assert row(sampler(driver))["gpu_clocks_event_reasons"] == 0x40


def test_memory_of_processes_nvml_does_not_list_is_unknown() -> None:
    driver = Driver()
    driver.processes = [SimpleNamespace(pid=99, usedGpuMemory=50)]
    now = row(sampler(driver))
    assert now["gpu_process_memory_bytes"] is None
    assert now["gpu_num_processes"] == 1
    driver.processes = [SimpleNamespace(pid=11, usedGpuMemory=None)]
    assert row(sampler(driver))["gpu_process_memory_bytes"] is None


def test_slow_calls_are_made_once_a_second() -> None:
    driver = Driver()
    now_s = [0.0]

    def slow_power(handle: int) -> int:
        now_s[0] += 0.004
        driver.calls.append("power")
        return 100_000

    driver.nvmlDeviceGetPowerUsage = slow_power  # type: ignore[method-assign]
    one = sampler(driver, clock=lambda: now_s[0])
    driver.calls.clear()
    for _ in range(21):
        one.read()
        now_s[0] += 0.1
    assert driver.calls.count("power") == 3
    assert driver.calls.count("nvmlDeviceGetComputeRunningProcesses") == 3
    assert driver.calls.count("nvmlDeviceGetUtilizationRates") == 21


@pytest.mark.parametrize(
    ("visible", "ordinal", "handle"),
    [
        (None, 1, 1),
        ("", 0, 0),
        ("1", 0, 1),
        ("1,0", 1, 0),
        ("GPU-ab", 0, 1),
        ("GPU-cd00-1234, GPU-ab", 1, 1),
        ("MIG-7", 0, "MIG-7"),
    ],
)
def test_cuda_numbers_are_those_of_the_visible_devices(visible: str | None, ordinal: int, handle: Any) -> None:
    assert find_device(Driver(), ordinal, visible) == handle


@pytest.mark.parametrize(("visible", "ordinal"), [("1", 1), ("GPU-ff", 0), (None, 2), ("5", 0)])
def test_a_device_that_is_not_there(visible: str | None, ordinal: int) -> None:
    with pytest.raises(UnavailableError, match=f"cuda:{ordinal}"):
        find_device(Driver(), ordinal, visible)
    driver = Driver()
    with pytest.raises(UnavailableError):
        NvmlSampler(ordinal, nvml=driver, environ={"CUDA_VISIBLE_DEVICES": visible} if visible else {})
    assert driver.num_open == 0


def test_gpus_of_different_models_may_be_numbered_otherwise() -> None:
    mixed = Driver(("NVIDIA A2", "NVIDIA H200"))
    assert sampler(mixed).caveats == [Caveat("nvml_device_order", {"num_models": 2})]
    assert sampler(mixed, environ={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).caveats == []


def test_facts_of_every_gpu_without_serial_numbers() -> None:
    driver = Driver()
    facts = gpu_facts(driver)
    assert len(facts) == 2
    assert facts[0] == Gpu(
        name="NVIDIA H200", memory_total_bytes=150_000_000_000, driver="580.95.05", cuda_driver="13.0"
    )
    assert driver.num_open == 0


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "install the NVIDIA driver"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "install the NVIDIA driver"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "nvidia-smi"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "nvidia-smi"),
    ],
)
def test_no_driver_says_how_to_enable_it(error: int, step: str) -> None:
    driver = Driver()
    driver.failing["nvmlInit"] = error
    with pytest.raises(UnavailableError, match=step):
        open_nvml(driver)


def test_no_package_says_how_to_enable_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(nvml_sampler.importlib, "import_module", absent)
    with pytest.raises(UnavailableError, match="nvidia-ml-py"):
        open_nvml()


def test_the_memory_of_one_process() -> None:
    driver = Driver()
    assert process_memory_bytes(0, 11, driver) == 300
    assert driver.num_open == 0


def test_a_process_alone_on_its_gpu_is_known_whatever_its_number_outside() -> None:
    driver = Driver()
    with pytest.raises(UnavailableError, match="lists 2 processes on this GPU but not PID 7"):
        process_memory_bytes(0, 7, driver)
    driver.processes = [SimpleNamespace(pid=4711, usedGpuMemory=300)]
    assert process_memory_bytes(0, 7, driver) == 300
    driver.processes = [SimpleNamespace(pid=7, usedGpuMemory=None)]
    with pytest.raises(UnavailableError, match="MIG"):
        process_memory_bytes(0, 7, driver)
    assert driver.num_open == 0

"""One plug-in of each kind, as a package of somebody else's: tests/test_plugins.py installs it."""

from __future__ import annotations

from loaderbench.cases.traits import DecoderTraits, DeviceTraits, LoaderTraits, Needs, WorkloadTraits
from loaderbench.devices.base import Asked, Chosen
from loaderbench.errors import ConfigError
from loaderbench.plugins import Plugin

LOADER = Plugin(LoaderTraits("threads", decodes="own", output="uint8"), "fake_plugins.loader")
DECODER = Plugin(DecoderTraits(rank=5), "fake_plugins.decoder")
DEVICE = Plugin(
    DeviceTraits("bf16", "fake[:N]", on_host_cpus=True, choose="fake_plugins:choose"), "fake_plugins.device"
)
WORKLOAD = Plugin(WorkloadTraits(), "fake_plugins.workload")
NOT_A_PLUGIN = "a text"
RIDDLE = Plugin(
    LoaderTraits("threads", handover="shared", needs=Needs(check="no_such_module:why")), "fake_plugins.loader"
)


def choose(asked: Asked) -> Chosen:
    """The number behind the colon, 7 without one."""
    if asked.detail and not asked.detail.isdecimal():
        raise ConfigError(f"no fake device '{asked.detail}'; use fake:N")
    return Chosen(asked.precision or asked.default_precision, asked.detail or "7")

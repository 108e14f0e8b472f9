"""The host's CPU under another name."""

from __future__ import annotations

from dataclasses import replace

from loaderbench.cases.case import Step
from loaderbench.devices.cpu import CpuDevice
from loaderbench.recording.facts import DeviceFacts


class FakeDevice(CpuDevice):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.name = f"fake device {number}"

    def describe(self) -> DeviceFacts:
        return replace(super().describe(), kind="fake", name=self.name)


def build(detail: str, step: Step, image_size: int | None) -> FakeDevice:
    return FakeDevice(int(detail))

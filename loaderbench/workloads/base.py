"""A workload processes a batch in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from loaderbench.recording.facts import WorkloadFacts


class Workload(Protocol):
    """One training or inference step. It only enqueues: no synchronize, no `.item()`.

    Made by the `build(detail, step, device, *, image_size, seed, num_classes)` of its module: `detail` is what
    `--model` gives after the workload's name, the rest is as in `build_workload`.
    """

    phases: list[tuple[int, int, int]]
    """PHASE_FIELDS of each step since it was last cleared; empty where the steps have no such parts."""

    def step(self, inputs: Any, targets: Any) -> None:
        """Enqueue one step on device tensors: inputs [N, 3, S, S] float32 or uint8, targets int64 [N]; or what
        `example` gives."""
        ...

    def example(self, output: str) -> tuple[Any, Any]:
        """A random host batch of the shape and type that the loader delivers (`float32` or `uint8`); of a user's model
        that takes no square images, what it takes."""
        ...

    def describe(self) -> WorkloadFacts:
        """Facts for the record."""
        ...

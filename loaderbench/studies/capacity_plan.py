"""What `loaderbench capacity` asks for, read into a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from loaderbench import plugins
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.cases.options import CapacityOptions
from loaderbench.cases.study import StudyOptions, check_choice, check_range, check_seconds
from loaderbench.devices.select import traits_of
from loaderbench.errors import ConfigError
from loaderbench.images.filesystem import storage_behind
from loaderbench.images.listing import first_image
from loaderbench.machine import environment
from loaderbench.studies.refusals import planned
from loaderbench.studies.request import find_data_sets

if TYPE_CHECKING:
    from loaderbench.recording.capacity import CapacityFacts

MOST_RANKS = 256
"""Each is a process that imports PyTorch."""
ONE_OF_EACH = ("res", "cache", "loader", "decoder", "workers", "prefetch", "model", "precision", "batch_size")


@dataclass(frozen=True)
class CapacityPlan:
    """What is to be measured."""

    facts: CapacityFacts
    """Without a look."""
    seconds: float
    """Of a look."""


def plan_capacity(dataset: str, options: StudyOptions, asked: CapacityOptions) -> CapacityPlan:
    """What the options ask for.

    Raises:
        ConfigError: a value out of range, no such folder, a device that is not emulated, a loader that reads no image
            files, or too few images.
    """
    if not 0 < asked.au < 1:
        raise ConfigError(f"--au must be a fraction between 0 and 1, such as 0.9, not {asked.au:g}")
    if not 1 <= asked.max_ranks <= MOST_RANKS:
        raise ConfigError(f"--max-ranks must be from 1 to {MOST_RANKS}, not {asked.max_ranks}")
    check_seconds("--duration", asked.duration)
    check_range("--steps", asked.steps, 1)
    options.require_single("capacity", *ONE_OF_EACH)
    options = options.changed(arms=Arm.REAL.value, duration=asked.duration, seed=asked.seed)
    if options.device != "auto" and traits_of(options.device).computes:
        raise ConfigError(
            f"capacity needs an emulated device for each rank: use --device emulated, not {options.device}"
        )
    (case,) = planned(options, find_data_sets(dataset, options))
    _check_case(case)
    from loaderbench.images.index import index_images  # late: they need numpy
    from loaderbench.recording.capacity import Barrier, CapacityFacts

    barrier: Barrier = check_choice("--barrier", asked.barrier, get_args(Barrier))
    images = index_images(case.subject.dataset)
    needed = asked.max_ranks * case.step.batch_size
    if len(images) < needed:
        raise ConfigError(
            f"{asked.max_ranks} ranks of batch {case.step.batch_size} need {needed:,} images, and {dataset} "
            f"has {len(images):,}: use a larger set, or "
            f"{_fewer(len(images), case.step.batch_size, asked.max_ranks)}"
        )
    behind = storage_behind(first_image(case.subject.dataset) or case.subject.dataset)
    facts = CapacityFacts(
        case=case,
        au_target=asked.au,
        max_ranks=asked.max_ranks,
        barrier=barrier,
        least_steps=asked.steps,
        environment=environment(),
        num_images=len(images),
        image_bytes=int(images.sizes.sum()),
        file_system=behind.type,
        in_memory=behind.is_memory,
    )
    return CapacityPlan(facts, asked.duration)


def _fewer(num_images: int, batch_size: int, max_ranks: int) -> str:
    """The options with which so many images are enough."""
    ranks, batch = num_images // batch_size, num_images // max_ranks
    use = [f"--max-ranks {ranks}"] if ranks else []
    use += [f"--batch-size {batch}"] if batch else []
    return " or ".join(use) or "--batch-size 1 --max-ranks 1"


def _check_case(case: Case) -> None:
    """Raises ConfigError for what ranks cannot have."""
    traits = plugins.LOADERS.find(case.feed.loader).traits
    if not traits.reads_files or traits.format is not None or traits.needs_gpu:
        raise ConfigError(
            f"--loader {case.feed.loader} does not read image files on the CPU, as capacity needs: use "
            "serial, multiprocess or threaded"
        )
    if case.subject.cache == "warm":
        raise ConfigError("--cache warm measures memory, not the storage: use cold or as-is")
    if case.step.input_size is None and case.subject.resolution is None:
        raise ConfigError("--input-size full needs images of a known size: give --res N or --input-size N")

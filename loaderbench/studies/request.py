"""From options to a plan's request: names checked, data sets and the device resolved. This looks at the machine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from loaderbench import plugins
from loaderbench.cases.arms import ARMS
from loaderbench.cases.case import MODES, PRECISIONS
from loaderbench.cases.options import Options
from loaderbench.cases.study import WITHOUT_COLD, StudyRequest, Target, Variant, check_choice
from loaderbench.devices.select import parse_device
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.images.manifest import resolve_dataset
from loaderbench.machine import usable_cpus
from loaderbench.running.cache import can_prove_cold
from loaderbench.samplers.sources import StorageCounter

Progress = Callable[[int, int], None]
DataSet = tuple[str | None, int | None]
"""(folder or name, stored resolution); None: the generated set, a tree without variants."""


def no_progress(done: int, total: int) -> None:
    """Nobody watches."""


def no_note(note: str) -> None:
    """Nobody reads."""


def resolve(
    options: Options,
    datasets: Sequence[DataSet],
    *,
    on_note: Callable[[str], None] = no_note,
    progress: Progress = no_progress,
) -> StudyRequest:
    """The study that the options ask for, over these data sets.

    `on_note` is told where a choice was made for the user; `progress` how far the making of a data set is.

    Raises:
        ConfigError: a name that is unknown, a folder that is not there, a device that is not.
    """
    subject, feed, step, effort = options.subject, options.feed, options.step, options.effort
    for name in feed.loader:
        plugins.check_name("loaders", name)
    decoders = [plugins.ALIASES.get(name, name) for name in feed.decoder or ()]
    for name in decoders:
        plugins.check_name("decoders", name)
    targets = _targets(options, on_note)
    variants = []
    for dataset, resolution in datasets:
        path, name = resolve_dataset(dataset, resolution, progress=progress)
        variants.append(Variant(path, name, resolution))
    cache = ",".join(subject.cache or ()) or default_cache([one.path for one in variants], feed.loader)
    return StudyRequest(
        variants=variants,
        loaders=feed.loader,
        workers=feed.workers,
        targets=targets,
        mode=step.mode,
        usable_cpus=usable_cpus(),
        decoders=decoders or [None],
        output=feed.output,
        overlap=step.overlap,
        batch_sizes=step.batch_size,
        prefetches=feed.prefetch,
        buffer_ratios=feed.buffer_ratio or [None],
        input_size=step.input_size or None,
        cache=cache,
        arms=ARMS if effort.arms == ("all",) else effort.arms,
        warmup=effort.warmup,
        steps=effort.steps,
        duration_s=effort.duration,
        ci_target=effort.ci_target,
        max_bytes=effort.max_bytes,
        repeats=effort.repeats,
        kernels=effort.kernels,
        loss_scale=step.loss_scale,
        seed=effort.seed,
        max_failure_fraction=effort.max_failures,
        decode_scale=feed.decode_scale,
        io_threads=feed.io_threads,
        loader_options=feed.loader_option or {},
        decoder_options=feed.decoder_option or {},
    )


def _targets(options: Options, on_note: Callable[[str], None]) -> list[Target]:
    """What the batches are fed to, each model in each precision; the device's own precision where none was given."""
    step = options.step
    check_choice("--mode", step.mode, MODES)
    targets: list[Target] = []
    for model, precision in itertools.product(step.model, step.precision or [None]):
        if precision is not None:
            check_choice("--precision", precision, PRECISIONS)
        try:
            choice = parse_device(
                step.device, model=model, mode=step.mode, precision=precision, batch_size=min(step.batch_size)
            )
        except UnavailableError as error:
            raise ConfigError(str(error)) from error
        if choice.note and not targets:
            on_note(choice.note)
        targets.append(Target(model, choice.precision, choice.device, choice.computes))
    return targets


def default_cache(folders: Sequence[str], loaders: Sequence[str]) -> str:
    """`cold` where both eviction and the bytes that really moved can be checked, else `as-is`."""
    if set(loaders) & WITHOUT_COLD:
        return "as-is"  # one state for all of a study
    for folder in folders:
        if StorageCounter(folder).reason is not None or not can_prove_cold(folder):
            return "as-is"
    return "cold"

"""From options to the request for a plan: checks names, resolves data sets and the device on this machine."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence

from loaderbench import plugins
from loaderbench.cases.arms import ARMS
from loaderbench.cases.case import MODES, PRECISIONS
from loaderbench.cases.options import FeedOptions, Options, StepOptions
from loaderbench.cases.study import StudyRequest, Target, Variant, check_choice, check_number
from loaderbench.cases.traits import Format, LoaderChoice
from loaderbench.devices.select import parse_device
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.images.cache_state import can_prove_cold
from loaderbench.images.files import record_of
from loaderbench.images.formats import SUFFIXES
from loaderbench.images.listing import Listing, first_image, list_images
from loaderbench.images.manifest import resolve_dataset
from loaderbench.machine import usable_cpus

Folder = str | os.PathLike[str]
Say = Callable[[str], None]
"""Called with a line for the user."""
Progress = Callable[[int, int], None]
DataSet = tuple[str | None, int | None]
"""(folder or name, stored resolution); None: the generated set, a tree without variants."""
DEFAULT_RESOLUTION, DEFAULT_RESOLUTIONS = 256, (256, 512, 1024)
"""Default resolutions of the generated data set: of a run, of a sweep."""
ONE_OF_EACH = ("res", "loader", "decoder", "workers", "prefetch", "model", "precision", "batch_size")
"""Options that take only one value in a run."""


def no_progress(done: int, total: int) -> None:
    """Ignores progress."""


def no_note(note: str) -> None:
    """Ignores a note."""


def named_data_sets(
    dataset: Folder | Sequence[Folder] | None, options: Options, defaults: Sequence[int]
) -> list[DataSet]:
    """Each data set at each resolution. `defaults`: the resolutions of the generated set where none was given."""
    sets: list[str | None] = [None]
    if isinstance(dataset, str | os.PathLike):
        sets = [os.fspath(dataset)]
    elif dataset is not None:
        sets = [os.fspath(one) for one in dataset]
    resolutions: list[int | None] = [*(options.subject.res or (defaults if sets == [None] else [None]))]
    return [(one, resolution) for one in sets for resolution in resolutions]


def resolve(
    options: Options,
    datasets: Sequence[DataSet],
    *,
    on_note: Callable[[str], None] = no_note,
    progress: Progress = no_progress,
) -> StudyRequest:
    """The study that the options ask for, over these data sets.

    `on_note` is called for each choice made for the user; `progress` while a data set is made.

    Raises:
        ConfigError: an unknown name, or a folder or device that does not exist.
    """
    subject, feed, step, effort = options.subject, options.feed, options.step, options.effort
    try:
        variants = [_variant(*data_set, progress) for data_set in datasets]
        loaders = _loaders(feed, first_formats(one.path for one in variants), on_note)
        decoders = [plugins.decoder_choice(name) for name in feed.decoder or ()]
    except UnavailableError as error:  # nothing is known of it, so that no case can be planned
        raise ConfigError(str(error)) from error
    targets = _targets(options, on_note)
    cache = ",".join(subject.cache or ()) or default_cache([one.path for one in variants], loaders)
    return StudyRequest(
        variants=variants,
        loaders=loaders,
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
        input_size=_input_size(step),
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
        scaling=[name for name, traits in plugins.DECODERS.known().items() if traits.scales],
        in_line=[name for name, traits in plugins.LOADERS.known().items() if traits.work == "in line"],
        reading_ahead=[name for name, traits in plugins.LOADERS.known().items() if traits.reads_ahead],
    )


def _variant(dataset: str | None, resolution: int | None, progress: Progress) -> Variant:
    """Where it lies. Raises ConfigError, before anything starts, where it holds no image."""
    path, name = resolve_dataset(dataset, resolution, progress=progress)
    if first_image(path) is None and record_of(path) is None:
        list_images(_as_called(path, dataset), Listing())  # says what the folder holds instead
    return Variant(path, name, resolution)


def _as_called(path: str, dataset: str | None) -> str:
    """The folder as the user called it: not by where a link leads, or a relative path begins."""
    if dataset is None or not os.path.isdir(dataset):  # noqa: PTH112
        return path
    return path.replace(os.path.realpath(dataset), dataset.rstrip("/"), 1)


def first_formats(folders: Iterable[str]) -> set[Format]:
    """The kinds of the first image of each folder: the measuring process looks at all (plugins.check_formats)."""
    found = [first_image(folder) for folder in folders]
    return {SUFFIXES[os.path.splitext(path)[1].lower()] for path in found if path is not None}  # noqa: PTH122


def _loaders(feed: FeedOptions, formats: set[Format], on_note: Callable[[str], None]) -> list[LoaderChoice]:
    """The loaders, with decoders for these formats; says once for each which decoder it must do without, unless the
    decoder was given."""
    loaders = [plugins.loader_choice(name, formats) for name in feed.loader or (plugins.DEFAULT_LOADER,)]
    if feed.decoder is None:
        for note in filter(None, map(plugins.passed_over, loaders)):
            on_note(note)
    return loaders


def _targets(options: Options, on_note: Callable[[str], None]) -> list[Target]:
    """What the batches are fed to: each model in each precision; the device's default where none was given."""
    step = options.step
    check_choice("--mode", step.mode, MODES)
    targets: list[Target] = []
    check_number(len(step.model), len(step.precision or [None]))
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
        targets.append(Target(model, choice.precision, choice.device, choice.traits.computes))
    return targets


def _input_size(step: StepOptions) -> int | None:
    """Side of the images; None: as they are stored.

    Raises:
        ConfigError: the shape is not that of square images with three channels, which is what loaders deliver.
    """
    if step.input_shape is None:
        return step.input_size or None
    if len(step.input_shape) != 3 or step.input_shape[0] != 3 or step.input_shape[1] != step.input_shape[2]:
        shape = ",".join(map(str, step.input_shape))
        raise ConfigError(f"--input-shape {shape}: loaders deliver square images with 3 channels, 3,S,S")
    side = step.input_shape[1]
    if step.input_size not in (StepOptions().input_size, side):
        raise ConfigError(f"--input-size {step.input_size} and --input-shape differ: leave --input-size out")
    return side


def default_cache(folders: Sequence[str], loaders: Sequence[LoaderChoice]) -> str:
    """`cold` where eviction can be checked, else `as-is`."""
    if not all(loader.traits.can_be_cold for loader in loaders):
        return "as-is"  # one state for the whole study
    return "cold" if all(map(can_prove_cold, folders)) else "as-is"

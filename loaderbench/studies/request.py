"""From the options of a study to its cases: finds the data sets, plug-ins and device on this machine."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loaderbench import plugins
from loaderbench.cases.arms import parse_arms
from loaderbench.cases.case import (
    CACHE_STATES,
    DECODE_SCALES,
    FIELDS,
    MODES,
    OPTIONS,
    OUTPUTS,
    PRECISIONS,
    SHORT_RUN_STEPS,
    Case,
    Subject,
)
from loaderbench.cases.study import (
    MIN_WORKER_LIMIT,
    MOST_SIDE,
    SCALED_PRECISIONS,
    WORKERS_PER_CPU,
    StudyOptions,
    check_choice,
    check_loss_scale,
    check_number,
    check_range,
    check_values,
)
from loaderbench.cases.traits import DecoderChoice, Format, LoaderChoice
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
Fields = Mapping[str, Any]
"""Fields of a case → their values."""
DEFAULT_RESOLUTION, DEFAULT_RESOLUTIONS = 256, (256, 512, 1024)
"""Default resolutions of the generated data set: of a run, of a sweep."""
ONE_OF_EACH = ("res", "loader", "decoder", "workers", "prefetch", "model", "precision", "batch_size")
"""Options that take only one value in a run."""


def no_progress(done: int, total: int) -> None:
    """Ignores progress."""


def no_note(note: str) -> None:
    """Ignores a note."""


def find_data_sets(
    dataset: Folder | Sequence[Folder] | None,
    options: StudyOptions,
    *,
    generated: Sequence[int] | None = None,
    progress: Progress = no_progress,
) -> list[Subject]:
    """What the cases will read: each data set at each resolution.

    Args:
        dataset: folder or name of a data set, or several; None: the generated set, which is made if need be.
        generated: resolutions of the generated set if the options give none; None: DEFAULT_RESOLUTION.
        progress: called while it is made.

    Raises:
        ConfigError: there is no such data set, or it holds no image.
    """
    if isinstance(dataset, str | os.PathLike):
        dataset = [dataset]
    sets = [None] if dataset is None else [os.fspath(one) for one in dataset]
    resolutions = options.res or (generated or [DEFAULT_RESOLUTION] if dataset is None else [None])
    found = []
    for one, resolution in itertools.product(sets, resolutions):
        try:
            path, name = resolve_dataset(one, resolution, progress=progress)
        except UnavailableError as error:
            raise ConfigError(str(error)) from error
        if first_image(path) is None and record_of(path) is None:
            list_images(_as_called(path, one), Listing())  # says what the folder holds instead
        found.append(Subject(path, name, resolution))
    return found


def _as_called(path: str, dataset: str | None) -> str:
    """The folder as the user called it: not by where a link leads, or a relative path begins."""
    if dataset is None or not os.path.isdir(dataset):  # noqa: PTH112
        return path
    return path.replace(os.path.realpath(dataset), dataset.rstrip("/"), 1)


def first_formats(folders: Iterable[str]) -> set[Format]:
    """The kinds of the first image of each folder: the measuring process looks at all (plugins.check_formats)."""
    found = [first_image(folder) for folder in folders]
    return {SUFFIXES[os.path.splitext(path)[1].lower()] for path in found if path is not None}  # noqa: PTH122


def plan(
    options: StudyOptions, subjects: Sequence[Subject], *, on_note: Say = no_note, cpus: int | None = None
) -> list[Case]:
    """All cases of a study over these data sets, repeats outermost so that each is spread over the whole time.

    The cases come in a random order, drawn by the seed anew for each repeat, so that a drift of the machine affects no
    setting more than others. A single one without a limit of time, steps or precision ends once its cause is decided;
    of several the rates are compared, so each is measured until it is known. A loader in the main process gives one
    case for the whole list of workers; a loader that uses none of our decoders gives one for the list of decoders.

    Args:
        on_note: called for each choice made for the user.
        cpus: how many CPUs the workers have; None: all that are usable.

    Raises:
        ConfigError: an unknown name, no such device, a value out of range, or a contradiction.
    """
    try:
        loaders = _loaders(options, first_formats(one.dataset for one in subjects), on_note)
        decoders: list[DecoderChoice | None] = [*map(plugins.decoder_choice, options.decoder or ())] or [None]
    except UnavailableError as error:  # nothing is known of it, so that no case can be planned
        raise ConfigError(str(error)) from error
    targets = _targets(options, on_note)
    cache = ",".join(options.cache or ()) or default_cache([one.dataset for one in subjects], loaders)
    fixed = {**_fixed(options), "cache": check_choice("--cache", cache, CACHE_STATES)}
    workers = [_workers(options.workers, loader, cpus or usable_cpus()) for loader in loaders]
    ratios = options.buffer_ratio or [None]
    lists = (subjects, targets, decoders, options.batch_size, options.prefetch, ratios)
    check_number(options.repeats, *map(len, lists), sum(map(len, workers)))
    feeds = [
        (loader, _feed(options, loader, decoder), numbers)
        for (loader, numbers), decoder in itertools.product(zip(loaders, workers, strict=True), decoders)
    ]
    _check_effect(options, loaders, [feed for _, feed, _ in feeds])
    axes = (subjects, targets, feeds, options.batch_size, options.prefetch, ratios)
    cases: list[Case] = []
    for repeat in range(options.repeats):
        once = [
            _buffered(
                Case.of(
                    {**vars(subject), **fixed, **target, **feed, "batch_size": batch_size, "prefetch": prefetch,
                     "workers": num_workers, "repeat": repeat}
                ),
                ratio, loader,
            )
            for subject, target, (loader, feed, numbers), batch_size, prefetch, ratio in itertools.product(*axes)
            for num_workers in numbers
        ]  # fmt: skip
        unique = list({case.key: case for case in once}.values())
        random.Random(f"{options.seed} {repeat}").shuffle(unique)
        cases += unique
    if len(cases) == 1 and options.steps is None and options.duration is None and options.ci_target is None:
        return [cases[0].changed(until_decided=True)]
    return cases


def _fixed(options: StudyOptions) -> Fields:
    """The fields that are alike in all cases: those of the options that take one value."""
    check_values(options)
    alike = {
        one.field: vars(options)[name]
        for name, one in OPTIONS.items()
        if one.field in FIELDS and not one.many and vars(options)[name] is not None
    }
    return {
        **alike,
        "arms": parse_arms(options.arms),
        "input_size": _input_size(options),
        "strict_duration": options.steps is not None and options.duration is not None,
    }


def _loaders(options: StudyOptions, formats: set[Format], on_note: Say) -> list[LoaderChoice]:
    """The loaders, with decoders for these formats; says once for each which decoder it must do without, unless the
    decoder was given."""
    loaders = [plugins.loader_choice(name, formats) for name in options.loader or (plugins.DEFAULT_LOADER,)]
    if options.decoder is None:
        for note in filter(None, map(plugins.passed_over, loaders)):
            on_note(note)
    return loaders


def _targets(options: StudyOptions, on_note: Say) -> list[Fields]:
    """What the batches are fed to: each model in each precision; the device's default if none was given."""
    mode = check_choice("--mode", options.mode, MODES)
    targets: list[Fields] = []
    check_number(len(options.model), len(options.precision or [None]))
    for model, precision in itertools.product(options.model, options.precision or [None]):
        if precision is not None:
            check_choice("--precision", precision, PRECISIONS)
        try:
            choice = parse_device(
                options.device, model=model, mode=mode, precision=precision, batch_size=min(options.batch_size)
            )
        except UnavailableError as error:
            raise ConfigError(str(error)) from error
        if choice.note and not targets:
            on_note(choice.note)
        scale = options.loss_scale if choice.precision in SCALED_PRECISIONS else None
        targets.append({"model": model, "precision": choice.precision, "device": choice.device, "loss_scale": scale})
    check_loss_scale(options.loss_scale, [one["precision"] for one in targets], mode, computes=choice.traits.computes)
    return targets


def _input_size(options: StudyOptions) -> int | None:
    """Side of the images; None: as they are stored.

    Raises:
        ConfigError: the shape is not that of square images with three channels, which is what loaders deliver.
    """
    size, shape = options.input_size or None, options.input_shape
    if shape is not None:
        if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2]:
            text = ",".join(map(str, shape))
            raise ConfigError(f"--input-shape {text}: loaders deliver square images with 3 channels, 3,S,S")
        if options.input_size not in (OPTIONS["input_size"].default, shape[1]):
            raise ConfigError(f"--input-size {options.input_size} and --input-shape differ: leave --input-size out")
        size = shape[1]
    check_range("--input-size", size, 32, MOST_SIDE)
    return size


def default_cache(folders: Sequence[str], loaders: Sequence[LoaderChoice]) -> str:
    """`cold` where eviction can be checked, else `as-is`."""
    if not all(loader.traits.can_be_cold for loader in loaders):
        return "as-is"  # one state for the whole study
    return "cold" if all(map(can_prove_cold, folders)) else "as-is"


def _workers(asked: Sequence[int] | None, loader: LoaderChoice, cpus: int) -> Sequence[int]:
    """The numbers of workers to try with this loader. Raises ConfigError for one that it cannot have."""
    in_line = loader.traits.work == "in line"
    limit = max(MIN_WORKER_LIMIT, WORKERS_PER_CPU * cpus)
    for workers in asked or ():
        if workers < 0:
            raise ConfigError(f"--workers must be 1 or more, not {workers}")
        if workers == 0 and not in_line:
            use = _or("loader", (name for name, one in plugins.LOADERS.known().items() if one.work == "in line"))
            raise ConfigError(f"--workers 0 is for a loader in the main process: use {use}, not {loader.name}")
        if workers > limit:
            raise ConfigError(f"--workers {workers} is more than this machine can run: at most {limit} here")
    return [0] if in_line else asked or [cpus]


def _feed(options: StudyOptions, loader: LoaderChoice, decoder: DecoderChoice | None) -> Fields:
    """The fields that depend on the loader and its decoder, which may be the loader's default (None)."""
    traits = loader.traits
    chosen = decoder or loader.decoder if traits.decodes == "ours" else None
    loader_options = dict(options.loader_option or {})
    if options.io_threads is not None and traits.reads_ahead:
        loader_options["io_threads"] = str(options.io_threads)
    return {
        "loader": loader.name,
        "decoder": None if chosen is None else chosen.name,
        "output": check_choice("--output", options.output or traits.output, OUTPUTS),
        "decode_scale": _decode_scale(options, chosen),
        "loader_options": loader_options,
    }


def _decode_scale(options: StudyOptions, decoder: DecoderChoice | None) -> str | None:
    asked = check_choice("--decode-scale", options.decode_scale or "off", DECODE_SCALES)
    if decoder is None or not decoder.traits.scales:
        return None
    other = (options.decoder_option or {}).get("scale")
    if other is None:
        return asked
    if options.decode_scale is not None:
        raise ConfigError("give --decode-scale or --decoder-option scale, not both")
    return check_choice("--decoder-option scale", other, DECODE_SCALES)


def _check_effect(options: StudyOptions, loaders: Sequence[LoaderChoice], feeds: Sequence[Fields]) -> None:
    """Raises ConfigError for an option that changes no case."""
    if options.decoder is not None and all(loader.traits.decodes != "ours" for loader in loaders):
        does = "decodes for itself" if loaders[0].traits.decodes == "own" else "does not decode"
        raise ConfigError(f"the loader {loaders[0].name} {does}: leave --decoder out, or choose another --loader")
    if options.decode_scale is not None and not any(feed["decode_scale"] for feed in feeds):
        found = sorted({feed["decoder"] or f"{feed['loader']} (decodes for itself)" for feed in feeds})
        use = _or("decoder", (name for name, traits in plugins.DECODERS.known().items() if traits.scales))
        raise ConfigError(f"--decode-scale needs a decoder that can scale: {use}, not {', '.join(found)}")
    if options.io_threads is not None and not any(loader.traits.reads_ahead for loader in loaders):
        use = _or("loader", (name for name, traits in plugins.LOADERS.known().items() if traits.reads_ahead))
        raise ConfigError(f"--io-threads is for {use}, not {', '.join(loader.name for loader in loaders)}")


def _or(option: str, names: Iterable[str]) -> str:
    return " or ".join(f"--{option} {name}" for name in names)


def _buffered(case: Case, ratio: float | None, loader: LoaderChoice) -> Case:
    """The case with short runs whose prefetch buffer is this part of their iterations; without workers there is no
    buffer."""
    if ratio is None or case.feed.workers == 0:
        return case
    num_batches = ratio * (case.effort.steps or SHORT_RUN_STEPS)
    of_one = loader.traits.buffer_batches(replace(case.feed, prefetch=1))
    return case.changed(buffer_ratio=ratio, prefetch=max(1, round(num_batches / of_one)))

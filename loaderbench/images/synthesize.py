"""Makes data sets of synthetic photographs: JPEGs that cost a decoder as much as real ones (painted by paint.py)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from loaderbench.cases.study import MOST_SEED, check_range
from loaderbench.errors import ConfigError
from loaderbench.images.files import exclusive, holds_foreign_files, read_record, replace_file
from loaderbench.images.variants import parse_resolution, variant_name

Progress = Callable[[int, int], None]
"""Called with (images done, images in all)."""

GENERATOR_VERSION = 1
"""Part of a data set's parameters: raise it when the same seed gives different pixels."""
MOST_IMAGES = 10**8
"""Of a data set that is made."""
RECORD_NAME = ".loaderbench-generated.json"
"""Parameters of a finished variant; `….partial` while it is being made."""


@dataclass(frozen=True)
class Recipe:
    """What determines an image, besides its size and number. Equal recipes give equal bytes."""

    seed: int = 0
    aspect_spread: float = 0.0
    """Standard deviation of log(width / height) around the nominal ratio; the pixel count stays."""
    quality_spread: int = 0
    """Qualities are uniform within ± this much of the resolution's own."""
    progressive_fraction: float = 0.0
    version: int = GENERATOR_VERSION


def make_dataset(
    out: str | Path,
    resolutions: Sequence[int | str],
    num_images: int,
    *,
    seed: int = 0,
    num_classes: int = 10,
    aspect_spread: float = 0.0,
    quality_spread: int = 0,
    progressive_fraction: float = 0.0,
    processes: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Path]:
    """Make `num_images` synthetic JPEGs for each resolution, as `out/<resolution>/<class>/<number>.jpg`.

    Equal arguments give equal bytes with one version of NumPy and Pillow, however many processes work.
    A finished variant is left as it is; an interrupted one is completed. Two processes may ask for the
    same folder: the second waits for the first. Returns each variant's folder by its name.

    Args:
        aspect_spread: standard deviation of log(width / height); the pixel count stays.
        quality_spread: the JPEG quality is uniform within ± this of the resolution's own.
        progressive_fraction: share of progressive files, 0 … 1.

    Raises:
        ConfigError: a bad argument; `out` holds a variant made with other ones, or cannot be written.
    """
    if not all(type(number) is int for number in (seed, num_images, num_classes, quality_spread)):
        raise TypeError("seed, num_images, num_classes and quality_spread must be whole numbers")
    _check_arguments(num_images, num_classes, aspect_spread, quality_spread, progressive_fraction, seed)
    recipe = Recipe(seed, abs(aspect_spread), quality_spread, progressive_fraction)  # of -0.0: numpy refuses it
    root = Path(out)
    sizes = {variant_name(*parse_resolution(token)): parse_resolution(token) for token in resolutions}
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Records appear in one step, so this needs no lock; unfinished variants are checked again under the lock.
        missing = [
            name
            for name in sizes
            if read_record(root / name / RECORD_NAME) != _parameters(name, num_images, num_classes, recipe)
        ]
        if missing:
            with exclusive(root / ".loaderbench-lock"):
                _make_variants(
                    root, {name: sizes[name] for name in missing}, num_images, num_classes, recipe, processes, progress
                )
    except OSError as error:
        raise ConfigError(f"cannot write the data set {root}: {error.strerror or error}") from error
    return {name: root / name for name in sizes}


def _check_arguments(
    num_images: int, num_classes: int, aspect_spread: float, quality_spread: int, progressive_fraction: float, seed: int
) -> None:
    check_range("--num-images", num_images, 1, MOST_IMAGES)
    check_range("--num-classes", num_classes, 1, MOST_IMAGES)
    check_range("--seed", seed, 0, MOST_SEED)
    if not 0 <= aspect_spread <= 1 or not 0 <= progressive_fraction <= 1 or not 0 <= quality_spread <= 50:
        raise ConfigError("aspect spread and progressive fraction must be 0 … 1, and quality spread 0 … 50")


def _parameters(name: str, num_images: int, num_classes: int, recipe: Recipe) -> dict[str, object]:
    return {"variant": name, "num_images": num_images, "num_classes": num_classes, **asdict(recipe)}


def _is_finished(folder: Path, parameters: dict[str, object]) -> bool:
    """True where the variant is complete; False where it is to be made or completed. Call it under the lock.

    Raises:
        ConfigError: the folder holds something else.
    """
    for record, finished in ((folder / RECORD_NAME, True), (folder / f"{RECORD_NAME}.partial", False)):
        found = read_record(record)
        if found == parameters:
            return finished
        if found is not None:
            differing = [key for key in parameters if found.get(key) != parameters[key]]
            details = ", ".join(f"{key} {found.get(key)} there, {parameters[key]} requested" for key in differing)
            raise ConfigError(f"{folder} was made with other parameters ({details}); remove it or choose another --out")
    if folder.exists() and holds_foreign_files(folder):
        raise ConfigError(f"{folder} holds files that this command did not make; choose another --out")
    return False


def _make_variants(
    root: Path,
    sizes: dict[str, tuple[int, int]],
    num_images: int,
    num_classes: int,
    recipe: Recipe,
    processes: int | None,
    progress: Progress | None,
) -> None:
    from loaderbench.images.paint import Job, make_image  # late: it needs numpy and Pillow
    from loaderbench.images.pool import run_parallel

    num_done, num_all = 0, num_images * len(sizes)
    for name, (width, height) in sizes.items():
        parameters = _parameters(name, num_images, num_classes, recipe)
        if _is_finished(root / name, parameters):  # another process made it while this one waited
            num_done += num_images
            continue
        (root / name).mkdir(exist_ok=True)
        record = root / name / RECORD_NAME
        partial_record = Path(f"{record}.partial")
        with replace_file(partial_record) as file:
            file.write(json.dumps(parameters).encode())
        classes = [root / name / f"class_{number:03d}" for number in range(min(num_classes, num_images))]
        for folder in classes:
            folder.mkdir(exist_ok=True)
        jobs = [
            Job(str(classes[number % len(classes)] / f"{number:06d}.jpg"), width, height, number, recipe)
            for number in range(num_images)
        ]
        for made in run_parallel(make_image, jobs, processes=processes):
            num_done += len(made)
            if progress:
                progress(num_done, num_all)
        partial_record.replace(record)

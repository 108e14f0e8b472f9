"""Resolution variants of the user's own images: resized, re-encoded, classes and names kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from loaderbench.decoders.base import DecodeError
from loaderbench.decoders.pillow import as_rgb, open_image
from loaderbench.errors import ConfigError
from loaderbench.images.files import exclusive, holds_foreign_files, read_record, replace_file
from loaderbench.images.formats import SUFFIXES
from loaderbench.images.index import index_images
from loaderbench.images.jpeg import too_large
from loaderbench.images.pool import run_parallel
from loaderbench.images.variants import find_variants

Progress = Callable[[int, int], None]

RECORD_NAME = ".loaderbench-derived.json"
DEFAULT_QUALITY = 95
LONGEST_SIDE = 65500
"""JPEG_MAX_DIMENSION of libjpeg."""
FLAT_CLASS = "all"
"""Class folder of the images of a flat source folder: a variant holds class folders."""


@dataclass(frozen=True)
class DerivedDataset:
    """What `derive_dataset` made."""

    variants: dict[int, Path]
    num_made: int
    """Files written now."""
    num_kept: int
    """Files that an earlier call had written."""
    num_upscaled: int
    """Files written now whose source's shorter side was smaller than the variant's."""
    broken: list[tuple[str, str]] = field(default_factory=list)
    """(source path, reason) of images that could not be decoded, or not be written; nothing was made of them."""


@dataclass(frozen=True)
class _Job:
    source: str
    targets: tuple[tuple[int, str], ...]
    """(shorter side, path) for each variant."""
    quality: int


@dataclass(frozen=True)
class _Outcome:
    num_made: int = 0
    num_kept: int = 0
    num_upscaled: int = 0
    broken: tuple[str, str] | None = None


def _derive_image(job: _Job) -> _Outcome:
    """All variants of one image: read and decoded once, each resized from the original."""
    missing = [(side, path) for side, path in job.targets if not os.path.exists(path)]  # noqa: PTH110
    num_kept = len(job.targets) - len(missing)
    if not missing:
        return _Outcome(num_kept=num_kept)
    try:
        with open_image(Path(job.source).read_bytes()) as opened:
            opened.load()
            icc_profile = opened.info.get("icc_profile")
            image = opened if opened.mode in ("RGB", "L") else as_rgb(opened)
    except (DecodeError, OSError, ValueError, SyntaxError) as error:  # all that Pillow raises
        return _Outcome(num_kept=num_kept, broken=(job.source, str(error)))
    num_upscaled = 0
    sizes = {side: _resized(image.size, side) for side, _ in missing}
    for side, size in sizes.items():
        if reason := _unwritable(*size):  # in none of the variants, which hold the same images
            return _Outcome(num_kept=num_kept, broken=(job.source, f"at {side} it would be {reason}"))
    for side, path in missing:
        num_upscaled += side > min(image.size)
        resized = image.resize(sizes[side], Image.Resampling.BICUBIC)
        try:
            with replace_file(path) as file:
                resized.save(file, "JPEG", quality=job.quality, icc_profile=icc_profile)
        except OSError as error:
            if error.errno is not None:  # the disk's, not the encoder's
                raise
            return _Outcome(num_kept=num_kept, broken=(job.source, f"cannot be written at {side}: {error}"))
    return _Outcome(len(missing), num_kept, num_upscaled)


def _resized(size: tuple[int, int], side: int) -> tuple[int, int]:
    """(width, height) with the shorter one `side`."""
    width, height = size
    scale = side / min(size)
    return max(side, round(width * scale)), max(side, round(height * scale))


def _unwritable(width: int, height: int) -> str | None:
    if max(width, height) > LONGEST_SIDE:
        return f"{width}×{height}, but a JPEG side has at most {LONGEST_SIDE:,} pixels"
    return too_large(width, height)


def derive_dataset(
    src: str | Path,
    resolutions: Sequence[int],
    out: str | Path,
    *,
    quality: int = DEFAULT_QUALITY,
    processes: int | None = None,
    progress: Progress | None = None,
) -> DerivedDataset:
    """Resize every image of `src` so that its shorter side is N, for each N, into `out/N/<class>/<name>`.

    Bicubic with antialiasing, JPEG at `quality`, 4:2:0, baseline. EXIF orientation is not applied and
    EXIF is not kept: pixels stay as a loader would see the source's. Broken images, and those that would be
    too large for a JPEG, are counted and listed. An interrupted call is completed by the next one.

    Raises:
        ConfigError: `src` holds no image; `out` lies in `src`, was made from something else, or cannot be written.
    """
    if found := find_variants(src):
        known = ", ".join(str(side) for side in found)
        raise ConfigError(
            f"{src} is a set of resolution variants ({known}); give one of them, such as {src}/{max(found)}"
        )
    index = index_images(str(src))
    root = Path(out).resolve()
    wanted = sorted(set(resolutions))
    if not wanted or not all(16 <= side <= LONGEST_SIDE for side in wanted) or not 1 <= quality <= 100:
        raise ConfigError(f"resolutions must be whole numbers from 16 to {LONGEST_SIDE}, and quality from 1 to 100")
    if root == Path(index.root) or root.is_relative_to(index.root):
        raise ConfigError(f"--out {root} lies inside the source {index.root}; choose a folder outside it")
    try:
        for side in wanted:
            (root / str(side)).mkdir(parents=True, exist_ok=True)
        with exclusive(root / ".loaderbench-lock"):
            for side in wanted:
                _claim(root / str(side), {"source": index.root, "resolution": side, "quality": quality})
            flat = index.classes == ("",)
            jobs = []
            for path in index.paths():
                name = os.path.relpath(path, index.root)
                name = os.path.join(FLAT_CLASS, name) if flat else name
                name = name if SUFFIXES[Path(name).suffix.lower()] == "jpeg" else f"{name}.jpg"
                jobs.append(_Job(path, tuple((side, str(root / str(side) / name)) for side in wanted), quality))
            for folder in sorted({os.path.dirname(target) for job in jobs for _, target in job.targets}):
                Path(folder).mkdir(parents=True, exist_ok=True)
            outcomes: list[_Outcome] = []
            for part in run_parallel(_derive_image, jobs, processes=processes):
                outcomes += part
                if progress:
                    progress(len(outcomes), len(jobs))
    except OSError as error:
        raise ConfigError(f"cannot write the data set {root}: {error.strerror or error}") from error
    return DerivedDataset(
        variants={side: root / str(side) for side in wanted},
        num_made=sum(outcome.num_made for outcome in outcomes),
        num_kept=sum(outcome.num_kept for outcome in outcomes),
        num_upscaled=sum(outcome.num_upscaled for outcome in outcomes),
        broken=sorted(outcome.broken for outcome in outcomes if outcome.broken),
    )


def _claim(folder: Path, parameters: dict[str, object]) -> None:
    """Write down what the variant is made from, or check that it is the same."""
    record = folder / RECORD_NAME
    found = read_record(record)
    if found is not None:
        if found != parameters:
            raise ConfigError(f"{folder} was derived with other settings ({found}); remove it or choose another --out")
    elif holds_foreign_files(folder):
        raise ConfigError(f"{folder} holds files that this command did not make; choose another --out")
    else:
        with replace_file(record) as file:
            file.write(json.dumps(parameters).encode())

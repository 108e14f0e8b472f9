"""Paints synthetic photographs.

Pixels follow the dead-leaves model: opaque objects whose sizes obey a power law p(r) ~ r^-3 hide each
other, which gives the 1/f² power spectrum and the edges of natural scenes (Lee, Mumford, Huang,
"Occlusion models for natural images", IJCV 2001). Each object carries a 1/f texture and a colour of the
image's palette; shading, lens blur and sensor noise follow. How well this matches real photographs is
tested in tests/images/test_synthesize.py and measured in benchmarks/decode_realism.py.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from loaderbench.images.files import replace_file

if TYPE_CHECKING:
    from loaderbench.images.synthesize import Recipe

TEXTURE_SIDE = 512
TEXTURE_PIXELS = TEXTURE_SIDE * TEXTURE_SIDE
NUM_TEXTURES = 16
PIXELS_AT_ONCE = 1 << 16
"""That are coloured at a time."""
SMALLEST_RADIUS = 2.5
"""Pixels; smaller objects are texture."""


@dataclass(frozen=True)
class Encoding:
    """How images of one size are encoded so that their mean size is what users have."""

    quality: int
    """Pillow's quality at which real photographs of this size reach the target."""
    smoothness: float
    """Scale at which synthetic photographs reach it: with it their smallest objects grow and their textures fade."""


ENCODINGS = {
    (256, 256): Encoding(96, 1.245),
    (500, 375): Encoding(98, 1.89),
    (512, 512): Encoding(97, 2.0),
    (1024, 1024): Encoding(95, 2.0),
    (2048, 2048): Encoding(94, 1.52),
}


@lru_cache(maxsize=2)
def _textures(seed: int) -> NDArray[np.float32]:
    """float32 [NUM_TEXTURES · TEXTURE_SIDE²], flat: periodic noise, mean 0, standard deviation 1."""
    rng = np.random.default_rng([seed, 1])
    frequency_y = np.fft.fftfreq(TEXTURE_SIDE)[:, None]
    frequency_x = np.fft.rfftfreq(TEXTURE_SIDE)[None, :]
    made = []
    for number in range(NUM_TEXTURES):
        slope = 0.7 + 1.0 * number / (NUM_TEXTURES - 1)
        stretch, angle = 2.0 ** rng.uniform(0, 1.5), rng.uniform(0, math.pi)
        along = frequency_x * math.cos(angle) + frequency_y * math.sin(angle)
        across = frequency_y * math.cos(angle) - frequency_x * math.sin(angle)
        radius = np.hypot(along * stretch, across / stretch)
        radius[0, 0] = np.inf
        white = np.fft.rfft2(rng.standard_normal((TEXTURE_SIDE, TEXTURE_SIDE)))
        noise = np.fft.irfft2(white * radius**-slope, s=(TEXTURE_SIDE, TEXTURE_SIDE))
        noise /= noise.std()
        if number % 2:  # sparse marks on a smooth ground, as in gravel, leaves and print
            noise = np.sign(noise) * np.abs(noise) ** 1.5
        noise -= noise.mean()
        made.append((noise / noise.std()).clip(-4, 4).astype(np.float32).ravel())
    return np.concatenate(made)


def _draw_objects(rng: np.random.Generator, width: int, height: int, smallest: float) -> tuple[NDArray[np.int32], int]:
    """Which object each pixel shows, [height, width], and how many objects there are."""
    largest = 0.5 * math.sqrt(width * height)
    smallest = min(smallest, largest / 4)
    # p(r) ~ r^-3 covers each octave of sizes equally; twice the image's area is drawn.
    mean_area = 2 * math.pi * smallest**2 * math.log(largest / smallest)
    num_objects = int(2.0 * width * height / mean_area)
    radius = smallest / np.sqrt(1 - rng.random(num_objects) * (1 - (smallest / largest) ** 2))
    centre_x, centre_y = rng.random(num_objects) * width, rng.random(num_objects) * height
    stretch = np.exp(rng.normal(0, 0.4, num_objects))
    num_corners = rng.integers(3, 8, num_objects)
    turn = rng.random(num_objects) * 2 * math.pi
    canvas = Image.new("I", (width, height))
    draw = ImageDraw.Draw(canvas).draw  # what draws, without the 2 µs a call of looking up a colour
    half_x, half_y = radius * stretch, radius / stretch
    boxes = np.stack([centre_x - half_x, centre_y - half_y, centre_x + half_x, centre_y + half_y], 1).tolist()
    angles = turn[:, None] + np.arange(7) * (2 * math.pi / num_corners)[:, None]
    corner_x = centre_x[:, None] + half_x[:, None] * np.cos(angles)
    corner_y = centre_y[:, None] + half_y[:, None] * np.sin(angles)
    corners = np.stack([corner_x, corner_y], 2).reshape(num_objects, 14).tolist()
    for number, (box, polygon, num) in enumerate(zip(boxes, corners, num_corners.tolist(), strict=True)):
        if number % 2:
            draw.draw_ellipse(box, number + 1, 1)
        else:
            draw.draw_polygon(polygon[: 2 * num], number + 1, 1)
    return np.asarray(canvas), num_objects + 1


@dataclass(frozen=True)
class _Looks:
    """How each object looks, by its number."""

    begins: NDArray[np.int32]
    """Where in the textures its own begins."""
    strength: NDArray[np.float32]
    brightness: NDArray[np.float32]
    colours: NDArray[np.float32]
    """[2, N]: Cb, Cr."""


def paint(rng: np.random.Generator, width: int, height: int, seed: int, smoothness: float) -> Image.Image:
    """One synthetic photograph, mode YCbCr."""
    scene = smoothness * math.exp(rng.normal(0, 0.5))
    objects, num = _draw_objects(rng, width, height, SMALLEST_RADIUS * scene)
    begins = rng.integers(0, TEXTURE_PIXELS, num, dtype=np.int32)
    begins += rng.integers(0, NUM_TEXTURES, num, dtype=np.int32) * TEXTURE_PIXELS
    strength = (10 / scene * np.exp(rng.normal(-0.5, 1.0, num))).clip(0, 45).astype(np.float32)
    brightness = rng.normal(rng.uniform(85, 150), rng.uniform(25, 55), num).clip(2, 253).astype(np.float32)
    slope_x, slope_y = rng.normal(0, 20, 2).astype(np.float32)
    blur = ImageFilter.GaussianBlur(rng.uniform(0.4, 0.8))
    palette = rng.normal(0, 14, (5, 2)) + np.array([-4, 4])
    colours = (128 + palette[rng.integers(0, 5, num)] + rng.normal(0, 4, (num, 2))).astype(np.float32)
    looks = _Looks(begins, strength, brightness, np.ascontiguousarray(colours.T))
    across = np.linspace(-slope_x, slope_x, width, dtype=np.float32)
    down = np.linspace(-slope_y, slope_y, height, dtype=np.float32)[:, None]
    luma, chroma = _fill(objects, looks, _textures(seed), across, down)
    y = Image.fromarray(luma).filter(blur)
    cb, cr = (Image.fromarray(one).filter(blur).resize((width, height), Image.Resampling.BILINEAR) for one in chroma)
    return Image.merge("YCbCr", [y, cb, cr])


def _fill(
    objects: NDArray[np.int32],
    looks: _Looks,
    textures: NDArray[np.float32],
    across: NDArray[np.float32],
    down: NDArray[np.float32],
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The pixels: luma [height, width], and Cb and Cr at half resolution, since 4:2:0 encoding averages 2×2 anyway.
    `across`, `down`: the shading.

    A few rows at a time, which stay in the processor's cache. `take` with `clip` takes half as long as an index in
    brackets, which is checked.
    """
    height, width = objects.shape
    luma = np.empty((height, width), dtype=np.uint8)
    chroma = np.empty((2, (height + 1) // 2, (width + 1) // 2), dtype=np.uint8)
    num_rows = max(2, PIXELS_AT_ONCE // width // 2 * 2)
    columns = np.arange(width, dtype=np.int32)
    for top in range(0, height, num_rows):
        rows = slice(top, top + num_rows)
        index = objects[rows].astype(np.intp)
        # An offset wraps within its texture, for the noise is periodic: the seam is one row's shift.
        begin = looks.begins.take(index, mode="clip")
        position: NDArray[Any] = np.arange(top, top + len(index), dtype=np.int32)[:, None] * TEXTURE_SIDE + columns
        position += begin
        position ^= begin  # the texture is that of `begin`, whatever was carried
        position &= TEXTURE_PIXELS - 1
        position ^= begin
        texture = textures.take(position, mode="clip")
        values = looks.strength.take(index, mode="clip")
        tint = np.float32(0.12) * values[::2, ::2]
        tint *= texture[::2, ::2]
        values *= texture
        values += looks.brightness.take(index, mode="clip")
        values += across
        values += down[rows]
        luma[rows] = values.clip(0, 255, out=values)
        small = np.ascontiguousarray(index[::2, ::2])
        halves = slice(top // 2, top // 2 + len(small))
        for plane, colour, shift in zip(chroma, looks.colours, (np.subtract, np.add), strict=True):
            plane[halves] = shift(colour.take(small, mode="clip"), tint).clip(0, 255)
    return luma, chroma


def encoding_for(width: int, height: int) -> Encoding:
    """The table's encoding, or one interpolated over the logarithm of the pixel count (squares only)."""
    if (width, height) in ENCODINGS:
        return ENCODINGS[width, height]
    squares = sorted((side, encoding) for (side, other), encoding in ENCODINGS.items() if side == other)
    sides = np.log([side for side, _ in squares])
    at = 0.5 * math.log(width * height)
    quality = np.interp(at, sides, [encoding.quality for _, encoding in squares])
    smoothness = np.interp(at, sides, [encoding.smoothness for _, encoding in squares])
    return Encoding(round(float(quality)), float(smoothness))


@dataclass(frozen=True)
class Job:
    """One image to make."""

    path: str
    width: int
    height: int
    number: int
    recipe: Recipe


def make_image(job: Job) -> None:
    """Write the image, unless it is there. Raises OSError."""
    if os.path.exists(job.path):  # noqa: PTH110 - of a run that was interrupted
        return
    encoding, recipe = encoding_for(job.width, job.height), job.recipe
    rng = np.random.default_rng([recipe.seed, job.width, job.height, job.number])
    stretch = math.exp(0.5 * rng.normal(0, recipe.aspect_spread))
    quality = encoding.quality + int(rng.integers(-recipe.quality_spread, recipe.quality_spread + 1))
    progressive = bool(rng.random() < recipe.progressive_fraction)
    width, height = max(16, round(job.width * stretch)), max(16, round(job.height / stretch))
    image = paint(rng, width, height, recipe.seed, encoding.smoothness)
    with replace_file(job.path) as file:
        image.save(file, "JPEG", quality=min(quality, 100), subsampling="4:2:0", progressive=progressive)

"""The decoder in C: the crops of transform.py, Pillow's pixels, and no byte outside its buffers for any input."""

from __future__ import annotations

import ctypes
import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pictures import encode, many_scans
from PIL import Image

from loaderbench import native, plugins
from loaderbench.decoders import libjpeg
from loaderbench.decoders.base import FillingDecoder, Geometry, Recipe, Stopped
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.loaders.transform import (
    CROP_RATIO,
    CROP_SCALE,
    FLIP_PROBABILITY,
    SampleRandom,
    infer_geometry,
    train_geometry,
)

SIDE = 224


@pytest.fixture(autouse=True)
def _can_be_built() -> None:
    try:
        libjpeg.build(libjpeg.Options())
    except UnavailableError as error:
        pytest.skip(str(error))


def recipe(**changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "crop_scale": CROP_SCALE, "log_ratio": tuple(np.log(CROP_RATIO)), "crop_ratio": CROP_RATIO,
        "flip_probability": FLIP_PROBABILITY, "seed": 3, "train": True, "whole": False, "short_side": 256,
        "height": SIDE, "width": SIDE, "evict": False,
    }  # fmt: skip
    return Recipe(**{**values, **changes})


def fill(files: list[bytes], scale: str = "off", first: int = 0, **changes: Any) -> tuple[Any, NDArray[np.uint8]]:
    """What the filler says, and the samples: sample i is of index first + i in epoch 1."""
    made = recipe(**changes)
    slots = np.zeros((len(files), made.height, made.width, 3), dtype=np.uint8)
    filler = libjpeg.build(libjpeg.Options(scale)).slot_filler(made)
    indices, epochs = np.arange(first, first + len(files)), np.ones(len(files), dtype=np.int64)
    return filler.fill(files, indices, epochs, slots, in_memory=True), slots


def by_pillow(encoded: bytes, geometry: Geometry) -> NDArray[np.int64]:
    """The sample as Pillow makes it: whole decode, crop, resize, mirror."""
    top, left, height, width, resized_height, resized_width, window_top, window_left, flip = geometry
    image = Image.open(io.BytesIO(encoded)).convert("RGB").crop((left, top, left + width, top + height))
    image = image.resize((resized_width, resized_height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)[window_top : window_top + SIDE, window_left : window_left + SIDE]
    return (pixels[:, ::-1] if flip else pixels).astype(np.int64)


def psnr_db(a: NDArray[Any], b: NDArray[Any]) -> float:
    """10 log10(255² ÷ mean squared difference)."""
    error = float(((a.astype(float) - b) ** 2).mean())
    return 10 * np.log10(255**2 / error) if error else np.inf


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
def test_crops_are_those_of_the_transform_to_the_digit(train: bool) -> None:
    class Box(ctypes.Structure):
        _fields_ = [(name, ctypes.c_int) for name in Geometry._fields]

    library, found, made = libjpeg.library(), Box(), libjpeg.c_recipe(recipe(train=train), "off")
    random = np.random.default_rng(0)
    for index in range(4000):
        height, width = (int(side) for side in random.integers(1, 6000, 2))
        library.lb_choose(ctypes.byref(made), height, width, index % 5, index, ctypes.byref(found))
        if train:
            expected = train_geometry(height, width, SIDE, SampleRandom(3, index % 5, index))
        else:
            expected = infer_geometry(height, width, SIDE)
        assert tuple(getattr(found, name) for name in Geometry._fields) == tuple(map(int, expected)), (height, width)


OPTIONS = [
    {}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}, {"quality": 50}, {"restart_marker_rows": 1},
]  # fmt: skip


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_region_has_the_pixels_of_the_whole_picture(
    photographs: list[NDArray[np.uint8]], options: dict[str, Any], train: bool
) -> None:
    for photograph in photographs:
        for pixels in (photograph, photograph[:301, :203], photograph[..., 0]):
            encoded = encode(np.ascontiguousarray(pixels), **options)
            filled, slots = fill([encoded] * 6, train=train)
            assert filled.num_made == 6
            for index, sample in enumerate(slots):
                height, width = pixels.shape[:2]
                random = SampleRandom(3, 1, index)
                geometry = train_geometry(height, width, SIDE, random) if train else infer_geometry(height, width, SIDE)
                difference = np.abs(by_pillow(encoded, geometry) - sample)
                assert difference.mean() <= 0.3  # levels
                assert difference.max() <= 2


@pytest.mark.parametrize("side", [224, 64, 16, 3, 1])
def test_a_picture_shrunk_by_any_factor_keeps_its_brightness(side: int) -> None:
    decoder = libjpeg.build(libjpeg.Options())
    sample = np.empty((side, side, 3), np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, (4096, 2048, 3), dtype=np.uint8)
    for pixels in (noise, *(np.full_like(noise, value) for value in (0, 1, 128, 255))):
        decoder.crop_resize(pixels, Geometry(0, 0, 4096, 2048, side, side, 0, 0, False), sample)
        whole = np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BILINEAR), dtype=float)
        assert np.abs(whole - sample).max() <= (1 if pixels is noise else 0)


def test_scaling_keeps_the_picture(photographs: list[NDArray[np.uint8]]) -> None:
    values = []
    for photograph in photographs:
        large = np.asarray(Image.fromarray(photograph).resize((2048, 1536), Image.Resampling.LANCZOS))
        encoded = encode(large)
        filled, scaled = fill([encoded] * 16, scale="auto")
        assert filled.num_made == 16
        for index, sample in enumerate(scaled):
            geometry = train_geometry(1536, 2048, SIDE, SampleRandom(3, 1, index))
            if min(geometry.height, geometry.width) >= 2 * SIDE:  # decoded at half its size or less
                values.append(psnr_db(by_pillow(encoded, geometry), sample))
            else:
                assert np.abs(by_pillow(encoded, geometry) - sample).mean() <= 0.3
    assert len(values) > 20
    assert np.median(values) > 38
    assert min(values) > 32


@pytest.mark.parametrize(("side", "is_scaled"), [(512, True), (511, False)])
def test_scaling_never_goes_below_the_sample(photographs: list[NDArray[np.uint8]], side: int, is_scaled: bool) -> None:
    encoded = encode(np.ascontiguousarray(photographs[0][:side, :side]))  # the shorter side becomes 256: half of 512
    (_, whole), (_, scaled) = (fill([encoded], scale=scale, train=False) for scale in ("off", "auto"))
    assert np.array_equal(whole, scaled) is not is_scaled


def test_what_cannot_be_made_stops_the_filling_and_says_why(
    photographs: list[NDArray[np.uint8]], tmp_path: Path
) -> None:
    good = encode(photographs[0])
    buffer = io.BytesIO()
    Image.fromarray(photographs[0]).convert("CMYK").save(buffer, "JPEG")
    for bad, stopped, reason in (
        (b"", Stopped.BROKEN, "empty file"),
        (b"text" * 99, Stopped.BROKEN, "Not a JPEG file"),
        (good[: len(good) // 2], Stopped.BROKEN, "premature end"),
        (good[: len(good) // 2] + bytes(len(good) // 2), Stopped.BROKEN, "premature end"),
        (many_scans(4000, 300), Stopped.BROKEN, "too costly to decode: 300 scans of 4000×4000 pixels"),
        (buffer.getvalue(), Stopped.NOT_HERE, "CMYK"),
    ):
        filled, slots = fill([good, bad, good])
        assert (filled.num_made, filled.stopped) == (1, stopped)
        assert reason in filled.reason
        assert slots[0].any()
        assert not slots[2].any()
    filled, _ = fill([good], whole=True)
    assert (filled.stopped, filled.size) == (Stopped.WRONG_SIZE, photographs[0].shape[:2])
    filler = libjpeg.build(libjpeg.Options()).slot_filler(recipe())
    one, out = np.zeros(1, dtype=np.int64), np.zeros((1, SIDE, SIDE, 3), dtype=np.uint8)
    filled = filler.fill([os.fsencode(tmp_path / "gone.jpg")], one, one, out, in_memory=False)
    assert (filled.num_made, filled.stopped) == (0, Stopped.UNREADABLE)
    assert filled.error_number == 2  # ENOENT


def test_bytes_and_pages_of_what_was_read_are_counted(photographs: list[NDArray[np.uint8]], tmp_path: Path) -> None:
    good = encode(photographs[0])
    for name, content in (("a.jpg", good), ("b.jpg", good[:5000])):
        (tmp_path / name).write_bytes(content)
    files = [os.fsencode(tmp_path / name) for name in ("a.jpg", "b.jpg")]
    slots, zeros = np.zeros((2, SIDE, SIDE, 3), dtype=np.uint8), np.zeros(2, dtype=np.int64)
    filled = libjpeg.build(libjpeg.Options()).slot_filler(recipe()).fill(files, zeros, zeros, slots, in_memory=False)
    assert filled.num_made == 1
    assert filled.encoded_bytes == len(good) + 5000
    assert filled.page_bytes == -(-len(good) // 4096) * 4096 + 8192
    assert min(filled.read_ns, filled.decode_ns, filled.augment_ns) > 0


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match="auto, off"):
        plugins.parse_options(libjpeg, {"scale": "half"})
    assert isinstance(libjpeg.build(libjpeg.Options("auto")), FillingDecoder)


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    libjpeg.library.cache_clear()
    try:
        with pytest.raises(UnavailableError, match="apt-get install gcc libjpeg62-turbo-dev") as caught:
            libjpeg.build(libjpeg.Options())
        assert "\n" not in str(caught.value)
    finally:
        libjpeg.library.cache_clear()


# -- broken files under a sanitizer ----------------------------------------------------------------------

FUZZ = r"""
#include <inttypes.h>
int main(int argc, char **argv) {
    maker *m = lb_new();
    recipe r = {.crop_scale = {0.08, 1}, .log_ratio = {-0.2876, 0.2876}, .crop_ratio = {0.75, 1.3333},
                .flip_probability = 0.5, .train = 1, .short_side = 64, .height = 56, .width = 56};
    uint8_t *out = malloc(56 * 56 * 3);
    int made = 0, broken = 0;
    srand(7);
    for (int f = 1; f < argc; f++) {
        FILE *file = fopen(argv[f], "rb");
        fseek(file, 0, SEEK_END);
        size_t size = (size_t)ftell(file);
        rewind(file);
        uint8_t *whole = malloc(size);
        if (fread(whole, 1, size, file) != size) return 2;
        fclose(file);
        for (int turn = 0; turn < 400; turn++) {
            size_t length = turn % 3 ? size : (size_t)rand() % size;
            uint8_t *data = malloc(length + !length); /* of the exact length: a byte beyond it is found */
            memcpy(data, whole, length);
            for (int k = turn % 3 ? 1 + rand() % 8 : 0; k > 0; k--) {
                size_t header = turn % 2 && length > 700 ? 700 : length;
                data[(size_t)rand() % header] ^= (uint8_t)(1 << rand() % 8);
            }
            report told;
            int64_t size64 = (int64_t)length, index = turn, epoch = f;
            const uint8_t *at = data;
            r.scale = turn & 1;
            r.train = turn & 2;
            if (lb_make(m, &r, 1, NULL, &at, &size64, &index, &epoch, out, NULL, &told)) made++;
            else if (told.status == BROKEN || told.status == FOREIGN_COLOURS) broken++;
            else return 3;
            if (lb_size(m, data, length, &told) == MADE && (int64_t)told.height * told.width < 4000000) {
                uint8_t *pixels = malloc((size_t)told.height * (size_t)told.width * 3);
                lb_decode(m, data, length, pixels, &told);
                free(pixels);
            }
            free(data);
        }
        free(whole);
    }
    lb_free(m);
    free(out);
    printf("%d %d\n", made, broken);
    return 0;
}
"""


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The C file as a program that spoils the JPEGs it is given, under AddressSanitizer and UBSan."""
    try:
        compiler = native.compiler()
    except UnavailableError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("fuzz")
    source, program = folder / "fuzz.c", folder / "fuzz"
    flags = [*libjpeg.FLAGS, "-g", "-O1", "-std=gnu11", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

    def compiled(text: str) -> subprocess.CompletedProcess[bytes]:
        source.write_text(text)
        command = [*compiler, *flags, str(source), "-o", str(program), "-ljpeg", "-lm"]
        return subprocess.run(command, capture_output=True)

    if (done := compiled("int main(void) { return 0; }")).returncode:
        pytest.skip(f"{compiler[0]} has no sanitizers here: {done.stderr.decode().splitlines()[-1]}")
    done = compiled(libjpeg.SOURCE.read_text() + FUZZ)
    assert done.returncode == 0, done.stderr.decode()
    yield program
    shutil.rmtree(folder)


@pytest.mark.slow
def test_no_broken_file_reaches_outside_the_buffers(
    fuzzer: Path, photographs: list[NDArray[np.uint8]], tmp_path: Path
) -> None:
    files = []
    for number, options in enumerate([*OPTIONS, {"subsampling": 2, "optimize": True}]):
        pixels = photographs[number % len(photographs)][: 120 + 31 * number, : 160 + 17 * number]
        files.append(tmp_path / f"{number}.jpg")
        files[-1].write_bytes(encode(np.ascontiguousarray(pixels), **options))
    for mode in ("L", "CMYK"):
        files.append(tmp_path / f"{mode}.jpg")
        Image.fromarray(photographs[1][:99, :77]).convert(mode).save(files[-1], "JPEG")
    done = subprocess.run([str(fuzzer), *map(str, files)], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    made, broken = map(int, done.stdout.split())
    assert made + broken == 400 * len(files)
    assert min(made, broken) > 300  # both kinds were met

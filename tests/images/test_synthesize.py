import hashlib
import os
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from functools import cache
from pathlib import Path

import numpy as np
import psutil
import pytest
from jpeg_coefficients import count_coefficients
from photographs import encode, real_images
from PIL import Image

from loaderbench.errors import ConfigError
from loaderbench.images.paint import ENCODINGS, _fill, _Looks, encoding_for, paint
from loaderbench.images.scan import scan_dataset
from loaderbench.images.synthesize import RECORD_NAME, make_dataset
from loaderbench.images.variants import parse_resolution

TARGET_KB = {(256, 256): 35, (500, 375): 104, (512, 512): 121, (1024, 1024): 373, (2048, 2048): 1365}
"""Mean file sizes of data sets in use (the issue's figures)."""


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*.jpg"))
    }


@cache
def synthetic(width: int, height: int, number: int) -> bytes:
    """An image as it is made, encoded."""
    encoding = encoding_for(width, height)
    image = paint(np.random.default_rng([9, number]), width, height, 9, encoding.smoothness)
    return encode(image, encoding.quality)


def mean_bits_and_coefficients(encoded: list[bytes]) -> tuple[float, float]:
    """Mean bits per pixel and nonzero quantized coefficients per pixel."""
    counts = [count_coefficients(data) for data in encoded]
    num_pixels = sum(count.num_pixels for count in counts)
    return 8 * sum(map(len, encoded)) / num_pixels, sum(count.num_nonzero for count in counts) / num_pixels


def test_the_coefficient_counter_agrees_with_a_transform_done_by_hand() -> None:
    # Given a grey image of known blocks: one pure cosine each, far above the quantizer's step.
    across = np.cos((2 * np.arange(8) + 1) * 3 * np.pi / 16)
    image = Image.fromarray(np.tile((128 + 100 * across).round().astype(np.uint8), (16, 2)))
    # When it is encoded, then each of the 4 blocks holds that one coefficient; the mean is DC 0.
    assert count_coefficients(encode(image, 50)).num_nonzero == 4


@pytest.mark.parametrize(
    "size",
    [
        (256, 256),
        pytest.param((500, 375), marks=pytest.mark.slow),
        pytest.param((512, 512), marks=pytest.mark.slow),
        pytest.param((1024, 1024), marks=pytest.mark.slow),
    ],
)
def test_bits_and_coefficients_are_those_of_real_photographs(size: tuple[int, int]) -> None:
    # Given real and synthetic images of one size
    width, height = size
    real = real_images(width, height)
    num_images = 20 * 256 * 256 // (width * height) + 8
    bits, coefficients = mean_bits_and_coefficients([synthetic(*size, number) for number in range(num_images)])
    # When the real ones are encoded at the same quality, then bits per pixel are within 15 %
    real_bits, _ = mean_bits_and_coefficients([encode(image, ENCODINGS[size].quality) for image in real])
    assert bits / real_bits == pytest.approx(1, abs=0.15)

    # and when they are encoded to the same mean size, then so are the nonzero coefficients per pixel.
    @cache
    def real_size(quality: int) -> float:  # grows with the quality
        return 8 * sum(len(encode(image, quality)) for image in real) / (len(real) * width * height)

    above = 88 + bisect_left(range(88, 99), bits, key=real_size)
    nearest = min(max(above - 1, 88), above, key=lambda quality: abs(np.log(real_size(quality) / bits)))
    real_bits, real_coefficients = mean_bits_and_coefficients([encode(image, nearest) for image in real])
    assert (coefficients / bits) / (real_coefficients / real_bits) == pytest.approx(1, abs=0.15)
    assert coefficients / real_coefficients == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    "size", [pytest.param(size, marks=pytest.mark.slow if size == (2048, 2048) else ()) for size in TARGET_KB]
)
def test_mean_file_sizes_are_those_of_data_sets_in_use(size: tuple[int, int]) -> None:
    width, height = size
    num_images = max(8, min(100, 40 * 512 * 512 // (width * height)))
    sizes = [len(synthetic(*size, number)) for number in range(num_images)]
    standard_error = np.std(sizes) / num_images**0.5
    assert np.mean(sizes) == pytest.approx(1000 * TARGET_KB[size], rel=0.05, abs=2 * standard_error)


def test_one_seed_gives_the_same_bytes_however_many_processes_work(tmp_path: Path) -> None:
    make_dataset(tmp_path / "one", [64, "80x48"], 20, seed=3, processes=1)
    make_dataset(tmp_path / "two", [64, "80x48"], 20, seed=3, processes=2)
    make_dataset(tmp_path / "other", [64, "80x48"], 20, seed=4, processes=1)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert len(set(digests(tmp_path / "one").values())) == 40
    assert not set(digests(tmp_path / "one").values()) & set(digests(tmp_path / "other").values())


@pytest.mark.parametrize(("width", "height"), [(16, 16), (301, 299), (1024, 130), (70_001, 7)])
def test_pixels_are_those_of_the_plain_formula(width: int, height: int) -> None:
    """Rows are coloured a few at a time, and their textures found by bits."""
    rng, num, plane = np.random.default_rng(width), 50, 512 * 512
    objects = rng.integers(0, num, (height, width), dtype=np.int32)
    offset, which = rng.integers(0, plane, num), rng.integers(0, 16, num)
    textures, across, down = (rng.normal(0, 9, n).astype(np.float32) for n in (16 * plane, width, height))
    looks = _Looks(
        (which * plane + offset).astype(np.int32), rng.random(num, np.float32) * 45, rng.random(num, np.float32) * 255,
        rng.normal(128, 14, (2, num)).astype(np.float32),
    )  # fmt: skip
    luma, chroma = _fill(objects, looks, textures, across, down[:, None])

    at = np.arange(height)[:, None] * 512 + np.arange(width)
    texture = textures[which[objects] * plane + (at + offset[objects]) % plane]
    shaded = texture * looks.strength[objects] + looks.brightness[objects] + across + down[:, None]
    assert np.array_equal(luma, shaded.clip(0, 255).astype(np.uint8))
    half, tint = objects[::2, ::2], 0.12 * looks.strength[objects[::2, ::2]] * texture[::2, ::2]
    for found, sign, colour in zip(chroma, (-1, 1), looks.colours, strict=True):
        assert np.array_equal(found, (colour[half] + sign * tint).clip(0, 255).astype(np.uint8))


def test_layout_is_an_image_folder_with_the_sizes_asked_for(tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    made = make_dataset(
        tmp_path, [64, "80x48"], 12, num_classes=3, processes=1, progress=lambda *seen: progress.append(seen)
    )
    assert made == {"64": tmp_path / "64", "80x48": tmp_path / "80x48"}
    assert [folder.name for folder in sorted((tmp_path / "64").glob("*/"))] == ["class_000", "class_001", "class_002"]
    assert scan_dataset(tmp_path / "80x48").resolutions == [{"width": 80, "height": 48, "num_images": 12}]
    assert progress[-1] == (24, 24)


def test_spreads_and_progressive_files_come_when_asked_for(tmp_path: Path) -> None:
    make_dataset(tmp_path, [128], 60, aspect_spread=0.3, quality_spread=10, progressive_fraction=0.5, processes=1)
    scan = scan_dataset(tmp_path / "128")
    assert scan.progressive_fraction is not None and 0.25 < scan.progressive_fraction < 0.75
    assert scan.num_resolutions is not None and scan.num_resolutions > 30
    assert all(entry["width"] * entry["height"] == pytest.approx(128 * 128, rel=0.02) for entry in scan.resolutions)


def test_a_second_call_does_nothing_and_other_parameters_are_refused(tmp_path: Path) -> None:
    make_dataset(tmp_path, [64], 10, processes=1)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    make_dataset(tmp_path, [64], 10, processes=1)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times
    with pytest.raises(ConfigError, match=r"other parameters \(num_images 10 there, 11 requested\)"):
        make_dataset(tmp_path, [64], 11, processes=1)
    make_dataset(tmp_path, [48], 11, processes=1)  # another variant beside it is fine


def test_a_foreign_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "64").mkdir()
    (tmp_path / "64" / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="did not make"):
        make_dataset(tmp_path, [64], 10)
    assert os.listdir(tmp_path / "64") == ["mine.txt"]  # noqa: PTH208


@pytest.mark.parametrize("stop", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_an_interrupted_call_leaves_no_process_and_is_completed_by_the_next(
    tmp_path: Path, stop: signal.Signals
) -> None:
    # Given a call in another process, stopped when some images are there
    code = (
        "import sys\nfrom loaderbench.images.synthesize import make_dataset\n"
        "if __name__ == '__main__': make_dataset(sys.argv[1], [256], 100, processes=2)\n"
    )
    script = tmp_path / "make.py"
    script.write_text(code)
    out = tmp_path / "out"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen([sys.executable, script, out], stderr=subprocess.DEVNULL, env=environment)
    deadline = time.monotonic() + 60
    while len(list(out.rglob("*.jpg"))) < 10:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(stop)
    process.wait(30)
    # Then no process is left, no half-written file looks like an image, and it is known to be unfinished
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    before = digests(out)
    assert 0 < len(before) < 100
    assert not scan_dataset(out / "256").broken
    assert not (out / "256" / RECORD_NAME).exists()
    # When it is called again, then it is completed and nothing was made twice.
    times = {path: (out / path).stat().st_mtime_ns for path in before}
    make_dataset(out, [256], 100, processes=1)
    after = digests(out)
    assert len(after) == 100 and before.items() <= after.items()
    assert times == {path: (out / path).stat().st_mtime_ns for path in before}
    assert not list(out.rglob("*.part*"))


def test_several_processes_may_make_one_set_at_once(tmp_path: Path) -> None:
    script = tmp_path / "make.py"
    script.write_text(
        "import sys\nfrom loaderbench.images.synthesize import make_dataset\n"
        "if __name__ == '__main__':\n"
        "    for side in range(16, 40): make_dataset(sys.argv[1], [side], 5, processes=1)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    both = [subprocess.Popen([sys.executable, script, tmp_path / "out"], env=environment) for _ in range(3)]
    assert [process.wait(60) for process in both] == [0, 0, 0]
    assert len(digests(tmp_path / "out")) == 24 * 5


@pytest.mark.parametrize("token", ["big", "12x", "1x2x3", "-5", "0", "8", "99999", ""])
def test_bad_resolutions_are_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="resolution"):
        parse_resolution(token)


@pytest.mark.parametrize("side", [16, 24, 33])
def test_tiny_and_odd_sizes_work(side: int) -> None:
    for number in range(20):
        assert paint(np.random.default_rng(number), side, side + 1, 0, 1.3).size == (side, side + 1)


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write the data set"):
        make_dataset(tmp_path / "file" / "out", [64], 1)


def test_a_script_without_a_guard_makes_a_data_set_once(tmp_path: Path) -> None:
    # multiprocessing would run the script again in each process, which would wait there for the first one's lock.
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from loaderbench.images.synthesize import make_dataset\n"
        "print('begun')\n"
        "make_dataset(sys.argv[1], [96], num_images=40, processes=2)\n"
    )
    done = subprocess.run(
        [sys.executable, script, tmp_path / "set"], capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n", "")
    assert len(list((tmp_path / "set").rglob("*.jpg"))) == 40

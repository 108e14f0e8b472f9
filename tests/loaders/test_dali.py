import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import claiming

from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.images.index import index_images

pytest.importorskip("nvidia.dali")

from nvidia.dali import Pipeline, fn

from loaderbench.loaders import nvtx_times, sound_files
from loaderbench.loaders.base import LoaderContext
from loaderbench.loaders.dali import DaliLoader, Options, build, file_list

NAMES = (" a/ 1.jpg", "a/2 3.jpg", "a/4.jpg 5.jpg", "a/tab\t6.jpg", "b #/\udcff.JPG", "b #/'\"%s.jpeg")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES, start=1):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes([number] * number))
    return tmp_path


def test_dali_reads_what_the_list_names_and_labels(root: Path) -> None:
    images = index_images(str(root))
    order = np.array([4, 0, 5, 2, 1, 3])
    pipeline = Pipeline(batch_size=len(order), num_threads=1, device_id=None, exec_dynamic=True)
    with file_list(images, order) as path:
        with pipeline:
            pipeline.set_outputs(*fn.readers.file(file_root=images.root, file_list=path))
        pipeline.build()
    assert not os.path.exists(path)  # noqa: PTH110
    encoded, labels = pipeline.run()
    assert np.array(labels.as_array()).ravel().tolist() == order.tolist()
    for position, index in enumerate(order.tolist()):
        assert bytes(np.array(encoded.at(position))) == Path(images.path(index)).read_bytes()


def test_a_name_of_two_lines_is_refused_by_name(root: Path) -> None:
    (root / "a" / "two\nlines.jpg").write_bytes(b"1")
    images = index_images(str(root))
    with pytest.raises(ConfigError, match=r"two\\nlines\.jpg") as told, file_list(images, np.arange(len(images))):
        pass
    assert "\n" not in str(told.value)


def loader_of(dataset: Path, **changes: Any) -> DaliLoader:
    values: dict[str, Any] = {
        "images": index_images(str(dataset)), "batch_size": 4, "workers": 1, "prefetch": 2, "decoder": None,
        "input_size": 32, "mode": "train", "output": "uint8", "seed": 0,
    }  # fmt: skip
    return DaliLoader(Options(), LoaderContext(**{**values, **changes}))


@pytest.mark.parametrize("prefetch", [1, 3])
def test_as_many_batches_as_asked_for_are_made_while_the_consumer_works(prefetch: int, small_set: Path) -> None:
    """As with DALI's own iterator, which begins a run when it hands a batch over."""

    class CountImages:
        num_made = 0

        def burn_image(self, encoded: Any) -> Any:
            self.num_made += 1
            return encoded

    counter = CountImages()
    batches = loader_of(small_set / "96", prefetch=prefetch, slowdown=counter).batches()
    for number in (1, 2):
        next(batches)
        deadline = time.monotonic() + 10
        while counter.num_made < 4 * (number + prefetch) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)  # no more than those
        assert counter.num_made == 4 * (number + prefetch)
    batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("keep_evictable", [False, True])
def test_files_are_mapped_only_where_their_pages_need_not_be_dropped(keep_evictable: bool, small_set: Path) -> None:
    loader = loader_of(small_set / "96", keep_evictable=keep_evictable)
    batches = loader.batches()
    next(batches)
    maps = Path("/proc/self/maps").read_text()
    batches.close()  # type: ignore[attr-defined]
    assert (str(small_set) in maps) == (not keep_evictable)
    assert loader.describe()["dont_use_mmap"] == keep_evictable


def test_decoding_on_a_gpu_needs_one(image_tree: Path) -> None:
    context = loader_of(image_tree)._context
    with pytest.raises(ConfigError, match="needs --device cuda"):
        build(Options(gpu_decode="yes"), context)
    assert not build(Options(gpu_decode="auto"), context).owns_transfer


def test_lost_ranges_are_no_stage_times(image_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(image_tree)
    if loader.no_stage_times is not None:
        pytest.skip(loader.no_stage_times)
    assert loader.stage_times() is not None

    def lost() -> None:
        raise nvtx_times.LostRanges("3 ranges were lost")

    monkeypatch.setattr(nvtx_times, "read", lost)
    assert loader.stage_times() is None
    assert loader.no_stage_times == "3 ranges were lost"
    loader.close()


def test_of_a_large_set_the_files_looked_at_are_counted(image_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound_files, "MOST_CHECKED", 4)
    monkeypatch.setattr(sound_files, "check_file", lambda path: (0, None, "empty file"))
    with pytest.raises(CaseFailed, match="4 of 4 images could not be decoded"):
        loader_of(image_tree)


@pytest.mark.parametrize("position", [0, 17])
@pytest.mark.parametrize("at_quantization", [False, True])
def test_a_file_that_dali_cannot_decode_is_named(own_tree: Path, at_quantization: bool, position: int) -> None:
    """DALI itself names the second kind (no quantization table), but not the first (no image data)."""
    bad = sorted(own_tree.rglob("*.jpg"))[position]
    encoded = bad.read_bytes()
    whole = encoded[: encoded.index(b"\xff\xda")] + b"\xff\xd9"
    bad.write_bytes(encoded.replace(b"\xff\xdb", b"\xff\xe5") if at_quantization else whole)
    with pytest.raises(CaseFailed) as told:
        list(loader_of(own_tree).batches(0, 1))
    assert str(told.value).startswith(f"DALI could not decode {bad}; ")


def test_a_picture_of_too_many_pixels_is_left_out_and_counted(own_tree: Path) -> None:
    bad = sorted(own_tree.rglob("*.jpg"))[1]
    bad.write_bytes(claiming(bad.read_bytes(), 65500, 65500))
    batches = list(loader_of(own_tree, max_failure_fraction=0.1).batches(0, 1))
    assert sum(batch.num_samples for batch in batches) == 23
    ((_, reason),) = [failure for batch in batches for failure in batch.failures]
    assert "65500×65500 pixels" in reason

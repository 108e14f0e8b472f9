"""One suite over every loader: what the harness relies on."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import time
from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from commands import run_script
from loader_cases import (
    DECODING_LOADERS,
    PACKAGES,
    PYTHON_LOADERS,
    READING_LOADERS,
    SAME_ORDER_LOADERS,
    SHARD_LOADERS,
    TREE_LOADERS,
    WORKERS,
    build,
    context_for,
    copied,
    indices_of,
    installed,
    need,
    open_loader,
    take,
)
from numpy.typing import NDArray
from pictures import encode, many_scans, write_tree

from loaderbench import plugins
from loaderbench.errors import CaseFailed, ConfigError, UnavailableError
from loaderbench.images.cache_state import residency
from loaderbench.loaders.base import MAX_STEPS_IN_FLIGHT, SPAN_FIELDS
from loaderbench.loaders.transform import IMAGENET_MEAN, IMAGENET_STD
from tests.warm import own_children

ALL_LOADERS = tuple(name for name in WORKERS if name != "ray")
"""Ray has a file of its own: each of its loaders starts a cluster."""
UNSEEDED_LOADERS = ("ffcv",)
"""Their crops and flips are drawn anew in every run."""


@pytest.fixture(autouse=True)
def _need_package(request: pytest.FixtureRequest) -> None:
    callspec = getattr(request.node, "callspec", None)
    name = None if callspec is None else callspec.params.get("name")
    if name in PACKAGES:
        need(name)


def tasks() -> set[int]:
    """Threads of this process."""
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def settled_tasks(expected: set[int]) -> set[int]:
    """The threads once those that have just ended are gone from the kernel's list, too: within a second."""
    ends = time.monotonic() + 1
    while time.monotonic() < ends and not tasks() <= expected:
        time.sleep(0.01)
    return tasks()


# -- the stream ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_epochs", [1, 3])
@pytest.mark.parametrize("batch_size", [7, 8])
@pytest.mark.parametrize("name", READING_LOADERS)
def test_every_sample_once_an_epoch_and_the_last_batch_may_be_small(
    name: str, image_tree: Path, batch_size: int, num_epochs: int
) -> None:
    with open_loader(name, image_tree, batch_size=batch_size) as loader:
        batches = [copied(batch) for batch in loader.batches(0, num_epochs)]
        images = context_for(name, image_tree).images

    assert Counter(indices_of(batches).tolist()) == dict.fromkeys(range(24), num_epochs)
    for epoch in range(num_epochs):
        assert sorted(indices_of(batches)[24 * epoch : 24 * (epoch + 1)]) == list(range(24))
    assert [batch.num_samples for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert batches[-1].num_samples == 24 * num_epochs - batch_size * (len(batches) - 1)
    for batch in batches:
        assert batch.encoded_bytes == images.sizes[batch.indices].sum()
        if name == "fetch":
            assert batch.inputs is None
        else:
            assert batch.inputs.shape == (batch.num_samples, 3, 32, 32)
            assert batch.targets.tolist() == images.labels[batch.indices].tolist()
            assert batch.targets.dtype == torch.int64


@pytest.mark.parametrize("name", ["cached", "synthetic"])
def test_loaders_that_read_nothing_give_as_many_samples(name: str, image_tree: Path) -> None:
    with open_loader(name, image_tree, batch_size=7) as loader:
        assert [batch.num_samples for batch in loader.batches(0, 1)] == [7, 7, 7, 3]
        assert all(batch.num_samples == 7 for batch in take(loader, 9))
        assert not loader.decodes


def test_cached_batches_are_those_of_the_first_epoch_again_and_again(image_tree: Path) -> None:
    with open_loader("cached", image_tree) as cached, open_loader("threaded", image_tree) as threaded:
        served, decoded = take(cached, 6), take(threaded, 3)
    assert sorted(indices_of(served[:3])) == list(range(24))
    for number, batch in enumerate(served):
        assert torch.equal(batch.inputs, decoded[number % 3].inputs)


@pytest.mark.parametrize("name", ALL_LOADERS)
def test_endless_stream_from_fewer_images_than_a_batch(name: str, image_tree: Path) -> None:
    with open_loader(name, image_tree, batch_size=50) as loader:
        batches = take(loader, 3)
    assert [batch.num_samples for batch in batches] == [50, 50, 50]
    if name != "synthetic":
        assert set(indices_of(batches)) == set(range(24))
    if name in SHARD_LOADERS:  # each worker goes round the samples of its own containers
        assert np.bincount(indices_of(batches)).min() > 1
    elif name in READING_LOADERS:
        assert np.bincount(indices_of(batches)[:144]).tolist() == [6] * 24


@pytest.mark.parametrize("name", ALL_LOADERS)
def test_order_and_pixels_are_a_function_of_the_seed(name: str, image_tree: Path) -> None:
    streams = []
    for seed in (5, 5, 6):
        with open_loader(name, image_tree, seed=seed) as loader:
            streams.append(take(loader, 4))
    same, again, other = streams
    if name != "synthetic":
        assert indices_of(same).tolist() == indices_of(again).tolist() != indices_of(other).tolist()
    if name not in ("fetch", *UNSEEDED_LOADERS):
        assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(same, again, strict=True))
        assert not torch.equal(same[0].inputs, other[0].inputs)


@pytest.mark.parametrize("name", READING_LOADERS)
def test_a_stream_begins_at_the_epoch_asked_for(name: str, image_tree: Path) -> None:
    with open_loader(name, image_tree) as loader:
        first, second, first_again = (indices_of(take(loader, 3, epoch)).tolist() for epoch in (0, 1, 0))
    assert first == first_again != second
    if name not in SHARD_LOADERS:
        assert sorted(first) == sorted(second) == list(range(24))


# -- the pixels ------------------------------------------------------------------------------------------


def our_crops(name: str) -> dict[str, Any]:
    """The options with which a loader draws the crops and flips of the others, where by default torchvision draws."""
    return {"samples": "direct"} if name in ("serial", "multiprocess") else {}


@pytest.mark.parametrize("decoder", ["pillow", "turbojpeg", "torchvision", "libjpeg"])
@pytest.mark.parametrize(("mode", "output"), [("train", "float32"), ("train", "uint8"), ("infer", "uint8")])
def test_python_loaders_give_the_same_pixels(image_tree: Path, decoder: str, mode: str, output: str) -> None:
    streams = []
    for name in filter(installed, SAME_ORDER_LOADERS):
        with open_loader(name, image_tree, our_crops(name), decoder=decoder, mode=mode, output=output) as loader:
            streams.append(take(loader, 6))
    for batches in zip(*streams, strict=True):
        for batch in batches[1:]:
            assert batch.indices.tolist() == batches[0].indices.tolist()  # type: ignore[union-attr]
            assert torch.equal(batch.inputs, batches[0].inputs)
            assert batch.inputs.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("decoder", ["pillow", "libjpeg"])
@pytest.mark.parametrize("name", ["grain", *SHARD_LOADERS])
def test_another_order_has_the_same_pixels(name: str, decoder: str, image_tree: Path) -> None:
    expected, found = (pictures(one, image_tree, decoder=decoder) for one in ("serial", name))
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert found.keys() == expected.keys()


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_spdl_makes_the_same_pictures(image_tree: Path, mode: str) -> None:
    need("spdl")
    ours, theirs = (pictures(name, image_tree, mode=mode, input_size=64) for name in ("serial", "spdl"))
    differences = [float((ours[key].float() - theirs[key].float()).abs().mean()) for key in ours]
    assert np.median(differences) < 3  # levels
    assert max(differences) < 8


def pictures(name: str, tree: Path, **changes: Any) -> dict[tuple[int, int], torch.Tensor]:
    """(epoch, position in the tree) → pixels of epochs 3 and 4."""
    found = {}
    with open_loader(name, tree, our_crops(name), **changes) as loader:
        shards = context_for(name, tree).shards
        for epoch in (3, 4):
            for batch in loader.batches(epoch, 1):
                assert batch.indices is not None
                original = batch.indices if shards is None else shards.original[batch.indices]
                for index, pixels in zip(original.tolist(), batch.inputs.clone(), strict=True):
                    found[epoch, index] = pixels
    return found


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_decoders_agree_within_a_level(image_tree: Path, mode: str) -> None:
    pixels = []
    for decoder in ("pillow", "turbojpeg", "torchvision", "libjpeg"):
        with open_loader("threaded", image_tree, decoder=decoder, mode=mode) as loader:
            pixels.append(torch.cat([batch.inputs for batch in take(loader, 3)]).to(torch.int16))
    for other in pixels[1:]:
        per_image = (other - pixels[0]).abs().to(torch.float32).mean(dim=(1, 2, 3))
        assert per_image.max() <= 1
    assert pixels[0].to(torch.float32).std() > 20  # they are pictures


@pytest.mark.parametrize("name", DECODING_LOADERS)
def test_float_output_is_the_normalized_uint8_output(name: str, image_tree: Path) -> None:
    streams = []
    for output in ("float32", "uint8"):
        mode = "infer" if name in UNSEEDED_LOADERS else "train"
        with open_loader(name, image_tree, output=output, mode=mode) as loader:
            streams.append(take(loader, 2))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    for floats, levels in zip(*streams, strict=True):
        assert floats.inputs.dtype == torch.float32
        assert levels.inputs.dtype == torch.uint8
        # TensorFlow's resize gives fractions of a level: half a level of the channel with the smallest deviation.
        most = 0.5 / (255 * min(IMAGENET_STD)) if name == "tf-data" else 0.0
        assert (floats.inputs - (levels.inputs / 255 - mean) / std).abs().max() < most + 1e-4


@pytest.mark.parametrize(("name", "most"), [("dali", 2), ("ffcv", 6)])  # FFCV's resize is INTER_AREA
def test_other_decoders_infer_the_same_pictures(name: str, most: float, image_tree: Path) -> None:
    ours, theirs = (
        [pictures(one, image_tree, mode="infer", input_size=64)[3, index].float() for index in range(24)]
        for one in ("serial", name)
    )
    differences = [closest_shift(ours[index], theirs[index]) for index in range(24)]
    strangers = [closest_shift(ours[index], theirs[(index + 1) % 24]) for index in range(24)]
    assert np.median(differences) < most  # levels
    assert max(differences) < 15 < min(strangers)


def closest_shift(a: torch.Tensor, b: torch.Tensor) -> float:
    """Mean absolute difference [3, H, W] inside a margin of 2, at the best shift by at most one pixel."""
    shifts = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    inner = (..., slice(2, -2), slice(2, -2))
    return min(float((a.roll(shift, (1, 2))[inner] - b[inner]).abs().mean()) for shift in shifts)


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("name", TREE_LOADERS)
def test_full_size_is_the_stored_picture(name: str, own_tree: Path, mode: str) -> None:
    with open_loader(name, own_tree, input_size=None, mode=mode) as loader:
        (batch,) = take(loader, 1)
    assert batch.inputs.shape == (8, 3, 80, 96)


@pytest.mark.parametrize("name", TREE_LOADERS)
def test_full_size_names_the_two_sizes_where_they_differ(
    name: str, own_tree: Path, photographs: list[NDArray[np.uint8]]
) -> None:
    write_tree(own_tree, photographs, [(96, 80)] * 23 + [(50, 70)])
    with (
        open_loader(name, own_tree, input_size=None) as loader,
        pytest.raises(CaseFailed, match=r"50×70.*96×80.*dataset derive"),
    ):
        take(loader, 6)


# -- broken images, vanished storage ---------------------------------------------------------------------


def spoil(tree: Path) -> list[Path]:
    """Make four files empty, truncated, too costly to decode, and no image at all."""
    paths = sorted(tree.rglob("*.jpg"))
    spoilt = [paths[2], paths[7], paths[12], paths[23]]
    content = paths[7].read_bytes()
    for path, broken in zip(
        spoilt, (b"", content[: len(content) // 2], many_scans(4000, 300), b"text" * 99), strict=True
    ):
        path.write_bytes(broken)
    return spoilt


@pytest.mark.parametrize("name", PYTHON_LOADERS)
def test_broken_images_are_named_and_replaced_by_the_next(name: str, own_tree: Path) -> None:
    broken = spoil(own_tree)
    with open_loader(name, own_tree, max_failure_fraction=0.2) as loader:
        batches = [copied(batch) for batch in loader.batches(0, 1)]
        images = context_for(name, own_tree).images

    failures = dict(failure for batch in batches for failure in batch.failures)
    assert sorted(images.path(index) for index in failures) == [str(path) for path in broken]
    assert all(failures.values())
    counted = Counter(indices_of(batches).tolist())
    assert counted == Counter([*range(24), *((index + 1) % 24 for index in failures)]) - Counter(failures.keys())
    assert all(batch.inputs.to(torch.float32).std(dim=(1, 2, 3)).min() > 0 for batch in batches)


def test_dali_leaves_broken_images_out_and_names_them(own_tree: Path) -> None:
    pytest.importorskip("nvidia.dali")
    broken = spoil(own_tree)
    with open_loader("dali", own_tree, max_failure_fraction=0.2) as loader:
        batches = [copied(batch) for batch in loader.batches(0, 1)]
        images = context_for("dali", own_tree).images
    failures = dict(failure for batch in batches for failure in batch.failures)
    assert sorted(images.path(index) for index in failures) == [str(path) for path in broken]
    assert sorted(indices_of(batches)) == sorted(set(range(24)) - set(failures))


@pytest.mark.parametrize("name", [name for name in DECODING_LOADERS if name != "ffcv"])  # which crops before it resizes
def test_a_picture_too_narrow_to_be_resized_is_named(name: str, own_tree: Path) -> None:
    """256 pixels high it would be 768,000 wide, of which the centre is all that is wanted."""
    path = sorted(own_tree.rglob("*.jpg"))[4]
    path.write_bytes(encode(np.zeros((1, 3000, 3), dtype=np.uint8)))
    with open_loader(name, own_tree, mode="infer", input_size=224, max_failure_fraction=0.1) as loader:
        failures = dict(failure for batch in loader.batches(0, 1) for failure in batch.failures)
        images = context_for(name, own_tree).images
    assert [images.path(index)[-11:] for index in failures] == [str(path)[-11:]]
    assert "too costly to resize: to 768000×256 pixels" in next(iter(failures.values()))


@pytest.mark.parametrize("name", DECODING_LOADERS)
def test_too_many_broken_images_fail_the_case_with_the_list(name: str, own_tree: Path) -> None:
    broken = spoil(own_tree)
    with pytest.raises(CaseFailed) as caught, open_loader(name, own_tree, max_failure_fraction=0.01) as loader:
        take(loader, 6)
    # Of a converted image the container comes before its name.
    assert all(str(path.relative_to(own_tree)) in str(caught.value) for path in broken)
    assert "1 %" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", PYTHON_LOADERS)
def test_one_early_failure_does_not_fail_the_case(
    name: str, tmp_path: Path, photographs: list[NDArray[np.uint8]]
) -> None:
    write_tree(tmp_path, photographs, [(64, 64)] * 200)
    first = context_for(name, tmp_path).images.path(int(np.random.default_rng([0, 0]).permutation(200)[0]))
    Path(first).write_bytes(b"")
    with open_loader(name, tmp_path, max_failure_fraction=0.01) as loader:
        batches = [batch for batch in loader.batches(0, 1) if batch.failures]
    assert len(batches) >= 1


@pytest.mark.parametrize("name", PYTHON_LOADERS)
def test_a_folder_of_nothing_but_broken_images_ends(name: str, own_tree: Path) -> None:
    for path in own_tree.rglob("*.jpg"):
        path.write_bytes(b"nothing")
    with (
        open_loader(name, own_tree, max_failure_fraction=1.0) as loader,
        pytest.raises(CaseFailed, match="and 14 more"),
    ):
        take(loader, 1)


@pytest.mark.parametrize("name", [name for name in READING_LOADERS if name != "ffcv"])  # a mapped file stays readable
def test_vanished_folder_fails_at_once_and_says_so(name: str, own_tree: Path) -> None:
    with open_loader(name, own_tree) as loader:
        stream = loader.batches()
        next(stream)
        shutil.rmtree(own_tree)
        begun = time.perf_counter()
        with pytest.raises(CaseFailed, match=rf"{own_tree}.*vanished"):
            list(islice(stream, 20))
        assert time.perf_counter() - begun < 3


def test_dali_names_the_file_that_it_cannot_decode(own_tree: Path) -> None:
    pytest.importorskip("nvidia.dali")
    path = sorted(own_tree.rglob("*.jpg"))[3]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2 - 2) + b"\xff\xd9")
    with open_loader("dali", own_tree) as loader:
        try:
            take(loader, 3)
        except CaseFailed as failure:
            assert str(path) in str(failure)


# -- processes, threads, buffers -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_LOADERS)
def test_close_leaves_no_process_and_no_thread(name: str, image_tree: Path) -> None:
    others = own_children()  # multiprocessing's own, of other tests
    with open_loader(name, image_tree, output="float32") as loader:
        take(loader, 1)  # what libraries start once a process (OpenMP …) is there by now
    time.sleep(0.05)
    before = tasks()
    loader = build(name, context_for(name, image_tree, output="float32"))
    stream = loader.batches()
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    loader.close()
    loader.close()
    assert multiprocessing.active_children() == []
    assert set(own_children()) <= set(others)
    assert settled_tasks(before) <= before


@pytest.mark.parametrize("name", ALL_LOADERS)
def test_a_loader_dropped_with_its_stream_open_leaves_nothing(name: str, image_tree: Path) -> None:
    others = own_children()  # multiprocessing's own, of other tests
    with open_loader(name, image_tree) as loader:
        take(loader, 1)
    time.sleep(0.05)
    before = tasks()
    with open_loader(name, image_tree) as loader:
        stream = loader.batches()
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert set(own_children()) <= set(others)
    assert settled_tasks(before) <= before


OPEN_AT_THE_END = """
import sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
from loader_cases import build, context_for
loader = build(sys.argv[3], context_for(sys.argv[3], Path(sys.argv[4])), **eval(sys.argv[5]))
stream = loader.batches()
next(stream)
"""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("threaded", {}),
        pytest.param("threaded", {"io_threads": 4}, marks=pytest.mark.slow),
        pytest.param("torchdata", {}, marks=pytest.mark.slow),
        pytest.param("grain", {}, marks=pytest.mark.slow),
    ],
)
def test_a_program_that_ends_with_a_stream_open_ends(
    name: str, options: dict[str, Any], image_tree: Path, tmp_path: Path
) -> None:
    here, script = Path(__file__).parent, tmp_path / "open_at_the_end.py"
    script.write_text(OPEN_AT_THE_END)
    ended = run_script(
        script, here, here.parent, name, image_tree, repr(options), folder=tmp_path, whole_end=True, timeout_s=60
    )
    assert ended.code == 0, ended.err


@pytest.mark.parametrize("name", ALL_LOADERS)
def test_a_closed_stream_is_quiet_and_the_next_starts_afresh(name: str, image_tree: Path) -> None:
    with open_loader(name, image_tree) as loader:
        expected = take(loader, 2)
        stream = loader.batches()
        next(stream)
        begun = time.perf_counter()
        stream.close()  # type: ignore[attr-defined]
        closed_s = time.perf_counter() - begun

        family = [psutil.Process(), *psutil.Process().children()]
        before = [process.cpu_times() for process in family]
        time.sleep(0.3)
        after = [process.cpu_times() for process in family]
        busy_s = sum(b.user + b.system - a.user - a.system for a, b in zip(before, after, strict=True))

        begun = time.perf_counter()
        stream = loader.batches()
        (batch,) = [copied(next(stream))]
        reopened_s = time.perf_counter() - begun
        stream.close()  # type: ignore[attr-defined]

    assert busy_s <= 0.05
    assert closed_s < 1
    # One batch of 8 small images included.
    assert reopened_s < (
        0.15 if name in ("serial", "multiprocess", "threaded", "cached", "synthetic", "fetch") else 0.5
    )
    if name not in ("fetch", "synthetic", *UNSEEDED_LOADERS):
        assert torch.equal(batch.inputs, expected[0].inputs)


@pytest.mark.parametrize("name", ALL_LOADERS)
def test_delivered_batches_stay_untouched(name: str, image_tree: Path) -> None:
    with open_loader(name, image_tree) as loader:
        held: list[tuple[Any, Any]] = []
        for batch in islice(loader.batches(), 40):
            if batch.inputs is None:
                continue
            time.sleep(0.002)
            held = [*held[-MAX_STEPS_IN_FLIGHT:], (batch.inputs, batch.inputs.clone())]
            assert all(torch.equal(now, then) for now, then in held)


@pytest.mark.parametrize("name", ["threaded"])
def test_a_new_stream_leaves_the_last_batches_of_the_old_one_alone(name: str, image_tree: Path) -> None:
    with open_loader(name, image_tree) as loader:
        stream = loader.batches()
        held = [(batch.inputs, batch.inputs.clone()) for batch in islice(stream, 3)]
        stream.close()  # type: ignore[attr-defined]
        stream = loader.batches(1)
        next(stream)
        time.sleep(0.1)
        assert all(torch.equal(now, then) for now, then in held[-MAX_STEPS_IN_FLIGHT:])
        stream.close()  # type: ignore[attr-defined]


def test_threads_leave_the_models_threads_alone(image_tree: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for name in ("serial", "threaded"):
            with open_loader(name, image_tree) as loader:
                take(loader, 2)
                assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# -- spans -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PYTHON_LOADERS, "fetch"])
def test_spans_account_for_the_time_of_the_work(name: str, image_tree: Path) -> None:
    with open_loader(name, image_tree, input_size=224, output="float32") as loader:
        begun = time.perf_counter_ns()
        batches = take(loader, 12)
        ended = time.perf_counter_ns()
        images = context_for(name, image_tree).images
        in_processes = hasattr(loader, "worker_pids")
    spans = np.stack([batch.spans for batch in batches if batch.spans is not None])
    column = dict(zip(SPAN_FIELDS, spans.T, strict=True))

    assert len(spans) == 12
    assert set(column["worker"]) <= set(range(max(WORKERS[name], 1)))
    assert (begun <= column["start_ns"]).all()
    assert (column["ready_ns"] <= ended).all()
    whole = column["ready_ns"] - column["start_ns"]
    stages = sum(column[stage] for stage in ("read_ns", "decode_ns", "augment_ns", "collate_ns"))
    assert (stages <= whole).all()
    # Grain's own work between two samples, and its waits for the GIL, belong to no stage.
    assert stages.sum() > (0.4 if name == "grain" else 0.8) * whole.sum()
    assert (column["cpu_ns"] > 0).all()
    assert (column["cpu_ns"] <= whole + 1_000_000).all()
    assert (column["major_faults"] >= 0).all()
    pages = [sum(-(-int(size) // 4096) * 4096 for size in images.sizes[batch.indices]) for batch in batches]
    assert column["page_bytes"].tolist() == pages
    if Path("/proc/thread-self/schedstat").exists():
        assert (column["runqueue_ns"] >= 0).all()
        assert (column["read_queue_ns"] >= 0).all()
        assert (column["read_queue_ns"] <= column["runqueue_ns"]).all()
    arrived = np.array([batch.arrived_ns for batch in batches])
    if in_processes:
        assert (column["ready_ns"] < arrived).all() and (arrived < ended).all()
    else:
        assert (arrived == -1).all()
    for number in set(column["worker"]):
        mine = spans[column["worker"] == number]
        assert (mine[1:, 1] >= mine[:-1, 2]).all()  # a worker makes one batch after another


@pytest.mark.parametrize("name", [*PYTHON_LOADERS, "spdl", *SHARD_LOADERS])
def test_a_wait_for_the_next_request_is_no_work(name: str, image_tree: Path) -> None:
    with open_loader(name, image_tree, workers=min(WORKERS[name], 1)) as loader:
        stream, waits_s = loader.batches(), 0.25
        spans = []
        for _ in range(8):
            spans.append(next(stream).spans)
            time.sleep(waits_s)
        stream.close()  # type: ignore[attr-defined]
    whole = [int(span[2] - span[1]) / 1e9 for span in spans if span is not None]
    assert len(whole) == 8
    assert np.median(whole) < waits_s / 2  # a batch of these takes milliseconds


@pytest.mark.parametrize("name", ["multiprocess", "threaded", "fetch"])
def test_batches_left_in_the_queue_are_reported(name: str, image_tree: Path) -> None:
    with open_loader(name, image_tree) as loader:
        stream = loader.batches()
        delivered = next(stream)
        time.sleep(0.5)
        closed = time.perf_counter_ns()
        stream.close()  # type: ignore[attr-defined]
        drained = loader.drained_spans()  # type: ignore[attr-defined]
    assert drained.shape == (4, len(SPAN_FIELDS))  # workers × prefetch, all made by now
    assert (drained[:, 2] < closed).all()
    assert delivered.spans is not None
    assert delivered.spans[2] < drained[:, 2].max()


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in (*PYTHON_LOADERS, "spdl", "fetch")), ("threaded", {"io_threads": 4})],
)
def test_each_read_of_a_file_is_told_once_with_its_times(name: str, options: dict[str, Any], image_tree: Path) -> None:
    context = context_for(name, image_tree)
    begun = time.perf_counter_ns()
    with closing(build(name, context, **options)) as loader:
        batches = list(loader.batches(0, 1))
    rows = context.reads.take()
    images, begin_ns, open_ns, read_ns, sizes = rows.T
    indices = np.concatenate([batch.indices for batch in batches if batch.indices is not None])
    assert sorted(images.tolist()) == sorted(indices.tolist())
    assert sizes.tolist() == context.images.sizes[images].tolist()
    assert begun < begin_ns.min()
    assert (begin_ns + open_ns + read_ns).max() < time.perf_counter_ns()
    assert open_ns.min() > 0 and read_ns.min() > 0
    assert len(context.reads.take()) == 0


@pytest.mark.parametrize(("loader", "decoder"), [("threaded", "libjpeg"), ("multiprocess", "libjpeg")])
def test_a_decoder_that_reads_for_itself_tells_its_reads(loader: str, decoder: str, image_tree: Path) -> None:
    try:
        context = context_for(loader, image_tree, decoder=decoder)
        opened = build(loader, context)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    with closing(opened):
        list(opened.batches(0, 1))
    rows = context.reads.take()
    assert sorted(rows[:, 0].tolist()) == list(range(len(context.images)))
    assert rows[:, 4].tolist() == context.images.sizes[rows[:, 0]].tolist()
    assert (rows[:, 1:4] > 0).all()


@pytest.mark.parametrize("name", [*PYTHON_LOADERS, "fetch"])
def test_files_leave_the_page_cache_behind_the_reader(name: str, own_tree: Path) -> None:
    paths = [str(path) for path in own_tree.rglob("*.jpg")]
    os.sync()
    with open_loader(name, own_tree, evict_after_read=True) as loader:
        list(loader.batches(0, 1))
        after = residency(paths)
    if after.fraction is None:
        pytest.skip(f"residency of the test's folder cannot be seen: {after.reason}")
    assert after.fraction < 0.1


# -- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("serial", {"workers": 2}, "serial loader has no workers"),
        ("multiprocess", {"workers": 0}, "--loader serial"),
        ("threaded", {"workers": 0}, "--loader serial"),
        ("dali", {"workers": 0}, "--loader serial"),
        ("multiprocess", {"prefetch": 0}, "--prefetch"),
        ("threaded", {"prefetch": 0}, "--prefetch"),
        ("dali", {"decoder": "pillow"}, "has its own decoder"),
        ("serial", {"decoder": "jpegli"}, "unknown decoder 'jpegli'; known: pillow"),
        ("serial", {"decoder_options": {"fast": "1"}}, "unknown option 'fast'"),
        ("threaded", {"batch_size": 10_000_000}, "GiB are available"),
    ],
)
def test_contradictions_are_refused_in_one_line(
    name: str, image_tree: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(name, context_for(name, image_tree, **changes))
    assert "\n" not in str(caught.value)


def test_cached_refuses_a_budget_below_one_batch(image_tree: Path) -> None:
    with pytest.raises(ConfigError, match="budget_mib=1"):
        build("cached", context_for("cached", image_tree, batch_size=4096), budget_mib=1)


def test_missing_dali_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    monkeypatch.delitem(sys.modules, "loaderbench.loaders.dali", raising=False)
    with pytest.raises(UnavailableError, match=r"pip install 'loaderbench\[dali\]'"):
        plugins.LOADERS.load("dali")


def test_encoded_bytes_count_what_was_read_in_vain(own_tree: Path) -> None:
    path = sorted(own_tree.rglob("*.jpg"))[0]
    path.write_bytes(encode(np.zeros((64, 64, 3), dtype=np.uint8))[:-40])
    with open_loader("serial", own_tree, max_failure_fraction=0.5) as loader:
        batches = list(loader.batches(0, 1))
        images = context_for("serial", own_tree).images
    assert sum(batch.encoded_bytes for batch in batches) == images.sizes.sum() + images.sizes[1]

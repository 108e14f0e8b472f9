"""`dataset convert`: the bytes arrive unchanged, once, whatever interrupts it; and what reads the result."""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import shutil
import sys
import tarfile
from collections import Counter
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from commands import TINY, records, run

from loaderbench.errors import CaseFailed, ConfigError, UnavailableError
from loaderbench.images import convert
from loaderbench.images.cache_state import ram_copy
from loaderbench.images.convert import convert_dataset, shard_images_for
from loaderbench.images.files import CONVERTED_RECORD
from loaderbench.images.index import index_images
from loaderbench.images.scan import scan_dataset
from loaderbench.images.shards import INDEX_NAME, folder_inside, open_data_set, read_shards
from loaderbench.loaders.base import LoaderContext
from loaderbench.loaders.fetch import FetchLoader
from loaderbench.loaders.samples import SpanClock


def members(folder: Path) -> dict[str, list[tuple[str, bytes]]]:
    """Shard name → (member, content), read with the standard library alone."""
    found = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            found[path.name] = [(one.name, tar.extractfile(one).read()) for one in tar]  # type: ignore[union-attr]
    return found


def test_tar_shards_hold_every_image_once_unchanged_with_its_class(own_tree: Path, tmp_path: Path) -> None:
    made = convert_dataset(own_tree, "wds", tmp_path / "wds", shard_images=7, processes=1)
    shards = members(made.folder)
    assert [len(content) for content in shards.values()] == [14, 14, 14, 6]
    flat = [member for content in shards.values() for member in content]
    assert [name for name, _ in flat] == [f"{n:09d}.{suffix}" for n in range(24) for suffix in ("jpg", "cls")]
    sources = {path.read_bytes(): path for path in own_tree.rglob("*.jpg")}
    assert Counter(data for name, data in flat if name.endswith("jpg")) == Counter(list(sources))
    for (_, image), (_, label) in zip(flat[::2], flat[1::2], strict=True):
        assert sources[image].parent.name == f"class{int(label)}"
    assert len({label for _, label in flat[1:14:2]}) > 1  # classes do not lie together


def test_a_second_call_changes_nothing_and_an_interrupted_one_is_completed(own_tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "wds"
    convert_dataset(own_tree, "wds", out, shard_images=6, processes=1)
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.glob("shard*")}
    assert convert_dataset(own_tree, "wds", out, shard_images=6).was_there

    (out / ".loaderbench-converted.json").rename(out / ".loaderbench-converted.json.partial")
    (out / "shard-000002.tar").unlink()
    again = convert_dataset(own_tree, "wds", out, shard_images=6, processes=1)
    assert not again.was_there
    after = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.glob("shard*")}
    assert {name: data for name, (_, data) in after.items()} == {name: data for name, (_, data) in before.items()}
    assert [name for name in before if after[name][0] != before[name][0]] == ["shard-000002.tar"]


def test_other_contents_are_refused(own_tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "wds"
    convert_dataset(own_tree, "wds", out, shard_images=6, processes=1)
    with pytest.raises(ConfigError, match=r"shard_images 6 there, 8 now"):
        convert_dataset(own_tree, "wds", out, shard_images=8)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(ConfigError, match="did not make"):
        convert_dataset(own_tree, "wds", tmp_path / "mine")
    with pytest.raises(ConfigError, match="unknown format 'zip'; known: wds, litdata, ffcv"):
        convert_dataset(own_tree, "zip")


def test_the_conversion_inside_a_tree_is_found_and_its_age_noticed(own_tree: Path) -> None:
    with pytest.raises(ConfigError, match=rf"loaderbench dataset convert {own_tree} --to wds"):
        open_data_set(str(own_tree), "wds")
    made = convert_dataset(own_tree, "wds", shard_images=6, processes=1)
    assert made.folder == folder_inside(own_tree, "wds")
    assert len(index_images(str(own_tree))) == 24
    assert scan_dataset(own_tree).num_other_files == 0
    data = open_data_set(str(own_tree), "wds")
    assert data.shards is not None
    images = index_images(str(own_tree))
    for position, original in enumerate(data.shards.original.tolist()):
        assert data.images.path(position).endswith(images.path(original)[len(images.root) :])
        assert data.images.sizes[position] == images.sizes[original]
        assert data.images.labels[position] == images.labels[original]

    next(own_tree.rglob("*.jpg")).write_bytes(b"another")
    with pytest.raises(ConfigError, match="the images have changed since"):
        open_data_set(str(own_tree), "wds")


def test_a_converted_folder_is_recognised(own_tree: Path, tmp_path: Path) -> None:
    out = convert_dataset(own_tree, "wds", tmp_path / "wds", shard_images=6, processes=1).folder
    scan = scan_dataset(out).to_json()
    assert (scan["format"], scan["num_images"], scan["num_classes"]) == ("wds", 24, 3)
    assert scan["total_bytes"] == sum(path.stat().st_size for path in own_tree.rglob("*.jpg"))
    with pytest.raises(ConfigError, match="use --loader webdataset"):
        open_data_set(str(out), None)
    with pytest.raises(ConfigError, match="converted to wds, not to litdata"):
        open_data_set(str(out), "litdata")
    (out / "shard-000001.tar").write_bytes(b"short")
    with pytest.raises(ConfigError, match=r"shard-000001.tar has 5 bytes"):
        open_data_set(str(out), "wds")


def test_a_copy_of_some_containers_keeps_its_samples(own_tree: Path, tmp_path: Path) -> None:
    out = convert_dataset(own_tree, "wds", tmp_path / "wds", shard_images=4, processes=1).folder
    data = open_data_set(str(out), "wds")
    files, cleanup = ram_copy(data.files, int(data.files.sizes[:3].sum()) + 3 * 4096)
    try:
        copy = data.on_files(files)
        assert copy.shards is not None
        assert 1 <= len(copy.files) < 6
        assert len(copy.images) == 4 * len(copy.files)
        contents = members(Path(files.root))
        for number, (name, content) in enumerate(sorted(contents.items())):
            assert copy.files.path(number).endswith(name)
            first = int(copy.shards.first[number])
            for step, (_, image) in enumerate(content[::2]):
                assert len(image) == copy.images.sizes[first + step]
    finally:
        cleanup()


def test_reading_alone_takes_every_byte_of_the_containers_once(own_tree: Path, tmp_path: Path) -> None:
    out = convert_dataset(own_tree, "wds", tmp_path / "wds", shard_images=5, processes=1).folder
    data = open_data_set(str(out), "wds")
    context = LoaderContext(
        images=data.images, shards=data.shards, batch_size=7, workers=2, prefetch=2, decoder=None, input_size=32,
        mode="train", output="uint8", seed=0,
    )  # fmt: skip
    loader = FetchLoader(context)
    try:
        batches = list(loader.batches(0, 1))
    finally:
        loader.close()
    indices = np.concatenate([batch.indices for batch in batches if batch.indices is not None])
    assert sorted(indices) == list(range(24))
    assert sum(batch.encoded_bytes for batch in batches) == data.files.sizes.sum()


@pytest.fixture(scope="module")
def converted(small_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted folder. Read only."""
    folder = tmp_path_factory.mktemp("converted") / "wds"
    return convert_dataset(small_set / "96", "wds", folder, shard_images=10, processes=1).folder


def test_damaged_lists_are_named_whatever_the_damage(converted: Path, tmp_path: Path) -> None:
    random, refused = Random(1), 0
    for name in [INDEX_NAME] * 40 + [CONVERTED_RECORD] * 20:
        data = bytearray((converted / name).read_bytes())
        if random.random() < 0.3:
            del data[random.randrange(len(data)) :]
        for _ in range(min(8, len(data))):
            data[random.randrange(len(data))] = random.randrange(256)
        spoilt = Path(shutil.copytree(converted, tmp_path / "spoilt"))
        (spoilt / name).write_bytes(data)
        try:
            open_data_set(str(spoilt), "wds")
        except ConfigError as error:
            refused += 1
            assert "\n" not in str(error)
        shutil.rmtree(spoilt)
    assert refused > 50


def test_a_folder_that_may_not_be_entered_is_not_called_damaged(
    converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # its images are not to be removed; root may enter every folder, so the refusal is made up
    opened = os.open

    def refused(path: str | Path, *arguments: Any) -> int:
        if Path(path).name == CONVERTED_RECORD:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(ConfigError, match=r"cannot read .*: Permission denied") as error:
        open_data_set(str(converted), None)
    assert "remove" not in str(error.value)


@pytest.mark.parametrize("table", ["offsets", "labels", "sizes", "first", "first_key", "original", "names", "texts"])
def test_a_list_whose_tables_do_not_fit_is_damaged(table: str, converted: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(converted, tmp_path / "spoilt"))
    with np.load(folder / INDEX_NAME) as stored:
        tables = {name: stored[name] for name in stored.files}
    tables[table] = tables[table][:-1] if table != "texts" else np.frombuffer(b'{"names": [1]}', dtype=np.uint8)
    with (folder / INDEX_NAME).open("wb") as file:
        np.savez(file, **tables)
    with pytest.raises(ConfigError, match=r"the index of the converted images in .* is damaged; remove the folder"):
        read_shards(str(folder))


def test_container_sizes_by_default() -> None:
    assert [shard_images_for(n) for n in (24, 320, 10_000, 1_281_167)] == [16, 16, 156, 1000]


def test_litdata_missing_names_the_extra(own_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litdata.streaming.writer", None)
    with pytest.raises(UnavailableError, match=r"pip install 'loaderbench\[litdata\]'"):
        convert_dataset(own_tree, "litdata")


def test_litdata_chunks_are_complete(own_tree: Path, tmp_path: Path) -> None:
    litdata = pytest.importorskip("litdata", reason="litdata is not installed: pip install 'loaderbench[litdata]'")
    out = convert_dataset(own_tree, "litdata", tmp_path / "lit", shard_images=7, processes=1).folder
    items = list(litdata.StreamingDataset(str(out)))
    sources = Counter(path.read_bytes() for path in own_tree.rglob("*.jpg"))
    assert Counter(item["image"] for item in items) == sources
    assert sorted(item["index"] for item in items) == list(range(24))
    assert read_shards(str(out)).samples.labels.tolist() == [item["label"] for item in items]


def test_an_interrupted_conversion_is_completed_from_its_pieces(
    own_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("litdata", reason="litdata is not installed: pip install 'loaderbench[litdata]'")
    with monkeypatch.context() as patch:
        patch.setattr(convert, "write_shards", interrupt)
        with pytest.raises(KeyboardInterrupt):
            convert_dataset(own_tree, "litdata", tmp_path / "lit", shard_images=7, processes=1)
    made = convert_dataset(own_tree, "litdata", tmp_path / "lit", shard_images=7, processes=1)
    assert not made.was_there
    assert not list(made.folder.glob(f"*.bin{convert.PIECE_SUFFIX}"))
    assert len(read_shards(str(made.folder)).samples) == 24


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_ffcv_missing_names_the_extra(own_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ffcv.types", None)
    with pytest.raises(UnavailableError, match=r"pip install 'loaderbench\[ffcv\]'"):
        convert_dataset(own_tree, "ffcv")


def test_ffcvs_own_reader_finds_the_bytes_of_the_files(
    own_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = pytest.importorskip("ffcv.reader", reason="FFCV is not installed: pip install 'loaderbench[ffcv]'")
    monkeypatch.setattr(importlib.import_module("ffcv.writer"), "MIN_PAGE_SIZE", 4096)
    monkeypatch.setattr(convert, "IMAGES_PER_PAGE", 3)
    paths = sorted(own_tree.rglob("*.jpg"))
    paths[5].write_bytes(paths[5].read_bytes()[:-40])
    with pytest.raises(ConfigError, match="leave --shard-images out"):
        convert_dataset(own_tree, "ffcv", tmp_path / "out", shard_images=8)
    told: list[tuple[int, int]] = []
    out = convert_dataset(
        own_tree, "ffcv", tmp_path / "out", progress=lambda done, total: told.append((done, total))
    ).folder
    assert told[-1] == (24, 24)
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) == [
        "broken.json",
        "images.beton",
    ]

    shards = read_shards(str(out))
    ((broken, reason),) = convert.broken_images(shards)
    assert shards.samples.path(broken).endswith(paths[5].name)
    assert "end-of-image" in reason
    sound = [position for position in range(24) if position != broken]
    beton = reader.Reader(str(out / "images.beton"))
    content = (out / "images.beton").read_bytes()
    images = index_images(str(own_tree))
    assert beton.num_samples == len(beton.alloc_table) == 23
    assert len(set(beton.alloc_table["ptr"] // beton.page_size)) > 3
    assert [int(label) for _, label in beton.metadata] == shards.samples.labels[sound].tolist()
    for position, (image, _), (number, begin, size) in zip(sound, beton.metadata, beton.alloc_table, strict=True):
        assert shards.samples.sizes[position] == size
        assert image["data_ptr"] == begin
        assert begin // beton.page_size == (begin + size - 1) // beton.page_size
        assert content[begin : begin + size] == Path(images.path(shards.original[position])).read_bytes()
        assert (image["mode"], image["width"], image["height"]) == (0, 96, 80)
        assert sound[number] == position


@pytest.mark.slow
def test_a_run_reads_the_shards(own_tree: Path, tmp_path: Path) -> None:
    pytest.importorskip("webdataset", reason="not installed: pip install 'loaderbench[webdataset]'")
    made = run("dataset", "convert", own_tree, "--to", "wds", "--shard-images", "4")
    assert made.code == 0, made.err
    assert "24 images in 6 files" in made.out
    ended = run("run", own_tree, "--loader", "webdataset", *TINY, "--results", tmp_path / "results")
    assert ended.code == 0, ended.err
    (record,) = records(tmp_path / "results")
    assert record["status"] == "ok"
    assert record["stages"]["decode"] > 0
    assert record["storage"]["expected_bytes"] > 0


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../../b.tar"])
@pytest.mark.parametrize("place", ["names", "side_files"])
def test_a_name_that_leads_out_of_the_folder_is_refused(place: str, name: str, own_tree: Path, tmp_path: Path) -> None:
    made = convert_dataset(own_tree, "wds", tmp_path / "wds", shard_images=12, processes=1)
    index = made.folder / ".loaderbench-converted.npz"
    with np.load(index) as stored:
        arrays = {key: stored[key] for key in stored.files}
    texts = json.loads(arrays["texts"].tobytes())
    texts[place] = [name, texts["names"][1]] if place == "names" else {name: "text"}
    arrays["texts"] = np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8)
    with index.open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(ConfigError, match="outside its folder") as told:
        read_shards(str(made.folder))
    assert name in str(told.value)


@pytest.mark.parametrize("name", ["../000000003.jpg", "/etc/000000003.jpg"])
def test_a_tar_member_that_leads_out_of_the_folder_is_refused(name: str, own_tree: Path, tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    from loaderbench.loaders import webdataset

    made = convert_dataset(own_tree, "wds", tmp_path / "wds", shard_images=24, processes=1)
    (shard,) = made.folder.glob("*.tar")
    content = members(made.folder)[shard.name]
    size = shard.stat().st_size
    with tarfile.open(shard, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, (known, data) in enumerate(content):
            member = tarfile.TarInfo(name if number == 6 else known)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    assert shard.stat().st_size == size
    context = LoaderContext(
        open_data_set(str(made.folder), "wds").images, 4, 1, 2, None, 32, "train", "uint8", 0,
        shards=read_shards(str(made.folder)),
    )  # fmt: skip
    dataset = webdataset._TarDataset(webdataset.Options(), context)
    with pytest.raises(CaseFailed, match="did not write its member"):
        list(dataset.samples(0, SpanClock(0)))


def test_the_index_of_litdata_names_no_file_elsewhere(
    own_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "litdata", ModuleType("litdata"))  # only its index is read here
    litdata = importlib.import_module("loaderbench.loaders.litdata")
    monkeypatch.delitem(sys.modules, "loaderbench.loaders.litdata")
    made = convert_dataset(own_tree, "wds", tmp_path / "wds", shard_images=12, processes=1)
    (made.folder / "index.json").write_text(json.dumps({"chunks": [{"filename": "../../secret.bin"}]}))
    with pytest.raises(ConfigError, match="outside its folder"):
        litdata._complete(read_shards(str(made.folder)))

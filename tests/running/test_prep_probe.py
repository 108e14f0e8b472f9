"""The decoders' probe: all that are installed, on the same images, and nothing left behind."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pictures import write_tree
from PIL import Image

from loaderbench import plugins
from loaderbench.decoders.base import Decoder
from loaderbench.images.index import index_images
from loaderbench.loaders.base import LoaderContext
from loaderbench.loaders.samples import make_decoder
from loaderbench.running import prep_probe
from loaderbench.running.jobs.screen import compare_decode_scales
from loaderbench.running.jobs.table import ScalesRequest
from loaderbench.running.prep_probe import MIN_IMAGES, image_seconds, probe_preparation
from loaderbench.selftest.injections import Injection
from tests.made import make_case

needs_libjpeg = pytest.mark.skipif(
    plugins.missing(plugins.DECODERS.built_in["libjpeg"].traits.needs) is not None, reason="libjpeg cannot be built"
)


@pytest.fixture
def context(small_set: Path) -> LoaderContext:
    return LoaderContext(
        images=index_images(str(small_set / "128")), batch_size=8, workers=2, prefetch=2, decoder="pillow",
        input_size=64, mode="train", output="float32", seed=0,
    )  # fmt: skip


def test_every_decoder_on_the_same_images(context: LoaderContext) -> None:
    threads, torch_threads = threading.active_count(), torch.get_num_threads()
    facts = probe_preparation(context, 2)
    assert {"pillow", "turbojpeg"} <= set(facts.decoders)
    assert len({len(one.image_s) for one in facts.decoders.values()}) == 1
    for one in facts.decoders.values():
        assert len(one.image_s) >= MIN_IMAGES
        assert min(one.image_s) > 0 and (one.all_cpus_image_s or 0) > 0 and (one.all_cpus_rate or 0) > 0
    for handover in facts.handover_s.values():
        assert handover["shared"] > handover["reused"] >= 0
    assert (threading.active_count(), torch.get_num_threads()) == (threads, torch_threads)


def test_a_sample_as_torchvisions_users_make_it_costs_more_than_straight_into_its_batch(
    context: LoaderContext,
) -> None:
    facts = probe_preparation(context, 1)
    assert [name for name, one in facts.decoders.items() if one.as_torchvision_s] == ["pillow"]
    pillow = facts.decoders["pillow"]
    for output in ("uint8", "float32"):
        assert len(pillow.as_torchvision_s[output]) == len(pillow.image_s)
        stacked, direct = facts.stack_s[output], facts.handover_s[output]
        assert stacked["shared"] > 0 and stacked["private"] > 0
        whole = np.median(pillow.as_torchvision_s[output]) + stacked["shared"]
        assert whole > np.median(pillow.image_s) + direct["shared"]


def test_only_the_case_s_own_decoder_of_pil_images_is_timed_in_torchvisions_way(context: LoaderContext) -> None:
    facts = probe_preparation(replace(context, decoder="turbojpeg"), 1)
    assert not any(one.as_torchvision_s for one in facts.decoders.values())
    assert not facts.stack_s


def differences_by_draft(root: Path, side: int) -> list[float]:
    """Of each picture, resized and cut as torchvision's evaluation does, what Pillow's own scaled decoding changes."""
    short = round(side * 256 / 224)
    left = round((short - side) / 2)

    def sample(path: Path, *, scaled: bool) -> NDArray[np.int16]:
        with Image.open(path) as image:
            if scaled:
                image.draft("RGB", (short, short))
            resized = image.resize((short, short), Image.Resampling.BILINEAR)
        return np.asarray(resized.crop((left, left, left + side, left + side)), dtype=np.int16)

    paths = sorted(root.rglob("*.jpg"))
    return [float(np.abs(sample(one, scaled=True) - sample(one, scaled=False)).mean()) for one in paths]


@needs_libjpeg
def test_what_a_smaller_scale_changes_is_measured_on_the_data_set_s_own_pictures(
    context: LoaderContext, tmp_path: Path, photographs: list[NDArray[np.uint8]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given pictures of 384 pixels, of which an eighth and a quarter are enough
    monkeypatch.setattr(prep_probe, "SCALES_S", 600.0)
    write_tree(tmp_path, photographs, [(384, 384)] * 8)
    for side in (32, 64):
        asked = replace(context, images=index_images(str(tmp_path)), mode="infer", input_size=side)
        facts = probe_preparation(asked, 1)
        # then only the decoder that scales was tried, and differs as Pillow does
        assert set(facts.scales) == {"libjpeg"}
        found = facts.scales["libjpeg"]
        assert len(found.off_s) == len(found.auto_s) == 8 and min(*found.off_s, *found.auto_s) > 0
        assert sorted(found.difference) == pytest.approx(sorted(differences_by_draft(tmp_path, side)), abs=0.3)
        assert np.mean(found.difference) > 1.0
        assert sum(found.auto_s) < sum(found.off_s)
        # and a search asks the same of its case's decoder alone
        case = make_case(
            dataset=str(tmp_path), decoder="libjpeg", decode_scale="auto", mode="infer", input_size=side, seed=0
        )
        alone = compare_decode_scales(ScalesRequest(case), lambda message: None)
        assert alone.difference == found.difference
    # and pictures too small for it are the same
    small = probe_preparation(replace(asked, input_size=224), 1).scales["libjpeg"]
    assert set(small.difference) == {0.0}


def test_a_decoder_that_scales_is_timed_at_the_scale_of_the_case(
    context: LoaderContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given two decoders that scale, of which the case uses the one
    both = dict.fromkeys(("pillow", "turbojpeg"), plugins.DECODERS.built_in["libjpeg"])
    monkeypatch.setattr(plugins, "DECODERS", replace(plugins.DECODERS, built_in=both))
    made: list[tuple[str, object]] = []

    def make(asked: LoaderContext, default: str) -> Decoder:
        made.append((str(asked.decoder), asked.decoder_options.get("scale")))
        return make_decoder(asked, default)

    monkeypatch.setattr(prep_probe, "make_decoder", make)
    probe_preparation(replace(context, decoder_options={"scale": "auto"}), 1)
    assert made[:2] == [("pillow", "auto"), ("turbojpeg", "auto")]
    made.clear()
    probe_preparation(context, 1)
    assert made[:2] == [("pillow", None), ("turbojpeg", None)]


def test_what_is_built_into_decoding_is_seen_in_every_decoder(context: LoaderContext) -> None:
    slowed = replace(context, slowdown=Injection(decode_burn_s=0.004))
    facts = probe_preparation(slowed, 1)
    for one in facts.decoders.values():
        assert min(one.image_s) > 0.0038


def test_one_image_in_each_decoder_is_enough_behind_the_time(context: LoaderContext) -> None:
    facts = probe_preparation(context, 2, time.perf_counter())
    assert {"pillow", "turbojpeg"} <= set(facts.decoders)
    for one in facts.decoders.values():
        assert len(one.image_s) == 1 and one.image_s[0] > 0
        assert one.all_cpus_image_s is None and one.all_cpus_rate is None


@needs_libjpeg
def test_what_scaling_gives_is_known_by_few_samples_behind_the_time(
    context: LoaderContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prep_probe, "SCALES_S", 0.0)
    found = probe_preparation(context, 2, time.perf_counter()).scales["libjpeg"]
    assert len(found.off_s) == len(found.auto_s) == len(found.difference) == 1


def test_an_image_is_timed_with_what_is_built_in(context: LoaderContext, own_tree: Path) -> None:
    known = image_seconds(replace(context, slowdown=Injection(decode_burn_s=0.02)))
    assert known is not None and 0.02 < known < 0.04
    images = index_images(str(own_tree))
    Path(images.path(0)).write_bytes(b"no image")
    assert image_seconds(replace(context, images=images)) is None


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_whole_images_of_one_size(context: LoaderContext, mode: str) -> None:
    facts = probe_preparation(replace(context, input_size=None, mode=mode), 1)
    assert facts.decoders["pillow"].image_s


def test_broken_images_are_left_out(own_tree: Path, context: LoaderContext) -> None:
    paths = sorted(own_tree.rglob("*.jpg"))
    for path in paths[: len(paths) // 2]:
        path.write_bytes(path.read_bytes()[:200])
    facts = probe_preparation(replace(context, images=index_images(str(own_tree)), input_size=32), 1)
    assert 0 < len(facts.decoders["pillow"].image_s) <= len(paths) // 2

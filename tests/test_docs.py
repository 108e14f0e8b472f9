"""The documentation keeps up with the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np

from loaderbench.images.index import index_images
from loaderbench.loaders.base import LoaderContext

ROOT = Path(__file__).resolve().parents[1]


def test_every_caveat_is_explained() -> None:
    pattern = re.compile(r"""(?:Caveat|say|\.append)\(\(?\s*"([a-z]+(?:_[a-z]+)+)"\s*,""")
    used = {code for file in (ROOT / "loaderbench").rglob("*.py") for code in pattern.findall(file.read_text())}
    explained = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs/reading-a-verdict.md").read_text()))
    assert len(used) > 20
    assert used - explained == set()


def test_the_example_loader_delivers_each_sample_once(small_set: Path) -> None:
    spec = importlib.util.spec_from_file_location("plain_loader", ROOT / "docs/examples/plain_loader.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    images = index_images(str(small_set / "96"))
    context = LoaderContext(
        images=images, batch_size=4, workers=0, prefetch=2, decoder=None, input_size=32, mode="train",
        output="uint8", seed=0, device="cpu",
    )  # fmt: skip
    loader = module.build(module.Options(), context)
    seen = np.concatenate([batch.indices for batch in loader.batches(0, 1)])
    assert sorted(seen) == list(range(len(images)))

"""A setting as code to paste into a training script."""

from __future__ import annotations

from pathlib import Path

from loaderbench.cases.case import Case
from loaderbench.cases.study import SCALING_DECODERS
from loaderbench.devices.select import nvml_ordinal
from loaderbench.prefixes import prefix_of

DECODE = {
    "turbojpeg": "import simplejpeg\n\n\ndef decode(path):\n    with open(path, 'rb') as file:\n"
    "        return torch.from_numpy(simplejpeg.decode_jpeg(file.read())).permute(2, 0, 1)\n",
    "torchvision": "\n\ndef decode(path):\n    return torchvision.io.decode_image(path, mode='RGB')\n",
    "opencv": "import cv2\n\ncv2.setNumThreads(0)\n\n\ndef decode(path):\n"
    "    return torch.from_numpy(cv2.imread(path, cv2.IMREAD_COLOR_RGB)).permute(2, 0, 1)\n",
}
DEFAULT_DECODE = "\ndecode = torchvision.datasets.folder.default_loader\n"


def snippet(case: Case) -> str:
    """Python that uses the setting. Runs as it is, where the data set is."""
    folder = Path(case.subject.dataset)
    flat = folder.is_dir() and not any(entry.is_dir() for entry in folder.iterdir())
    plain = case.feed.loader in ("serial", "multiprocess") and case.feed.decoder not in SCALING_DECODERS
    if flat or not plain:  # torchvision's ImageFolder wants a folder for each class
        return _with_our_loader(case)
    return _with_torchvision(case)


def _with_our_loader(case: Case) -> str:
    feed, step = case.feed, case.step
    gpu = nvml_ordinal(step.device)
    return f"""\
from loaderbench import plugins
from loaderbench.images.index import index_images
from loaderbench.loaders.base import LoaderContext

context = LoaderContext(
    images=index_images({case.subject.dataset!r}), batch_size={step.batch_size}, workers={feed.workers},
    prefetch={feed.prefetch}, decoder={feed.decoder!r}, input_size={step.input_size}, mode={step.mode!r},
    output={feed.output!r}, seed={case.effort.seed}, gpu={gpu}, pin_memory={gpu is not None},
)
module = plugins.load("loaders", {feed.loader!r})
loader = module.build(plugins.parse_options(module, {dict(feed.loader_options)!r}), context)
for batch in loader.batches(num_epochs=1):
    inputs, targets = batch.inputs, batch.targets
loader.close()
"""


def _with_torchvision(case: Case) -> str:
    feed, step = case.feed, case.step
    decode = DECODE.get(feed.decoder or "", DEFAULT_DECODE)
    if feed.decoder == "pillow-simd":
        prefix = prefix_of("pillow-simd")
        decode = f"\n# in a process that has pillow-simd: PYTHONPATH={prefix}{DEFAULT_DECODE}"
    size = step.input_size or 224
    spatial = (
        f"v2.RandomResizedCrop({size}, antialias=True), v2.RandomHorizontalFlip()"
        if step.mode == "train"
        else f"v2.Resize({round(size * 256 / 224)}, antialias=True), v2.CenterCrop({size})"
    )
    kind = (
        "v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))"
        if feed.output == "float32"
        else "v2.ToDtype(torch.uint8)"
    )
    workers = (
        f"num_workers={feed.workers}, prefetch_factor={feed.prefetch}, persistent_workers=True, "
        if feed.workers
        else "num_workers=0, "
    )
    return f"""\
import torch
import torchvision
from torchvision.transforms import v2
{decode}

transform = v2.Compose([v2.ToImage(), {spatial}, {kind}])
dataset = torchvision.datasets.ImageFolder({case.subject.dataset!r}, transform=transform, loader=decode)
loader = torch.utils.data.DataLoader(
    dataset, batch_size={step.batch_size}, shuffle=True, {workers}pin_memory={nvml_ordinal(step.device) is not None}
)
"""

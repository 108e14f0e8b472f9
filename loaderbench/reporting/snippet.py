"""A setting as code to paste into a training script."""

from __future__ import annotations

from pathlib import Path

from loaderbench import plugins
from loaderbench.cases.case import Case, Feed
from loaderbench.devices.select import nvml_ordinal
from loaderbench.prefixes import folder


def snippet(case: Case) -> str:
    """Python code that uses the setting. It runs unchanged on a machine with the data set."""
    root = Path(case.subject.dataset)
    flat = root.is_dir() and not any(entry.is_dir() for entry in root.iterdir())
    decode = _decode(case.feed)
    if flat or decode is None:  # torchvision's ImageFolder wants a folder for each class
        return _with_our_loader(case)
    return _with_torchvision(case, decode)


def _decode(feed: Feed) -> str | None:
    """Code that defines `decode(path)` for torchvision's ImageFolder; None where PyTorch itself has no such setting."""
    loader, decoder = plugins.LOADERS.known().get(feed.loader), plugins.DECODERS.known().get(feed.decoder or "")
    if loader is None or decoder is None or not loader.is_data_loader or decoder.example is None:
        return None
    if feed.loader_options or feed.decoder_options:
        return None
    if decoder.prefix is None:
        return decoder.example
    return f"\n# in a process that has {decoder.prefix}: PYTHONPATH={folder(decoder.prefix)}{decoder.example}"


def _data_loader_arguments(case: Case) -> str:
    """How PyTorch's DataLoader is called with the setting, besides its data set."""
    feed, step = case.feed, case.step
    workers = (
        f"num_workers={feed.workers}, prefetch_factor={feed.prefetch}, persistent_workers=True, "
        if feed.workers
        else "num_workers=0, "
    )
    return f"batch_size={step.batch_size}, shuffle=True, {workers}pin_memory={nvml_ordinal(step.device) is not None}"


def _with_our_loader(case: Case) -> str:
    feed, step = case.feed, case.step
    gpu = nvml_ordinal(step.device)
    loader = plugins.LOADERS.known().get(feed.loader)
    own = f"# your own data set: DataLoader(dataset, {_data_loader_arguments(case)})\n"
    return f"""\
{own if loader is not None and loader.is_data_loader else ""}from loaderbench import plugins
from loaderbench.images.index import index_images
from loaderbench.loaders.base import LoaderContext

context = LoaderContext(
    images=index_images({case.subject.dataset!r}), batch_size={step.batch_size}, workers={feed.workers},
    prefetch={feed.prefetch}, decoder={feed.decoder!r}, input_size={step.input_size}, mode={step.mode!r},
    output={feed.output!r}, seed={case.effort.seed}, gpu={gpu}, pin_memory={gpu is not None},
    decoder_options={dict(feed.all_decoder_options)!r},
)
module = plugins.LOADERS.load({feed.loader!r})
loader = module.build(plugins.parse_options(module, {dict(feed.loader_options)!r}), context)
for batch in loader.batches(num_epochs=1):
    inputs, targets = batch.inputs, batch.targets
loader.close()
"""


def _with_torchvision(case: Case, decode: str) -> str:
    feed, step = case.feed, case.step
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
    return f"""\
import torch
import torchvision
from torchvision.transforms import v2
{decode}

transform = v2.Compose([v2.ToImage(), {spatial}, {kind}])
dataset = torchvision.datasets.ImageFolder({case.subject.dataset!r}, transform=transform, loader=decode)
loader = torch.utils.data.DataLoader(
    dataset, {_data_loader_arguments(case)}
)
"""

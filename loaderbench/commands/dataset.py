"""`loaderbench dataset`: make, derive, convert and inspect data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loaderbench.cases.options import Numbers, read
from loaderbench.commands.command import Command, MeasuringCommand, help_alone
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import echo, progress, say, write_json

app = typer.Typer(
    help="Make, derive, convert and inspect data sets.",
    invoke_without_command=True,
    callback=help_alone,
    rich_markup_mode=None,
)


@app.command("make", cls=MeasuringCommand)
def make(
    res: Annotated[str, typer.Option(help="Resolutions, comma separated: N for N×N, or WxH")],
    out: Annotated[Path, typer.Option(help="Output folder")],
    num_images: Annotated[int, typer.Option(help="Images per resolution")] = 1000,
    num_classes: Annotated[int, typer.Option(help="Class folders")] = 10,
    aspect_spread: Annotated[
        float, typer.Option(help="Spread of aspect ratios: standard deviation of log(width ÷ height)")
    ] = 0.0,
    quality_spread: Annotated[int, typer.Option(help="Spread of the JPEG quality: ± this")] = 0,
    progressive: Annotated[float, typer.Option(help="Fraction of progressive files")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same files")] = 0,
) -> None:
    """Make realistic JPEGs in the layout DIR/<res>/<class>/*.jpg. Existing files are kept."""
    from loaderbench.images.synthesize import make_dataset

    with progress("making images") as on_progress:
        folders = make_dataset(
            out,
            [token.strip() for token in res.split(",")],
            num_images,
            seed=seed,
            num_classes=num_classes,
            aspect_spread=aspect_spread,
            quality_spread=quality_spread,
            progressive_fraction=progressive,
            progress=on_progress,
        )
    for name, folder in folders.items():
        echo(f"{name}: {num_images} images in {folder}")


@app.command("derive", cls=MeasuringCommand)
def derive(
    src: Annotated[str, typer.Argument(help="Folder of images")],
    res: Annotated[str, typer.Option(help="Shorter sides, comma separated")],
    out: Annotated[Path, typer.Option(help="Output folder")],
    quality: Annotated[int | None, typer.Option(help="JPEG quality")] = None,
) -> None:
    """Resize and re-encode your own images into resolution variants."""
    from loaderbench.images.derive import DEFAULT_QUALITY, derive_dataset

    sides = read("res", Numbers, res)
    with progress("deriving images") as on_progress:
        made = derive_dataset(src, sides, out, quality=quality or DEFAULT_QUALITY, progress=on_progress)
    for side, folder in made.variants.items():
        echo(f"{side}: {folder}")
    echo(f"{made.num_made} made, {made.num_kept} already there, {len(made.broken)} broken")
    for path, reason in made.broken[:20]:
        say(f"broken: {path}: {reason}")


@app.command("convert", cls=Command)
def convert(
    src: Annotated[str, typer.Argument(help="Folder of images, or a data set's name")],
    to: Annotated[str, typer.Option(help="wds (tar shards, for --loader webdataset), litdata or ffcv")],
    res: Annotated[int | None, typer.Option(help="Stored resolution: the data set's variant N")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder  [default: inside SRC, where the loader finds it]")
    ] = None,
    shard_images: Annotated[
        int | None, typer.Option(help="Images per file  [default: 64 files of 16 to 1000 images]")
    ] = None,
) -> None:
    """Convert images into another library's container files. Finished files are kept."""
    from loaderbench.images.manifest import resolve_dataset

    with progress("preparing the data set") as on_progress:
        folder, _ = resolve_dataset(src, res, progress=on_progress)
    from loaderbench.images.convert import convert_dataset  # late: a wrong name is refused without numpy

    with progress("converting images") as on_progress:
        try:
            made = convert_dataset(folder, to, out, shard_images=shard_images, progress=on_progress)
        except KeyboardInterrupt:
            say("the converted files are kept; repeat the command to continue")
            raise
    state = "already there" if made.was_there else "made"
    echo(f"{made.folder}: {state}, {made.num_images} images in {made.num_files} files, {made.total_bytes:,} bytes")
    if out is None:
        echo("torchvision's ImageFolder reads that folder as a class. Pass it allow_empty=True, or give --out here")


@app.command("scan", cls=Command)
@with_options(without=("quiet", "results"))
def scan(
    *,
    folder: Annotated[str, typer.Argument(help="Folder of images")],
    content: Annotated[bool, typer.Option(help="Read the header and end of each file")] = True,
    output: OutputOptions,
) -> None:
    """Count the images, show their sizes, resolutions and storage, and list broken files."""
    from loaderbench.images.scan import scan_dataset

    with progress("scanning") as on_progress:
        found = scan_dataset(folder, check_content=content, progress=on_progress)
    if output.json_out is not None:
        write_json(found.to_json(), output.json_out)
        return
    from loaderbench.reporting.data_set import print_scan

    print_scan(found)

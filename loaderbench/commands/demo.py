"""`loaderbench demo`: a whole diagnosis of a run that needs no data of the user's."""

from __future__ import annotations

from loaderbench.cases.study import read_options
from loaderbench.commands.measuring import measure
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import progress, say

RESOLUTION, NUM_IMAGES = 256, 128
"""Of its data set: made in seconds."""
DURATION_S = 6
"""With imports and the data set it stays below 30 s on two processors."""
YOUR_OWN = """
Now yours:
  loaderbench attach 4711      a job that is running, by its process id
  loaderbench watch train.py   your training script
  loaderbench run photos       a folder of images\
"""


@with_options()
def demo(*, output: OutputOptions) -> None:
    """Show a whole diagnosis in 30 s, on generated images."""
    from loaderbench.images.manifest import generated_root
    from loaderbench.images.synthesize import make_dataset

    with progress("making images") as on_progress:
        folders = make_dataset(generated_root() / "demo", [str(RESOLUTION)], NUM_IMAGES, progress=on_progress)
    (folder,) = folders.values()
    measure(read_options({"duration": DURATION_S}), str(folder), output)
    if not output.quiet:
        for line in YOUR_OWN.splitlines():
            say(line)

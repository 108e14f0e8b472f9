"""What to do with a data set inside container files (tar, Parquet, HDF5, …), which `run` does not read."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

_MOUNT = "unpack it (`{unpack}`) or mount it (`ratarmount {file} DIR`), then `loaderbench run DIR`"
_WDS = ", or `loaderbench dataset convert DIR --to wds` and `--loader webdataset` to read tar shards"
_ROWS = "write its images to a folder DIR, one file each, then `loaderbench run DIR`"
CONTAINERS = {
    ".tar": ("a tar archive", _MOUNT.replace("{unpack}", "tar -xf {file} -C DIR") + _WDS),
    ".tar.gz": ("a tar archive", _MOUNT.replace("{unpack}", "tar -xf {file} -C DIR") + _WDS),
    ".tgz": ("a tar archive", _MOUNT.replace("{unpack}", "tar -xf {file} -C DIR") + _WDS),
    ".zip": ("a zip archive", _MOUNT.replace("{unpack}", "unzip {file} -d DIR")),
    ".parquet": ("a Parquet file", _ROWS + "; `--loader hf-datasets` times the library that reads Parquet"),
    ".arrow": ("an Arrow file", _ROWS + "; `--loader hf-datasets` times the library that reads Arrow"),
    ".mds": ("a shard of MosaicML Streaming", _ROWS + "; `--loader litdata` times a library of the same kind"),
    ".h5": ("an HDF5 file", _ROWS),
    ".hdf5": ("an HDF5 file", _ROWS),
    ".npz": ("a NumPy archive", _ROWS),
    ".npy": ("a NumPy array", _ROWS),
    ".lmdb": ("an LMDB database", _ROWS),
    ".mdb": ("an LMDB database", _ROWS),
    ".tfrecord": ("a TFRecord file", _ROWS + "; `--loader tf-data` times the library that reads TFRecords"),
    ".beton": ("a file of FFCV", "run the folder of images that it was made of with `--loader ffcv`"),
}
"""Ending → what it is, and how `run` can measure its images."""


def container_advice(names: Iterable[str]) -> str | None:
    """Say what to do with the first container file among `names`; None if there is none."""
    for name in names:
        for ending, (kind, how) in CONTAINERS.items():
            if name.lower().endswith(ending):
                file = shlex.quote(name) if name != ending else f"FILE{ending}"
                called = f"{name} is {kind}" if name != ending else f"{ending} files are each {kind}"
                return (
                    f"{called}, and `run` reads folders of images. To measure the script that reads it as it does: "
                    f"`loaderbench watch SCRIPT`. Or {how.format(file=file)}"
                )
    return None

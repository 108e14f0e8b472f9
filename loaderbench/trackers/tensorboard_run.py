"""TensorBoard: points are scalars, the result is a text. Its files hold no HTML."""

from __future__ import annotations

import gc
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from loaderbench.trackers.tracker import PREFIX, Library, Point, Summary, Target

WRITERS = ("torch.utils.tensorboard.writer", "torch.utils.tensorboard", "tensorboardX.writer", "tensorboardX")
SUFFIX = ".loaderbench"


class Tensorboard(Library):
    """The library, in a process of ours."""

    def target_of(self, name: str) -> Target:
        """The folder of the first writer that the script has open: TensorBoard's run is a folder."""
        found = (getattr(sys.modules.get(module), "SummaryWriter", None) for module in WRITERS)
        kinds = tuple(kind for kind in found if isinstance(kind, type))
        writer = next((one for one in gc.get_objects() if issubclass(type(one), kinds)), None) if kinds else None
        folder = getattr(writer, "log_dir", None) or getattr(writer, "logdir", None)
        return Target(None if folder is None else str(Path(folder).absolute()), name=name)

    def open_run(self, target: Target) -> TensorboardRun:
        """Open a file in the script's folder, or in a new one in `runs`, named as PyTorch's writer names its own.

        Raises OSError where it cannot be written.
        """
        new = f"{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}-{target.name or 'loaderbench'}"
        return TensorboardRun(Path("runs", new) if target.run is None else Path(target.run))


class TensorboardRun:
    """A file of events of our own: a full disk fails us, and not the script's writer."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder), filename_suffix=SUFFIX)
        self._last_step = 0

    def point(self, point: Point) -> None:
        """Log the figures at one step."""
        self._last_step = point.step
        self._write(point.values)

    def summarize(self, summary: Summary) -> None:
        """Log the result as text, and its figures."""
        self._write({**summary.values, "result": summary.text})

    def close(self, *, failed: bool) -> None:
        """Close the file."""
        self._writer.close()

    def _write(self, values: Mapping[str, float | str]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary as Written
        from tensorboard.plugins.text.summary_v2 import text_pb

        for name, value in values.items():
            tag = f"{PREFIX}{name}"
            written = (
                text_pb(tag, value)
                if isinstance(value, str)
                else Written(value=[Written.Value(tag=tag, simple_value=value)])
            )
            self._writer.add_event(Event(wall_time=time.time(), step=self._last_step, summary=written))
        self._writer.flush()


LIBRARY = Tensorboard()

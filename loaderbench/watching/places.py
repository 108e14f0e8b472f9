"""Says what a thread does from its Python stack: which part of a training loop, at which line of the user's code.

The innermost frame that is known decides: a sampler's `__iter__` called by a DataLoader is the sampler's part, whatever
else the stack holds. What no frame of a loader claims is the step of the script.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from loaderbench.originals import os
from loaderbench.samplers.stacks import Frame
from loaderbench.watching.within import is_own

OURS = f"{Path(__file__).parents[1]}{os.sep}"
MOST_CALLERS = 8
LOADER = f"torch{os.sep}utils{os.sep}data{os.sep}"
OF_LOADER = {
    "_BaseDataLoaderIter._next_index": "sampler",
    "_MultiProcessingDataLoaderIter._try_put_index": "send_indices",
    "_MultiProcessingDataLoaderIter._try_get_data": "queue",
    "_MultiProcessingDataLoaderIter._shutdown_workers": "epoch_start",
    "_MultiProcessingDataLoaderIter.__init__": "epoch_start",
    "_MultiProcessingDataLoaderIter._reset": "epoch_start",
    "_BaseDataLoaderIter.__next__": "loader",
    "_MapDatasetFetcher.fetch": "dataset",
    "_MapDatasetFetcher.fetch.<locals>.<listcomp>": "dataset",
    "_IterableDatasetFetcher.fetch": "dataset",
    "_worker_loop": "indices",
    "_pin_memory_loop": "pin",
}
"""Functions of PyTorch's loader (2.4 to 2.15), and the part that what they call belongs to."""
_FEEDS = re.compile(
    r"/(nvidia/dali|grain|tensorflow/python/data|torchdata|webdataset|litdata|streaming/base|spdl|ray/data|ffcv"
    r"|datasets)/"
)
"""Folders of other libraries that give batches."""
_OF_PYTHON = re.compile(r"/lib(64)?/python3\.\d+t?/")
_OURS = {
    "Watched.step": "loader", "Watcher.hold": "held", "Watcher.fill": "held", "Doses.give": "held",
    "SpanRing.rest": "held",
}  # fmt: skip
_STARTS = ("_MultiProcessingDataLoaderIter.__init__", "_MultiProcessingDataLoaderIter._reset", "DataLoader.__iter__")
_CALLS = (
    ("gc", ("gc.collect",)),
    ("checkpoint", ("torch.save", "np.save", "np.savez", "numpy.save", "pickle.dump", "save_file",
                    "save_pretrained", "save_checkpoint")),
    ("sync", (".item", "torch.cuda.synchronize")),
    ("logging", ("print", "wandb.log", "logger.info", "logging.info", "add_scalar", "add_image", "writer.writerow")),
)  # fmt: skip
_FOLDERS = (
    ("compile", ("torch/_dynamo/", "torch/_inductor/", "torch/_functorch/", "torch/jit/", "triton/compiler/")),
    ("checkpoint", ("torch/distributed/checkpoint/",)),
    ("logging", ("/logging/__init__.py", "tensorboard", "/wandb/", "/mlflow/", "/tqdm/", "torch/utils/tensorboard/")),
    ("collective", ("torch/distributed/distributed_c10d",)),
)
_NAMES = (
    ("validation", ("validat", "evaluat", "eval_", "_eval", "run_eval", "test_epoch")),
    ("checkpoint", ("checkpoint", "save_model", "save_ckpt", "save_state", "snapshot")),
    ("logging", ("log_metrics", "write_log", "log_image", "log_step", "log_scalar", "log_stat", "write_summary")),
)
"""Beginnings or parts of the names of the script's own functions."""


class Spot(NamedTuple):
    """What a thread does, by its stack; the fields of `recording.thread_samples.Place`, without numpy."""

    file: str
    line: int
    function: str
    """The innermost line of the user's code within the part; of a library's where there is none of the user's."""
    callee: str
    """What is called there, as it is written (`np.random.choice`), else the library's function; empty: unknown."""
    owner: str
    part: str
    """`sampler`, `queue`, `dataset`, `collate`, `step`, `checkpoint` …"""
    callers: tuple[str, ...]


def spot_of(frames: Sequence[Frame]) -> Spot:
    """Of a stack, the innermost frame first."""
    part, inside, at_start = _part_of(frames)
    own = [frame for frame in inside if is_users(frame.file)]
    if part == "step":
        part, at = _of_step(inside, own)
        own = own[at:]
    if at_start and part != "process_start":
        part = "sampler_start" if part == "sampler" else "epoch_start"
    if own:
        at, frame = inside.index(own[0]), own[0]
        callee = called(frame) or (inside[at - 1].function if at else "")
        callers = tuple(f"{one.file}:{one.line} {one.function}" for one in own[1 : 1 + MOST_CALLERS])
        return Spot(frame.file, frame.line, frame.function, callee, "user", part, callers)
    if not inside:
        return Spot("", 0, "", "", "library", part, ())
    frame, callee = inside[-1], inside[0].function if len(inside) > 1 else ""
    return Spot(frame.file, frame.line, frame.function, callee, "library", part, ())


def _part_of(frames: Sequence[Frame]) -> tuple[str, list[Frame], bool]:
    """(part, the frames within it, whether an iterator is being started)"""
    inside: list[Frame] = []
    loop = next((at for at, frame in enumerate(frames) if frame.function == "_worker_loop"), len(frames))
    at_start = any(frame.function in _STARTS and LOADER in frame.file for frame in frames[:loop])
    for frame in frames:
        if LOADER in frame.file and frame.function in OF_LOADER:
            part = OF_LOADER[frame.function]
            return _finer(part, inside, frames), inside, at_start
        if LOADER in frame.file and "collate" in frame.file:
            return "collate", [*inside, frame], at_start
        if frame.file.startswith(OURS):
            if frame.function == "_execute":  # what called it is no script
                break
            if frame.function in _OURS:
                return _OURS[frame.function], inside, at_start
            if frame.function.endswith("marked"):  # collate, called by ours
                return "collate", inside, at_start
            continue
        if frame.function == "Queue._feed" and frame.file.endswith("queues.py"):
            return "send", inside, at_start
        if _is_runner(frame):
            continue
        inside.append(frame)
    fed = next((at for at, frame in enumerate(inside) if _feeds(frame)), None)
    if fed is not None:
        own = [frame for frame in inside[:fed] if is_users(frame.file)]
        return "loader", inside[:fed] if own else inside, at_start  # the user's code that it calls, or that calls it
    if any(frame.function.endswith("Queue.put") and frame.file.endswith("queues.py") for frame in inside):
        return "indices", inside, at_start  # of another loader's worker: its queue is full
    return ("import" if any(_imports(frame) for frame in frames) else "step"), inside, at_start


def _feeds(frame: Frame) -> bool:
    """Whether it is another library's loader, or a queue that a thread of the process fills."""
    if is_users(frame.file):
        return False
    is_queue = os.path.basename(frame.file) == "queue.py" and frame.function.rpartition(".")[2] == "get"
    return is_queue or _FEEDS.search(frame.file) is not None


def _imports(frame: Frame) -> bool:
    return frame.file.startswith("<frozen importlib") and frame.function == "_find_and_load"


def _finer(part: str, inside: Sequence[Frame], frames: Sequence[Frame]) -> str:
    if part == "queue" and any("reductions.py" in frame.file for frame in inside):
        return "rebuild"
    if part == "epoch_start" and any(frame.function.endswith("Popen.__init__") for frame in frames):
        return "process_start"
    return part


def _of_step(inside: Sequence[Frame], own: Sequence[Frame]) -> tuple[str, int]:
    """(part, position of the user's frame that says so)"""
    for part, folders in _FOLDERS:
        if any(folder.replace("/", os.sep) in frame.file for frame in inside for folder in folders):
            return part, 0
    if any(frame.file.endswith("serialization.py") and "save" in frame.function for frame in inside):
        return "checkpoint", 0
    call = (called(own[0]) if own else None) or ""
    for part, calls in _CALLS:
        if any(call == one or call.endswith(one if one.startswith(".") else f".{one}") for one in calls):
            return part, 0
    names = [frame.function.rpartition(".")[2].lower() for frame in own]
    for part, words in _NAMES:
        for at, name in enumerate(names):
            if any(word in name for word in words):
                return part, at
    return "step", 0


def is_watchs(frames: Sequence[Frame]) -> bool:
    """Whether a thread is one of the watch's own: code of ours runs it, and none of the user's."""
    return any(frame.file.startswith(OURS) for frame in frames) and not any(is_users(frame.file) for frame in frames)


def is_users(file: str) -> bool:
    """Whether the code of a file is the user's own: no library's of any Python, and none of ours."""
    return (
        is_own(file)
        and not file.startswith((OURS, "<frozen", "<__array_function__"))
        and _OF_PYTHON.search(file) is None
    )


def _is_runner(frame: Frame) -> bool:
    """Whether it only leads to the script's module."""
    return frame.file.startswith("<frozen") or (frame.function in ("run_path", "run_module") and "runpy" in frame.file)


@functools.lru_cache(maxsize=4096)
def called(frame: Frame) -> str | None:
    """What the expression calls that the frame is at, as the source names it; None where it is no call, or the source
    is not there."""
    span = frame.span
    if span is None:
        return None
    lines = [linecache.getline(frame.file, number).encode() for number in range(span.line, span.end_line + 1)]
    if not lines or not all(lines):
        return None
    lines[-1] = lines[-1][: span.end_column]
    lines[0] = lines[0][span.column :]
    try:
        tree = ast.parse(b" ".join(line.strip() for line in lines).decode(errors="replace"), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if isinstance(tree, ast.Call):
        return ast.unparse(tree.func)
    return ast.unparse(tree) if isinstance(tree, ast.Subscript | ast.Attribute) else None

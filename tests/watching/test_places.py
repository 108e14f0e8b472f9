"""What a stack means: the part of a training loop, the user's line, and what it calls."""

import textwrap
import threading
from pathlib import Path

import pytest

from loaderbench.samplers.stacks import Frame, Span
from loaderbench.watching.places import OURS, called, is_watchs, spot_of

TORCH = "/venv/lib/python3.11/site-packages/torch/utils/data/"


def frame(file: str, function: str, line: int = 1) -> Frame:
    return Frame(file, function, line, None)


LOADER, WORKER, FETCH = f"{TORCH}dataloader.py", f"{TORCH}_utils/worker.py", f"{TORCH}_utils/fetch.py"
THREADING = threading.__file__
QUEUES = "/usr/lib/python3.11/multiprocessing/queues.py"
STEP = frame(f"{OURS}watching/iterator.py", "Watched.step")
MAIN = frame("/home/me/train.py", "<module>", 52)
NEXT = frame(LOADER, "_BaseDataLoaderIter.__next__")


@pytest.mark.parametrize(
    ("frames", "part", "line"),
    [
        ([frame("/home/me/s.py", "Mine.__iter__", 9), frame(LOADER, "_BaseDataLoaderIter._next_index"), NEXT, MAIN],
         "sampler", 9),
        ([frame(QUEUES, "Queue.get"), frame(LOADER, "_MultiProcessingDataLoaderIter._try_get_data"), NEXT, STEP, MAIN],
         "queue", 1),
        ([frame("/v/site-packages/torch/multiprocessing/reductions.py", "rebuild"), frame(QUEUES, "Queue.get"),
          frame(LOADER, "_MultiProcessingDataLoaderIter._try_get_data"), NEXT, STEP, MAIN], "rebuild", 1),
        ([frame("/home/me/d.py", "D.__getitem__", 7), frame(FETCH, "_MapDatasetFetcher.fetch"),
          frame(WORKER, "_worker_loop"), MAIN], "dataset", 7),
        ([frame("/home/me/d.py", "pad", 8), frame(f"{OURS}watching/spans.py", "Lane.collating.<locals>.marked"),
          frame(FETCH, "_MapDatasetFetcher.fetch"), frame(WORKER, "_worker_loop")], "collate", 8),
        ([frame(QUEUES, "Queue.get"), frame(WORKER, "_worker_loop"),
          frame(LOADER, "_MultiProcessingDataLoaderIter.__init__"), MAIN], "indices", 1),
        ([frame("/home/me/s.py", "Sorted.__iter__", 3), frame(LOADER, "_BaseDataLoaderIter._next_index"),
          frame(LOADER, "_MultiProcessingDataLoaderIter._reset"), MAIN], "sampler_start", 3),
        ([frame("/home/me/m.py", "forward", 4), MAIN], "step", 4),
        ([frame("/home/me/m.py", "Trainer.save_checkpoint", 4), MAIN], "checkpoint", 4),
        ([frame("/v/site-packages/torch/serialization.py", "_save"), frame("/home/me/m.py", "main", 5), MAIN],
         "checkpoint", 5),
        ([frame("/home/me/m.py", "evaluate", 6), MAIN], "validation", 6),
        ([frame("/home/me/u.py", "helper", 90), frame("/home/me/m.py", "evaluate", 6), MAIN], "validation", 6),
        ([frame("/v/site-packages/torch/_dynamo/convert_frame.py", "compile"), frame("/home/me/m.py", "main", 5), MAIN],
         "compile", 5),
        ([frame("/v/site-packages/nvidia/dali/pipeline.py", "Pipeline.run"), MAIN], "loader", 52),
        ([frame("/home/me/d.py", "decode", 7), frame("/v/site-packages/grain/_src/python/data_loader.py", "_f"), MAIN],
         "loader", 7),
        ([frame("/usr/lib/python3.11/threading.py", "Condition.wait"), frame("/usr/lib/python3.11/queue.py",
          "Queue.get"), frame("/home/me/p.py", "Prefetcher.__next__", 5), MAIN], "loader", 5),
        ([frame("/home/me/datasets/mine.py", "step", 5), MAIN], "step", 5),
        ([frame(QUEUES, "Queue.put"), frame("/v/site-packages/other/worker.py", "work")], "indices", 1),
        ([frame("/v/site-packages/torch/__init__.py", "<module>"), frame("<frozen importlib._bootstrap>",
          "_find_and_load"), MAIN], "import", 52),
    ],
)  # fmt: skip
def test_the_innermost_known_frame_says_the_part(frames: list[Frame], part: str, line: int) -> None:
    found = spot_of(frames)
    assert (found.part, found.line) == (part, line)


def test_callers_are_the_users_lines_up_to_the_module() -> None:
    found = spot_of([frame("/home/me/a.py", "inner", 3), frame("/home/me/a.py", "middle", 6), MAIN])
    assert (found.function, found.owner) == ("inner", "user")
    assert found.callers == ("/home/me/a.py:6 middle", "/home/me/train.py:52 <module>")


def test_what_a_line_calls_is_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        textwrap.dedent("""\
        x = np.random.choice(
            10, p=p) + 1
        y = table[i]
        """)
    )
    assert called(Frame(str(path), "f", 1, Span(1, 2, 4, 12))) == "np.random.choice"
    assert called(Frame(str(path), "f", 3, Span(3, 3, 4, 12))) == "table[i]"
    assert called(Frame(str(path), "f", 1, Span(1, 2, 4, 16))) is None  # an addition
    assert called(Frame(str(tmp_path / "gone.py"), "f", 1, Span(1, 1, 0, 3))) is None


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([frame(THREADING, "Event.wait"), frame(f"{OURS}samplers/base.py", "Sampler._run"),
          frame(THREADING, "Thread.run")], True),
        ([frame("/home/me/metrics.py", "poll"), frame(THREADING, "Thread.run")], False),
        ([frame("/home/me/d.py", "D.__iter__"), STEP, frame("/home/me/ahead.py", "fill")], False),
        ([frame(THREADING, "Thread.run")], False),
    ],
)  # fmt: skip
def test_a_thread_of_the_watch_is_told_from_the_script_s(frames: list[Frame], expected: bool) -> None:
    assert is_watchs(frames) is expected

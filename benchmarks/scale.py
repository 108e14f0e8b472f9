"""What a large data set costs: its list, the first batch, an epoch's order, the page cache's state, memory a worker.

    python benchmarks/scale.py [--files 1300000] [--folder DIR] [--loaders NAME,NAME:START_METHOD] [--rounds N]
        [--json FILE]

Makes a tree of hard links of a few generated 256² JPEGs with the names, classes and number of files of ImageNet
(1.3 million links take 15 s, no space but 70 MB of folders, and no inodes but 1,000), and a small tree of SMALL_FILES
beside it; both are removed at the end. Each figure comes from a process of its own. `listed` is without a kept list,
but with a kernel that remembers names and inodes (few of these, since they are links): storage that has to look
for them takes longer. Before that such lists take turns with torchvision's ImageFolder, which does not look at sizes:
the goal is twice its time. `--loaders ""` measures lists alone. Seconds to the first batch count from the start of the
process, its imports included.
Memory a worker is what /proc/PID/smaps_rollup says after a few batches, less what the same worker has with the small
tree: `pss` shares pages out among those who map them, `private` is the worker's alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from torchvision.datasets import ImageFolder
from turns import judged, median_interval, spread

from loaderbench import plugins
from loaderbench.errors import UnavailableError
from loaderbench.images.cache_state import evict_files, residency
from loaderbench.images.index import SETTLED_NS, ImageIndex, index_images
from loaderbench.images.shards import DataSet
from loaderbench.images.synthesize import make_dataset
from loaderbench.loaders.base import LoaderContext
from loaderbench.loaders.order import epoch_order, plan_batches
from loaderbench.machine import environment
from loaderbench.plain import to_json
from loaderbench.running.cache import CacheKeeper

LOADERS = "serial,multiprocess:fork,multiprocess:forkserver,multiprocess:spawn,threaded,dali"
NUM_CLASSES = 1000
SMALL_FILES = 1000
LINKS_EACH = 30_000
"""Links to one JPEG: ext4 allows 65,000."""
MIN_ORIGINALS = 32
MOST_TIMES = 2.0
"""Of ImageFolder's seconds that a list may take."""
BATCHES_EACH = 4
"""Batches by each worker before memory is looked at."""


def make_tree(root: Path, originals: list[Path], num_files: int) -> None:
    """`num_files` hard links in NUM_CLASSES folders, named as ImageNet's."""
    for number in range(min(NUM_CLASSES, num_files)):
        name = f"n{1440764 + 7 * number:08d}"
        folder = root / name
        folder.mkdir(parents=True)
        for count, file in enumerate(range(number, num_files, NUM_CLASSES)):
            os.link(originals[file % len(originals)], f"{folder}/{name}_{count:05d}.JPEG")


def index_bytes(images: ImageIndex) -> int:
    return len(images.names) + images.offsets.nbytes + images.labels.nbytes + images.sizes.nbytes


def memory(pid: int) -> dict[str, int]:
    """Bytes of a process: its share of all pages it maps, and the pages that nobody else maps (proc_pid_smaps(5))."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kb = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return {"pss": 1024 * kb["Pss"], "private": 1024 * (kb["Private_Clean"] + kb["Private_Dirty"])}


def timed(call: Callable[[], Any], more: Callable[[Any], dict[str, Any]] = lambda made: {}) -> dict[str, Any]:
    before, begun_cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    begun = time.perf_counter()
    made = call()
    seconds, cpu_s = time.perf_counter() - begun, time.process_time() - begun_cpu
    peak = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    facts = {"files": len(made), "seconds": seconds, "cpu_s": cpu_s, "peak_rss_growth_bytes": peak}
    return {**facts, **more(made)}


def probe_list(root: str) -> dict[str, Any]:
    """Seconds to the index, its size, and what making it took of memory at most."""
    return timed(lambda: index_images(root), lambda images: {"index_bytes": index_bytes(images)})


def probe_image_folder(root: str) -> dict[str, Any]:
    """The same of torchvision's list."""
    return timed(lambda: ImageFolder(root))


def listings(root: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Our list without a kept one and ImageFolder's, in turns, and the ratios of the rounds."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for number in range(rounds):
        calls = ("probe_list", "probe_image_folder")
        some = {
            call: probe(call, root, cache=folder / f"cache-{number}") for call in (calls if number % 2 else calls[::-1])
        }
        found.append((some["probe_list"], some["probe_image_folder"]))
    ratios = {
        kind: median_interval([ours[kind] / theirs[kind] for ours, theirs in found]) for kind in ("seconds", "cpu_s")
    }
    return {"rounds": found, "ratios": ratios}


def probe_run(root: str) -> dict[str, Any]:
    """Seconds of what a run does with the whole list: shuffling, looking at the page cache, emptying it."""
    images = index_images(root)
    seconds = {}
    begun = time.perf_counter()
    epoch_order(len(images), 0, 1)
    seconds["shuffle_epoch"] = time.perf_counter() - begun
    begun = time.perf_counter()
    next(plan_batches(len(images), 64, 0, 1))
    seconds["plan_first_batch"] = time.perf_counter() - begun
    begun = time.perf_counter()
    CacheKeeper("as-is", DataSet(images)).survey()
    seconds["survey_cache"] = time.perf_counter() - begun
    begun = time.perf_counter()
    residency(images.paths())
    seconds["residency_of_all"] = time.perf_counter() - begun
    begun = time.perf_counter()
    evict_files(images.paths())
    seconds["evict_all_and_look"] = time.perf_counter() - begun
    return {"seconds": seconds}


def probe_loader(root: str, loader: str, workers: int, batch_size: int, started: float) -> dict[str, Any]:
    """Seconds from the start of this process to its first batch, and memory after a few.

    `started`: time.monotonic() of the parent just before it started this process.
    """
    name, _, start_method = loader.partition(":")
    imported = time.monotonic()
    images = index_images(root)
    listed = time.monotonic()
    try:
        module = plugins.LOADERS.load(name)
    except UnavailableError as error:
        return {"skipped": str(error)}
    loaded = time.monotonic()
    num_workers = 0 if name == "serial" else workers
    usual = plugins.loader_choice(name).decoder
    decoder = None if usual is None else usual.name
    context = LoaderContext(images, batch_size, num_workers, 2, decoder, 224, "train", "uint8", seed=0)
    options = module.Options(start_method=start_method) if start_method else module.Options()
    built = module.build(options, context)
    batches = built.batches()
    next(batches)
    first = time.monotonic()
    for _ in islice(batches, BATCHES_EACH * max(1, num_workers)):
        pass
    pids = built.worker_pids() if name == "multiprocess" else []
    facts = {
        "seconds": {
            "start": imported - started,
            "list": listed - imported,
            "import_loader": loaded - listed,
            "first_batch": first - loaded,
            "to_first_batch": first - started,
        },
        "main": memory(os.getpid()),
        "workers": [memory(pid) for pid in pids],
    }
    batches.close()
    built.close()
    return facts


def probe(call: str, *arguments: Any, cache: Path) -> dict[str, Any]:
    """`call`, one of the functions above, in a new process whose cache folder is `cache`."""
    if call == "probe_loader":
        arguments = (*arguments, time.monotonic())
    command = [sys.executable, __file__, "--probe", json.dumps([call, *arguments])]
    done = subprocess.run(command, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, stdout=subprocess.PIPE, check=True)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{call}{arguments[1:2]}: {json.dumps(facts)}", file=sys.stderr)
    return facts


def growth(large: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """Memory with the large tree less that with the small one: of the main process, and the mean over its workers."""

    def mean(facts: dict[str, Any], kind: str) -> float:
        return sum(worker[kind] for worker in facts["workers"]) / len(facts["workers"])

    kinds = ("pss", "private")
    return {
        "main": {kind: large["main"][kind] - small["main"][kind] for kind in kinds},
        "worker": {kind: int(mean(large, kind) - mean(small, kind)) for kind in kinds} if large["workers"] else None,
    }


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    begun = time.perf_counter()
    num_originals = max(MIN_ORIGINALS, -(-(arguments.files + SMALL_FILES) // LINKS_EACH))
    made = make_dataset(folder / "originals", [256], num_originals)
    originals = sorted(made["256"].rglob("*.jpg"))
    root, small, cache = folder / "tree", folder / "small", folder / "cache"
    make_tree(root, originals, arguments.files)
    make_tree(small, originals, SMALL_FILES)
    made_s = time.perf_counter() - begun
    time.sleep(SETTLED_NS / 1e9 + 0.1)  # a list is kept of folders that have come to rest
    result: dict[str, Any] = {
        "files": arguments.files,
        "classes": min(NUM_CLASSES, arguments.files),
        "make_tree_s": made_s,
        "load_average_before": os.getloadavg()[0],
        "workers": arguments.workers,
        "batch_size": arguments.batch_size,
        "listings": listings(str(root), arguments.rounds, folder),
        "listed": probe("probe_list", str(root), cache=cache),
        "kept": probe("probe_list", str(root), cache=cache),
        "run": probe("probe_run", str(root), cache=cache),
        "loaders": {},
    }
    for loader in filter(None, arguments.loaders.split(",")):
        large, other = (
            probe("probe_loader", str(tree), loader, arguments.workers, arguments.batch_size, cache=cache)
            for tree in (root, small)
        )
        known = "skipped" not in large
        result["loaders"][loader] = {**large, "growth_bytes": growth(large, other)} if known else large
    return result


def show(result: dict[str, Any]) -> None:
    listed, kept, run = result["listed"], result["kept"], result["run"]["seconds"]
    print(f"files                   {result['files']:,} in {result['classes']:,} classes")
    print(f"load average before     {result['load_average_before']:.1f}")
    print(f"index                   {listed['index_bytes'] / 1e6:.1f} MB")
    for name, one in (("list, none kept", listed), ("list, kept", kept)):
        print(f"{name:23} {one['seconds']:.2f} s, peak memory + {one['peak_rss_growth_bytes'] / 1e6:.0f} MB")
    for kind, interval in result["listings"]["ratios"].items():
        print(
            f"list ÷ ImageFolder's    {spread(interval, 2)} by {kind}: at most 2 is {judged(interval, 0, MOST_TIMES)}"
        )
    for name, seconds in run.items():
        print(f"{name.replace('_', ' '):23} {seconds:.3f} s")
    print(
        "\nloader                    first batch: from start   of it the loader's   more memory than with few files, MB"
    )
    print(
        "                                                                         worker private/pss   main private/pss"
    )
    for name, one in result["loaders"].items():
        if "skipped" in one:
            print(f"{name:25} skipped: {one['skipped']}")
            continue
        worker, main_growth = one["growth_bytes"]["worker"], one["growth_bytes"]["main"]
        seconds = one["seconds"]
        print(
            f"{name:25} {seconds['to_first_batch']:21.2f} s {seconds['first_batch']:18.2f} s   "
            f"{in_mb(worker) if worker else '–':>20}   {in_mb(main_growth):>14}"
        )


def in_mb(memory: dict[str, int]) -> str:
    return f"{memory['private'] / 1e6:.1f} / {memory['pss'] / 1e6:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_300_000)
    parser.add_argument("--folder", help="where the trees are made and removed (default: the temporary folder)")
    parser.add_argument("--loaders", default=LOADERS)
    parser.add_argument("--rounds", type=int, default=6, help="of our list and ImageFolder's")
    parser.add_argument("--workers", type=int, default=psutil.cpu_count())
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.probe:
        call, *given = json.loads(arguments.probe)
        print(json.dumps(globals()[call](*given)))
        return
    with tempfile.TemporaryDirectory(prefix="loaderbench-scale-", dir=arguments.folder) as folder:
        result = measure(Path(folder), arguments)
    show(result)
    if arguments.json:
        text = json.dumps({**result, "environment": to_json(environment())}, indent=1)
        Path(arguments.json).write_text(text + "\n")


if __name__ == "__main__":
    main()

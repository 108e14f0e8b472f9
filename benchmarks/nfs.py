"""Images/s and processes over a late wire: the threaded loader with read-ahead against DataLoader's workers.

    python benchmarks/nfs.py [--latencies-ms 5,20] [--duration 12] [--num-images 400] [--json FILE]

A real NFS server and client inside User-Mode Linux (`make test-beds` installs it), one processor, every file evicted
before it is read. For each latency loaderbench runs inside: `multiprocess` with 1, 2, 4 and 8 processes, `threaded` in
one process with one decoding thread and 0, 8 and 32 threads that read ahead. The rate is the loader's own (arm `free`).
Beside it the limits: the rate at which 32 plain readers get the files (nfs_probe), and the one at which the processor
in there prepares images that are in memory. Aim: the lower limit with at most a quarter of the processes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from loaderbench.errors import LoaderbenchError
from loaderbench.machine import environment
from loaderbench.testbeds.uml_nfs import INSIDE_OUT, INSIDE_PATH, uml_nfs

PROCESSES = (1, 2, 4, 8)
IO_THREADS = (0, 8, 32)
PROBE_READERS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latencies-ms", default="5,20", help="round trips of the wire")
    parser.add_argument("--duration", type=float, default=12.0, help="seconds of measuring a case")
    parser.add_argument("--num-images", type=int, default=400, help="images of 256×256 on the server")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="loaderbench-nfs-") as folder:
        tree = make_images(Path(folder, "set"), arguments.num_images)
        for latency_ms in (float(text) for text in arguments.latencies_ms.split(",")):
            try:
                found.append(measure(tree, Path(folder, f"{latency_ms:g}"), latency_ms, arguments.duration))
            except LoaderbenchError as error:
                sys.exit(f"nfs.py: {error}")
            show(found[-1])
            if arguments.json is not None:  # after each latency: what was measured is kept
                arguments.json.write_text(
                    json.dumps({"environment": environment(), "latencies": found}, indent=1) + "\n"
                )


def make_images(root: Path, num_images: int) -> Path:
    from loaderbench.images.synthesize import make_dataset

    make_dataset(root, [256], num_images)
    return root / "256"


def measure(tree: Path, out: Path, latency_ms: float, duration_s: float) -> dict[str, Any]:
    """The rows of one latency: {latency_ms, read_limit, prep_limit, rows[{loader, processes, io_threads, rate}]}."""
    results = f"{INSIDE_OUT}/results"
    common = [
        INSIDE_PATH, "--device", "emulated", "--mode", "infer", "--input-size", "224", "--batch-size", "16",
        "--cache", "cold", "--arms", "real,free", "--no-kernels", "--duration", str(duration_s), "--output", "uint8",
        "--decoder", "turbojpeg", "--quiet", "--results", results,
    ]  # fmt: skip
    bench = f"{sys.executable} -m loaderbench"
    workers = ",".join(map(str, PROCESSES))
    probe = f"{sys.executable} -m loaderbench.testbeds.nfs_probe {INSIDE_PATH} --readers {PROBE_READERS}"
    lines = [
        f"{probe} > {INSIDE_OUT}/probe",
        f"{bench} sweep {' '.join(common)} --loader multiprocess --workers {workers} --json {INSIDE_OUT}/mp.json",
    ]
    for number in IO_THREADS:
        io = f"--io-threads {number} --json {INSIDE_OUT}/threaded{number}.json"
        lines.append(f"{bench} run {' '.join(common)} --loader threaded --workers 1 {io}")
    warm = [text if text != "cold" else "warm" for text in common]
    lines.append(f"{bench} run {' '.join(warm)} --loader threaded --workers 1 --json {INSIDE_OUT}/warm.json")
    with uml_nfs(tree, latency_s=latency_ms / 1e3) as bed:
        ended = bed.run(["sh", "-e", "-c", "\n".join(lines)], out_dir=out, timeout_s=900.0)
    if ended.rc:
        sys.exit(f"nfs.py: inside the bed it ended with {ended.rc}: {ended.stderr.strip().splitlines()[-1:]}")
    probed = [json.loads(line) for line in (out / "probe").read_text().splitlines()]
    runs = [(one, None) for one in json.loads((out / "mp.json").read_text())["runs"]]
    runs += [(json.loads((out / f"threaded{number}.json").read_text()), number) for number in IO_THREADS]
    rows = [
        {
            "loader": record["case"]["loader"],
            "processes": record["case"]["workers"] if record["case"]["loader"] == "multiprocess" else 1,
            "io_threads": io_threads,
            "rate": record["loader_rate"],
            "cold_proven": record["storage"]["cold_proven"],
        }
        for record, io_threads in runs
    ]
    return {
        "latency_ms": latency_ms,
        "read_limit": probed[-1]["num_files"] / probed[-1]["wall_s"],
        "prep_limit": json.loads((out / "warm.json").read_text())["loader_rate"]["value"],
        "rows": rows,
    }


def show(found: dict[str, Any]) -> None:
    limit = min(found["read_limit"], found["prep_limit"])
    print(
        f"round trip {found['latency_ms']:g} ms: {PROBE_READERS} plain readers get {found['read_limit']:.0f} files/s, "
        f"the processor prepares {found['prep_limit']:.0f} images/s"
    )
    best = max(row["rate"]["value"] for row in found["rows"] if row["loader"] == "multiprocess")
    head = ("loader", "processes", "read ahead", "images/s", "a process", "limit", "DataLoader")
    print("{:<14}{:>10}{:>12}{:>24}{:>11}{:>8}{:>12}".format(*head))
    for row in found["rows"]:
        rate = row["rate"]
        ends = "" if rate["low"] is None else f" [{rate['low']:.0f}, {rate['high']:.0f}]"
        spread = f"{rate['value']:.0f}{ends}"
        ahead = "" if row["io_threads"] is None else row["io_threads"]
        print(
            f"{row['loader']:<14}{row['processes']:>10}{ahead:>12}{spread:>24}{rate['value'] / row['processes']:>11.0f}"
            f"{rate['value'] / limit:>8.0%}{rate['value'] / best:>11.2f}×"
        )
    print(flush=True)


if __name__ == "__main__":
    main()

"""Reading a torch.profiler trace: `loaderbench gaps` against HolisticTraceAnalysis (HTA), time, memory and idle time.

    pip install --target DIR HolisticTraceAnalysis 'pandas<3'    # its 0.5.0 fails with pandas 3
    python benchmarks/kineto.py --hta DIR [--events 1000000] [--large 5000000] [--rounds 3] [--json FILE]

Makes traces as libkineto writes them, whose idle time is known because it is put there, and reads each in a process
of its own: wall and CPU time with imports, peak memory from the kernel (`ru_maxrss` of wait4). One file of --events
events is read by both in turns, HTA told to keep nanoseconds; one a tenth as long shows what HTA makes of it by default
(it rounds begins up and ends down to whole microseconds); one of --large events is read by ours alone. Without HTA at
hand ours is measured alone, and the reason is said.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loaderbench.machine import environment
from loaderbench.plain import to_json

KERNELS_PER_STEP = 1000
KERNEL_NAMES = (
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<__nv_bfloat16, float, int, 512, true, 1, true>(cudnnTensorStruct, float*)",
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_execute",
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, char*>",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>, float>",
)
OURS = """
import json, sys
from loaderbench.analysis.trace_gaps import device_of, summarize
from loaderbench.recording.kineto import read_kineto
trace = read_kineto(sys.argv[1])
found = summarize(trace, device_of(trace, None))
print(json.dumps({"idle_ns": round(found.idle_s * 1e9), "num_gaps": found.gaps.count}))
"""
HTA = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
folder, name = os.path.split(sys.argv[1])
analysis = TraceAnalysis(trace_files={0: name}, trace_dir=folder, include_last_profiler_step=True)
row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
print(json.dumps({"idle_ns": round(row["idle_time(us)"] * 1000)}))
"""


def us(at_ns: int) -> str:
    """A time as libkineto writes it."""
    return f"{at_ns // 1000}.{at_ns % 1000:03}"


class Timeline:
    """Steps of kernels with gaps of known length between them; counts the idle time that it makes."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._at_ns = 5_000_000_000
        self._number = 0
        self._first = True
        self.idle_ns = 0

    def _length_ns(self, least_us: float, most_us: float) -> int:
        return round(self._random.uniform(least_us, most_us) * 1000)

    def step(self, step: int) -> Iterator[str]:
        """The events of one step: its kernels, the copy beside them, and the host calls that launched them."""
        begun_ns = self._at_ns
        for number in range(KERNELS_PER_STEP):
            length_ns = self._length_ns(5, 40)
            if not self._first:
                gap_ns = self._length_ns(1, 3) if number else self._length_ns(500, 3000)
                if self._random.random() < 0.3 and number:
                    gap_ns = 0
                self.idle_ns += gap_ns
                self._at_ns += gap_ns
            self._first = False
            yield from self._kernel(number, self._at_ns, length_ns)
            if number % 50 == 25:  # a copy on a stream of its own, wholly beside this kernel: changes no idle time
                yield self._copy(self._at_ns + length_ns // 4, length_ns // 2)
            self._at_ns += length_ns
        launched_ns = begun_ns - 20_000
        length_ns = self._at_ns - begun_ns
        yield (
            f'"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step}", "pid": 900, "tid": 900,\n'
            f'    "ts": {us(launched_ns - 5_000)}, "dur": {us(length_ns + 5_000)},\n'
            f'    "args": {{\n      "External id": {step + 1},"Record function id": 0, "Ev Idx": {self._number}\n    }}'
        )
        yield (
            f'"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#{step}", "pid": 0, "tid": 7,\n'
            f'    "ts": {us(begun_ns - 1)}, "dur": {us(length_ns + 2)},\n'
            f'    "args": {{\n      "External id": {step + 1}\n    }}'
        )

    def _kernel(self, number: int, begin_ns: int, length_ns: int) -> Iterator[str]:
        self._number += 1
        correlation, launched_ns = self._number, begin_ns - 20_000
        for depth, name in enumerate(("aten::conv2d", "aten::cudnn_convolution")):
            yield (
                f'"ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 900, "tid": 900,\n'
                f'    "ts": {us(launched_ns - 3000 + depth * 1000)}, "dur": {us(6000 - depth * 2000)},\n'
                f'    "args": {{\n      "External id": {correlation},"Sequence number": {number}, "Fwd thread id": 0, '
                f'"Record function id": 0, "Ev Idx": {correlation}\n    }}'
            )
        yield (
            f'"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 900, "tid": 900,\n'
            f'    "ts": {us(launched_ns)}, "dur": {us(3000)},\n'
            f'    "args": {{\n      "External id": {correlation}, "cbid": 211, "correlation": {correlation}\n    }}'
        )
        yield f'"ph": "s", "id": {correlation}, "pid": 900, "tid": 900, "ts": {us(launched_ns)},\n' + FLOW
        yield (
            f'"ph": "X", "cat": "kernel", "name": "{KERNEL_NAMES[number % len(KERNEL_NAMES)]}", "pid": 0, "tid": 7,\n'
            f'    "ts": {us(begin_ns)}, "dur": {us(length_ns)},\n'
            f'    "args": {{\n      "External id": {correlation}, "queued": 0, "device": 0, "context": 1, "stream": 7, '
            f'"correlation": {correlation}, "registers per thread": 32, "shared memory": 4096, '
            f'"blocks per SM": 1.939394, "warps per SM": 15.515152, "grid": [256, 1, 1], "block": [256, 1, 1], '
            f'"est. achieved occupancy %": 24\n    }}'
        )
        yield f'"ph": "f", "id": {correlation}, "pid": 0, "tid": 7, "ts": {us(begin_ns)},\n' + FLOW + ', "bp": "e"'

    def _copy(self, begin_ns: int, length_ns: int) -> str:
        return (
            f'"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 13,\n'
            f'    "ts": {us(begin_ns)}, "dur": {us(length_ns)},\n'
            f'    "args": {{\n      "External id": 1, "device": 0, "context": 1, "stream": 13, "correlation": 0, '
            f'"bytes": 38535168, "memory bandwidth (GB/s)": 25.1\n    }}'
        )


FLOW = '    "cat": "ac2g", "name": "ac2g"'


def write_trace(path: Path, num_events: int) -> dict[str, int]:
    """Write a trace of at least so many events in whole steps; returns its facts, `idle_ns` being the truth."""
    timeline, written, step = Timeline(), 0, 0
    with path.open("w") as file:
        file.write(
            '\n  {\n    "schemaVersion": 1,\n    "deviceProperties": [\n    {\n      "id": 0, "name": "made by '
            'benchmarks/kineto.py"\n    }\n    ],\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": '
            '1763683000000000000,\n  "traceEvents": ['
        )
        while written < num_events:
            for event in timeline.step(step):
                file.write(f"\n  {{\n    {event}\n  }},")
                written += 1
            step += 1
        file.write(
            '\n  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n    "pid": "", "tid": "", "ts": 0.000'
        )
        file.write('\n  }\n  ],\n  "traceName": "trace.json"\n}')
    return {"num_events": written + 1, "num_steps": step, "bytes": path.stat().st_size, "idle_ns": timeline.idle_ns}


def hta_environment(folder: str | None, rounding: bool) -> dict[str, str]:
    """`folder` first in the import path; `rounding`: HTA's own default, to whole microseconds."""
    paths = [entry for entry in (folder, os.environ.get("PYTHONPATH")) if entry]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HTA_DISABLE_NS_ROUNDING": str(int(not rounding))}


def read_in_child(code: str, path: Path, variables: dict[str, str]) -> dict[str, Any]:
    """Run `code` on the trace in a process of its own: what it found, its wall time and its peak memory."""
    command = [sys.executable, "-c", code, str(path)]
    begun = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=variables, text=True)
        assert child.stdout is not None
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - begun
        child.returncode = os.waitstatus_to_exitcode(status)
        child.stdout.close()
        if child.returncode:
            errors.seek(0)
            sys.exit(f"the reading process ended with {child.returncode}: {errors.read()[-2000:]}")
    costs = {"wall_s": wall_s, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_bytes": usage.ru_maxrss * 1024}
    return {**json.loads(output.splitlines()[-1]), **costs}


def hta_version(folder: str | None) -> tuple[str | None, str | None]:
    """(HTA's version, why it cannot be run)."""
    code = "import hta.trace_analysis; from importlib.metadata import version; print(version('HolisticTraceAnalysis'))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False,
        env=hta_environment(folder, rounding=True),
    )  # fmt: skip
    if done.returncode == 0:
        return done.stdout.split()[-1], None
    return None, (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]


def show(name: str, found: dict[str, Any], truth_ns: int) -> None:
    print(
        f"  {name:5} {found['wall_s']:7.2f} s (CPU {found['cpu_s']:7.2f})  {found['peak_bytes'] / 1e6:8,.0f} MB  "
        f"idle {found['idle_ns'] / 1e6:,.6f} ms (truth {truth_ns / 1e6:,.6f})",
        flush=True,
    )


def compare(path: Path, facts: dict[str, int], rounds: int, hta: dict[str, str] | None) -> dict[str, Any]:
    """Both on one file, in turns, HTA in the environment `hta`; all readings, and the ratios of each round."""
    print(f"{facts['num_events']:,} events, {facts['bytes'] / 1e6:,.0f} MB", flush=True)
    contestants = {"ours": (OURS, dict(os.environ))} | ({} if hta is None else {"hta": (HTA, hta)})
    readings: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name in contestants if number % 2 == 0 else reversed(contestants):
            code, variables = contestants[name]
            readings[name].append(read_in_child(code, path, variables))
            show(name, readings[name][-1], facts["idle_ns"])
    result: dict[str, Any] = {**facts, **readings}
    for key in ("wall_s", "cpu_s", "peak_bytes") if hta is not None else ():
        ratios = [theirs[key] / ours[key] for theirs, ours in zip(readings["hta"], readings["ours"], strict=True)]
        result[f"{key}_ratio"] = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        print(f"  {key}: HTA ÷ ours {statistics.median(ratios):.1f} ({min(ratios):.1f} – {max(ratios):.1f})")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=5_000_000, help="events of the file read by ours alone; 0: none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta", metavar="DIR", help="where pip install --target put HolisticTraceAnalysis")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    version, reason = hta_version(arguments.hta)
    print(f"HolisticTraceAnalysis {version}" if reason is None else f"HolisticTraceAnalysis skipped: {reason}")
    figures: dict[str, Any] = {"hta_version": version, "hta_skipped": reason}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for name, num_events, rounds in (
            ("hta_default_rounding", arguments.events // 10, 1),
            ("compared", arguments.events, arguments.rounds),
            ("large", arguments.large, 1),
        ):
            if num_events:
                hta = None
                if reason is None and name != "large":
                    hta = hta_environment(arguments.hta, rounding=name == "hta_default_rounding")
                figures[name] = compare(path, write_trace(path, num_events), rounds, hta)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({**figures, "environment": to_json(environment())}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()

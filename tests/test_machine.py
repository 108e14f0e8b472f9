"""What the machine gives, against made-up /proc and /sys trees and the real limits of this process."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loaderbench import machine, plain
from loaderbench.recording.facts import Environment

GIB = 1 << 30


def tree(root: Path, files: dict[str, str]) -> Path:
    """A folder that stands for `/`."""
    for name, text in {"proc/meminfo": "MemTotal:  67108864 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_largest_cache_is_found_on_any_processor(tmp_path: Path) -> None:
    caches = "sys/devices/system/cpu/cpu{}/cache/index{}/size"
    root = tree(tmp_path, {caches.format(0, 0): "48K", caches.format(0, 3): "2048K", caches.format(11, 3): "107520K\n"})
    assert machine.largest_cache_bytes(root) == 107520 * 1024
    assert machine.largest_cache_bytes(tmp_path / "none") is None


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize(
    ("files", "cpus", "said"),
    [
        ({}, 4, None),
        # cgroup v2, in a container (the namespace's root) and nested (the tightest of all levels)
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2, "1.5 CPUs"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 4, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "100000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "300000 100000\n",
            },
            1,
            "a/cpu.max",
        ),
        # cgroup v1, on the host, and in a container where the host's path is not visible
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/job\n1:name=systemd:/\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            3,
            "2.5 CPUs",
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/docker/0123abcd\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            1,
            "0.5 CPUs",
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            4,
            None,
        ),
        # more than there are
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "800000 100000\n"}, 4, None),
    ],
)
def test_cpu_quotas_of_both_cgroup_versions(tmp_path: Path, files: dict[str, str], cpus: int, said: str | None) -> None:
    root = tree(tmp_path, files)
    assert machine.usable_cpus(root) == cpus
    reason = machine.cpu_limit_reason(root)
    assert (reason is None) if said is None else (said in str(reason))


def test_the_affinity_mask_counts(tmp_path: Path) -> None:
    """`os.cpu_count` would say otherwise."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two CPUs to take one away")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert machine.usable_cpus(tree(tmp_path, {})) == 1
        assert "affinity" in str(machine.cpu_limit_reason(tmp_path))
    finally:
        os.sched_setaffinity(0, before)


def test_a_hierarchy_of_two_names_counts_once(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/job"
    files = {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n", "cpu.stat": "nr_throttled 3\n"}
    tree(tmp_path, {f"{folder}/{name}": text for name, text in files.items()})
    tree(tmp_path, {"proc/self/cgroup": "3:cpu,cpuacct:/job\n"})
    for name in ("cpu", "cpuacct"):  # as systemd links them
        (tmp_path / "sys/fs/cgroup" / name).symlink_to("cpu,cpuacct")
    (counter,) = machine.quota_counters(tmp_path)
    assert counter.resolve() == tmp_path / folder / "cpu.stat"
    quota = machine.cpu_quota(tmp_path)
    assert quota is not None and quota.cpus == 0.5


@pytest.mark.parametrize(
    ("files", "expected", "source"),
    [
        ({}, 64 * GIB, "MemTotal"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{2 * GIB}\n"}, 2 * GIB, "memory.max"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 64 * GIB, "MemTotal"),
        (
            {
                "proc/self/cgroup": "4:memory:/a/b\n",
                "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{3 * GIB}\n",
            },
            3 * GIB,
            "memory.limit_in_bytes",
        ),
    ],
)
def test_memory_limits(tmp_path: Path, files: dict[str, str], expected: int, source: str) -> None:
    limit, said = machine.memory_limit_bytes(tree(tmp_path, files))
    assert limit == expected
    assert said.endswith(source)


def test_no_proc_is_unknown(tmp_path: Path) -> None:
    assert machine.memory_limit_bytes(tmp_path) == (None, "no /proc/meminfo")
    assert machine.cpu_model(tmp_path) is None
    assert machine.shm_bytes(str(tmp_path / "absent")) is None


def test_cpu_models_of_two_architectures(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654\nprocessor\t: 1\nmodel name\t: x\n"})
    assert machine.cpu_model(tmp_path) == "AMD EPYC 9654"
    tree(tmp_path, {"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"})
    assert "implementer 0x41 part 0xd4f" in str(machine.cpu_model(tmp_path))


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {"container": "podman"}, "podman"),
        ({}, {"container": "systemd-nspawn"}, "systemd-nspawn"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc/1/cgroup": "12:pids:/lxc/box\n"}, {}, "lxc"),
    ],
)
def test_signs_of_a_container(tmp_path: Path, files: dict[str, str], environ: dict[str, str], kind: str | None) -> None:
    assert machine.container_hint(tree(tmp_path, files), environ) == kind


def test_limits_of_this_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = 512 if soft == resource.RLIM_INFINITY else min(512, soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    try:
        assert machine.open_files_limit() == lower
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_variables_that_change_results_without_folders_or_serial_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    monkeypatch.setenv("LD_PRELOAD", "/home/somebody/lib/libjemalloc.so.2:/usr/lib/libtcmalloc.so")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-8f9a0b1c-1111-2222-3333-444455556666")
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    variables = machine.environment().variables
    assert variables["OMP_NUM_THREADS"] == "4"
    assert variables["MALLOC_ARENA_MAX"] == "2"
    assert variables["LD_PRELOAD"] == "libjemalloc.so.2:libtcmalloc.so"
    assert variables["CUDA_VISIBLE_DEVICES"] == "1,GPU-…"
    assert "SECRET_TOKEN" not in variables


def test_the_environment_is_json_and_names_nobody() -> None:
    environment = machine.environment()
    facts = plain.to_json(environment)
    assert isinstance(facts, dict)
    assert plain.from_json(Environment, json.loads(json.dumps(facts))) == environment
    assert environment.cpus_usable >= 1
    assert environment.packages["numpy"]
    assert environment.packages["loaderbench"]
    assert (environment.gpus == ()) == (environment.gpus_reason is not None)
    assert socket.gethostname() not in facts.values()


def test_nothing_heavy_is_imported() -> None:
    """Versions are found without importing what they belong to, and machine.py itself needs the stdlib only."""
    script = (
        "import sys, loaderbench.machine as m; light = set(sys.modules);"
        "assert not light & {'numpy', 'torch', 'psutil', 'pynvml'}, light;"
        "m.environment();"
        "assert not set(sys.modules) & {'torch', 'torchvision', 'PIL', 'nvidia.dali', 'psutil'}"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_pages_of_files_are_free_in_a_cgroup(tmp_path: Path) -> None:
    limit, use = {"memory.max": f"{16 * GIB}\n", "memory.current": f"{12 * GIB}\n"}, 10 * GIB
    folder = "sys/fs/cgroup"
    v2 = {f"{folder}/{name}": text for name, text in limit.items()}
    v2[f"{folder}/memory.stat"] = f"anon {2 * GIB}\nactive_file {use // 4}\ninactive_file {use - use // 4}\n"
    free = {"proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 60000000 kB\n", "proc/self/cgroup": "0::/\n"}
    found, said = machine.available_memory_bytes(tree(tmp_path / "v2", {**free, **v2}))
    assert found == 14 * GIB and "memory.max" in said
    bare = {name: text for name, text in v2.items() if not name.endswith("stat")}
    assert machine.available_memory_bytes(tree(tmp_path / "bare", {**free, **bare}))[0] == 4 * GIB

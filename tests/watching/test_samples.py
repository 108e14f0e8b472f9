"""Shares of places, sampled from outside, are those that a stopwatch finds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOOPS = """
import hashlib, json, os, random, sys, threading, time
from loaderbench.watching.samples import Sampling
scale, seconds = float(sys.argv[1]), float(sys.argv[2])
numbers = list(range(int(12000 * scale)))
random.Random(0).shuffle(numbers)
data = os.urandom(int(1200000 * scale))
def pure():
    found = 0
    for one in range(int(14000 * scale)):
        found += one * one
    return found
def held():
    return sorted(numbers)
def released():
    return hashlib.sha256(data).digest()
def sleeps():
    time.sleep(0.001 * scale)
asked, asks = os.pipe()
answers, answer = os.pipe()
def reads():
    os.write(asks, b"?")
    os.read(answers, 1)
server = os.fork()
if not server:
    while os.read(asked, 1):
        time.sleep(0.0015 * scale)
        os.write(answer, b"!")
sampling = Sampling()
sampling.consumer(threading.get_native_id())
took, begun = {}, time.perf_counter()
parts = [pure, held, released, sleeps, reads]
while time.perf_counter() - begun < seconds:
    random.shuffle(parts)
    for part in parts:
        at = time.perf_counter()
        part()
        took[part.__name__] = took.get(part.__name__, 0.0) + time.perf_counter() - at
sampling.close()
time.sleep(0.2)
found = sampling.samples(0)
seen = {}
for weight, place in zip(found.weight_s, found.place):
    name = found.places[place].function
    seen[name] = seen.get(name, 0.0) + float(weight)
whole, seen_s = sum(took.values()), sum(seen.values())
print(json.dumps({"true": {n: t / whole for n, t in took.items()}, "seen": {n: t / seen_s for n, t in seen.items()},
                  "looks": len(set(found.time_s)), "cpu": sampling.cpu_s / seconds, "problem": sampling.problem}))
os.kill(server, 9)
"""


@pytest.mark.alone
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_five_loops_of_known_shares_are_found(scale: float, tmp_path: Path) -> None:
    """Short parts and long ones: pure Python, C with the GIL and without it, a sleep, a read that waits."""
    script = tmp_path / "loops.py"
    script.write_text(LOOPS)
    command = [sys.executable, str(script), str(scale), "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["problem"] is None
    off = sum(abs(found["seen"].get(name, 0.0) - part) for name, part in found["true"].items()) / 2
    chance = sum((part * (1 - part) / found["looks"]) ** 0.5 for part in found["true"].values()) / 2
    assert off <= 0.03 + chance
    assert found["cpu"] < 0.05

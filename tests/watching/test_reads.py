"""What a data set reads, by the batch, against what is known to be there: files, and answers of a server."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from loaderbench.recording.facts import SPAN
from loaderbench.recording.store import Store
from loaderbench.samplers.connections import MAPPED, name_of, stores_of
from loaderbench.watching.spans import SpanRing
from loaderbench.watching.stopwatch import Stopwatch
from tests.watching.test_watch_command import record, watched

SERVER = """
import http.server, socketserver, sys, time
delay_s, size = float(sys.argv[1]), int(sys.argv[2])

class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def do_GET(self):
        time.sleep(delay_s)
        head = f"HTTP/1.1 200 OK\\r\\nContent-Length: {size}\\r\\n\\r\\n".encode()
        self.wfile.write(head + b"x" * size)
        self.close_connection = self.headers.get("Connection") == "close"
    def log_message(self, *_): pass

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads, request_queue_size = True, 64

server = Server(("127.0.0.1", 0), Answers)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
SIZE = 20_000
ANSWER = SIZE + len(f"HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")
SCRIPT = """
import http.client, mmap, os, socket, sys, threading, time, urllib.request
import torch
from torch.utils.data import DataLoader, Dataset

how, where, workers, num = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

class Samples(Dataset):
    kept = None
    def __len__(self): return num
    def __getitem__(self, index):
        getattr(self, how)()
        return torch.zeros(3)
    def sleeps(self): time.sleep(0.004)
    def reads(self):
        with open(where, "rb") as file: assert len(file.read()) == 20_000
        time.sleep(0.002)
    def reads_in_a_thread(self):
        thread = threading.Thread(target=self.reads)
        thread.start(); thread.join()
    def urllib(self): assert len(urllib.request.urlopen(f"http://127.0.0.1:{where}/").read()) == 20_000
    def raw(self):
        with socket.create_connection(("127.0.0.1", int(where))) as one:
            one.sendall(b"GET / HTTP/1.1\\r\\nConnection: close\\r\\n\\r\\n")
            while one.recv(1 << 16): pass
    def kept_alive(self):
        if self.kept is None: self.kept = http.client.HTTPConnection("127.0.0.1", int(where))
        self.kept.request("GET", "/")
        assert len(self.kept.getresponse().read()) == 20_000

if __name__ == "__main__":
    begun = time.perf_counter()
    for batch in DataLoader(Samples(), 4, num_workers=workers):
        time.sleep(0.002)
    print((time.perf_counter() - begun) / (num / 4))
"""


@contextmanager
def server(delay_s: float) -> Iterator[str]:
    """The port of a server that answers so late."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(delay_s), str(SIZE)], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        try:
            yield running.stdout.readline().strip()
        finally:
            running.kill()


def read_bytes(folder: Path) -> NDArray[np.int64]:
    """Of each batch that counts."""
    run = Store(folder / "results").load_run(Store(folder / "results").find("latest").run_id)
    assert run.recording is not None
    return np.concatenate(
        [one.spans[one.num_warmup :, SPAN["page_bytes"]] for one in run.recording.segments if one.spans is not None]
    )


def seen_of(folder: Path, how: str, where: object, *, workers: int, num: int = 400) -> NDArray[np.int64]:
    (folder / "reads.py").write_text(SCRIPT)
    seen = watched("reads.py", how, where, workers, num, folder=folder)
    assert seen.code == 0, seen.err
    return read_bytes(folder)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_only_sleeps_reads_nothing(tmp_path: Path, workers: int) -> None:
    assert set(seen_of(tmp_path, "sleeps", "", workers=workers)) == {0}
    assert not record(tmp_path)["watched"]["stores"]


@pytest.mark.parametrize("how", ["reads", pytest.param("reads_in_a_thread", marks=pytest.mark.slow)])
@pytest.mark.parametrize("workers", [0, 2])
def test_files_count_with_their_bytes(tmp_path: Path, workers: int, how: str) -> None:
    (tmp_path / "sample.bin").write_bytes(os.urandom(SIZE))
    asked = seen_of(tmp_path, how, "sample.bin", workers=workers)
    # Where threads that carry batches read between the two halves of a count, what they read is taken off twice.
    assert np.median(asked) == 4 * SIZE and asked.max() == 4 * SIZE and asked.min() > 4 * SIZE - 1000
    assert not record(tmp_path)["watched"]["stores"]


@pytest.mark.parametrize(("how", "workers"), [("urllib", 2), ("raw", 0), ("kept_alive", 2)])
def test_answers_of_a_server_count_with_their_bytes_and_it_is_named(tmp_path: Path, how: str, workers: int) -> None:
    with server(0.0) as port:
        asked = seen_of(tmp_path, how, port, workers=workers)
    assert np.median(asked) == 4 * ANSWER
    # A count may come before the last byte of an answer, whose headers told its length: that is the next batch's.
    assert abs(asked - 4 * ANSWER).max() <= ANSWER
    assert record(tmp_path)["watched"]["stores"] == [f"127.0.0.1:{port}"]


@pytest.mark.alone
@pytest.mark.parametrize("how", ["urllib", "kept_alive"])
def test_a_store_over_http_is_the_storage_by_its_name(tmp_path: Path, how: str) -> None:
    (tmp_path / "reads.py").write_text(SCRIPT)
    with server(0.004) as port:
        step_s = float(watched("reads.py", how, port, 2, 1600, folder=tmp_path).out)
    verdict = record(tmp_path)["verdict"]
    assert verdict["bottleneck"] == "storage", verdict["summary"]
    assert verdict["summary"].startswith(f"Storage (127.0.0.1:{port}) limits this run")
    with server(0.0) as port:  # the same without what the server takes
        seen = watched("reads.py", how, port, 2, 1600, folder=tmp_path)
    gain = step_s / float(seen.out)
    assert verdict["speedup_if_removed"]["storage"]["value"] > 0.6 * gain


@pytest.mark.alone
def test_a_data_set_that_sleeps_is_no_storage(tmp_path: Path) -> None:
    seen_of(tmp_path, "sleeps", "", workers=2, num=1600)
    verdict = record(tmp_path)["verdict"]
    assert (verdict["bottleneck"], verdict["cause_detail"]) == ("prep", "sleep"), verdict["summary"]
    assert verdict["where"][0]["callee"] == "time.sleep"


def test_the_stopwatch_takes_its_own_readings_off_also_those_of_other_threads(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1000)
    watch, others = Stopwatch(), Stopwatch()
    for read in (0, 1000):
        begun = watch.begin()
        for _ in range(3):
            watch.now()
            thread = threading.Thread(target=lambda: (others.now(), others.begin()))
            thread.start()
            thread.join()
        if read:
            (tmp_path / "file").read_bytes()
        assert watch.since(begun).asked == read


def test_a_connection_that_a_process_inherited_is_its_parent_s(tmp_path: Path) -> None:
    with server(0.0) as port:
        script = f"""
import http.client, os
from loaderbench.samplers.connections import connections
def asks(one):
    one.request("GET", "/"); one.getresponse().read()
before, known = http.client.HTTPConnection("127.0.0.1", {port}), connections()
asks(before)
known.look()
reader, writer = os.pipe()
if os.fork() == 0:
    mine = connections()
    asks(before)
    mine.look()
    os.write(writer, str(mine.received).encode() + b" ")
    own = http.client.HTTPConnection("127.0.0.1", {port})
    asks(own)
    mine.look()
    os.write(writer, str(mine.received).encode())
    os._exit(0)
os.wait()
print(known.received, os.read(reader, 100).decode())
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == f"{ANSWER} 0 {ANSWER}\n", done.stderr


def test_peers_are_the_storage_where_most_bytes_are_theirs() -> None:
    first, second = (MAPPED + bytes([10, 0, 0, 1]), 443), (bytes(15) + b"\1", 9000)
    assert (name_of(first), name_of(second)) == ("10.0.0.1:443", "[::1]:9000")
    assert stores_of({first: 100, second: 500}, 1200) == ["[::1]:9000", "10.0.0.1:443"]
    assert stores_of({first: 100}, 201) == [] == stores_of({}, 0)


def test_what_workers_note_of_peers_is_summed(tmp_path: Path) -> None:
    ring, first, second = SpanRing(2), (MAPPED + bytes([10, 0, 0, 1]), 443), (MAPPED + bytes([10, 0, 0, 2]), 443)
    ring.note_peers(0, {first: 300, second: 200})
    ring.note_peers(1, {second: 150})
    assert ring.stores() == ["10.0.0.2:443", "10.0.0.1:443"]

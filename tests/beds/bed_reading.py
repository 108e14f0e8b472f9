"""Read a tree again and again, each file evicted behind its read. `python bed_reading.py PATH READERS SECONDS`."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor


def read_and_evict(path):
    num_bytes = 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while chunk := os.read(descriptor, 1 << 20):
            num_bytes += len(chunk)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return num_bytes


def files_below(root):
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)


def read_for(root, readers, seconds):
    """Returns {bytes, files, wall_s} of whole files read for at least `seconds`."""
    paths = files_below(root)
    num_bytes = num_files = 0
    begun = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        while time.perf_counter() - begun < seconds:
            num_bytes += sum(pool.map(read_and_evict, paths))
            num_files += len(paths)
    return {"bytes": num_bytes, "files": num_files, "wall_s": time.perf_counter() - begun}


if __name__ == "__main__":
    print(json.dumps(read_for(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))

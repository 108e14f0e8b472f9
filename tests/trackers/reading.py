"""Prints what a tracker's files hold, as JSON, by the tracker's own reader. A program of its own: importing the
libraries warns, and takes seconds."""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def wandb_records(path: Path) -> Iterator[Any]:
    """Records of a .wandb file: LevelDB's log format (its documentation, `log_format.md`) with W&B's messages in it."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(part)
            part = b""
            yield record


def items(found: Any) -> dict[str, Any]:
    return {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in found}


def of_wandb(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    summary: dict[str, Any] = {}
    history, step = [], []
    for record in wandb_records(path):
        kind = record.WhichOneof("record_type")
        if kind == "summary":
            summary |= items(record.summary.update)
        elif kind == "history":
            history.append(items(record.history.item))
            step.append(record.history.step.num)
    pages = [one.read_text() for one in path.parent.glob("files/media/html/loaderbench/*.html")]
    return {"summary": summary, "points": history, "steps": step, "pages": pages, "runs": 1}


def of_mlflow(folder: Path) -> dict[str, Any]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    runs = client.search_runs(["0"])
    run = runs[0]
    points = {
        name: [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    pages = [one.path for one in client.list_artifacts(run.info.run_id, "loaderbench")]
    return {"summary": run.data.tags, "points": points, "pages": pages, "runs": len(runs), "status": run.info.status}


def of_tensorboard(folder: Path) -> dict[str, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runs = sorted({path.parent for path in folder.rglob("events.out*")})
    events = EventAccumulator(str(runs[0]))
    events.Reload()
    tags = events.Tags()
    points = {name: [(one.step, one.value) for one in events.Scalars(name)] for name in tags["scalars"]}
    words = {name: events.Tensors(name)[-1].tensor_proto.string_val[0].decode() for name in tags["tensors"]}
    return {"summary": words, "points": points, "pages": [], "runs": len(runs)}


if __name__ == "__main__":
    print(json.dumps({"wandb": of_wandb, "mlflow": of_mlflow, "tensorboard": of_tensorboard}[sys.argv[1]](Path.cwd())))

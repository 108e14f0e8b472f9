"""Trace files of torch.profiler: hand-written ones with answers by hand, and every way to break one."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loaderbench.errors import ConfigError
from loaderbench.recording import kineto
from loaderbench.recording.facts import COPY, KERNEL, MEMSET
from loaderbench.recording.kineto import read_kineto

NASTY = 'void f<"a\\b">(int) {}],[ "ts": 1 \u00e9\U0001f600'
"""A kernel's name that looks like the end of an event, with quotes, a backslash and characters of 2 and 4 bytes."""


def activity(category: str, name: str, ts: Any, dur: Any, stream: int, correlation: int, **more: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
        "args": {"device": 0, "stream": stream, "correlation": correlation, "grid": [1, 2, 3], "occupancy": 0.5},
    } | more  # fmt: skip


def host(category: str, name: str, ts: Any, dur: Any, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": 9, "ts": ts, "dur": dur, "args": args}


TRACE: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "a device", "nested": {"traceEvents": [1, 2]}}],
    "baseTimeNanoseconds": 1763683000123456789,
    "traceEvents": [
        {"name": "process_name", "ph": "M", "ts": 0.0, "pid": 9, "tid": 0, "args": {"name": "python"}},
        host("user_annotation", "ProfilerStep#3", 1.0, 20.5),
        host("cpu_op", "aten::conv2d", 2.0, 3.0),
        host("cuda_runtime", "cudaLaunchKernel", 2.5, 0.75, correlation=77),
        host("cuda_driver", "cuLaunchKernelEx", 3.125, 0.75, correlation=76),
        activity("kernel", NASTY, 30.001, 10.999, 7, 77),
        activity("gpu_memcpy", "Memcpy HtoD", 5.25, 2, 13, 76),
        activity("gpu_memset", "Memset", 5, 0.001, 7, 75),
        {"ph": "s", "id": 77, "pid": 9, "tid": 9, "ts": 2.5, "cat": "ac2g", "name": "ac2g"},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#3", "pid": 0, "tid": 7, "ts": 5, "dur": 40},
        {"ph": "i", "cat": "kernel", "name": "no length is expected of this", "pid": 0, "tid": 7, "ts": 6},
        {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 99.5},
    ],
    "traceName": "x.json",
}
OLD_NAMES = {
    "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "cuda_runtime": "Runtime",
    "cuda_driver": "Runtime", "cpu_op": "Operator", "user_annotation": "Operator",
}  # fmt: skip
"""How torch 1.8 to 1.11 call the categories."""
ACTIVITIES = [
    [5_000, 5_001, MEMSET, 0, 7, "Memset", 75],
    [5_250, 7_250, COPY, 0, 13, "Memcpy HtoD", 76],
    [30_001, 41_000, KERNEL, 0, 7, NASTY, 77],
]


def read(path: Path, text: str | bytes) -> kineto.KinetoTrace:
    path.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    return read_kineto(path)


def check(trace: kineto.KinetoTrace) -> None:
    rows = [[*row[:5], trace.names[row[5]], row[6]] for row in trace.activities.tolist()]
    assert rows == ACTIVITIES
    assert [[*row[:2], trace.names[row[2]]] for row in trace.annotations.tolist()] == [
        [1_000, 21_500, "ProfilerStep#3"]
    ]
    assert trace.launches.tolist() == [[76, 3_125], [77, 2_500]]
    assert trace.base_ns == 1763683000123456789
    assert trace.num_events == 12


def test_a_trace_is_read_as_it_was_written_by_hand(tmp_path: Path) -> None:
    trace = read(tmp_path / "trace.json", json.dumps(TRACE))
    check(trace)
    assert trace.num_unusable == 1  # the instant event of category kernel


def test_an_old_trace_is_read_by_its_old_names(tmp_path: Path) -> None:
    old = [{**event, "cat": OLD_NAMES.get(event.get("cat", ""), "async")} for event in TRACE["traceEvents"]]
    old[9]["cat"] = "gpu_user_annotation"
    assert {"Kernel", "Memcpy", "Memset", "Runtime", "Operator"} <= {event["cat"] for event in old}
    check(read(tmp_path / "trace.json", json.dumps({**TRACE, "traceEvents": old})))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    indent=st.one_of(st.none(), st.integers(0, 5), st.sampled_from(["\t", " \r\n"])),
    separators=st.tuples(st.sampled_from([",", " , ", "\n,\t"]), st.sampled_from([":", ": ", " :\n"])),
    ascii_only=st.booleans(),
    order=st.permutations(list(TRACE)),
    chunk_bytes=st.integers(1, 200),
)
def test_formatting_key_order_and_chunks_change_nothing(
    tmp_path: Path, indent: Any, separators: tuple[str, str], ascii_only: bool, order: list[str], chunk_bytes: int
) -> None:
    document = {key: TRACE[key] for key in order}
    document["traceEvents"] = [dict(reversed(event.items())) for event in TRACE["traceEvents"]]
    text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=ascii_only)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto, "CHUNK_BYTES", chunk_bytes)
        check(read(tmp_path / "trace.json", text))


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    check(read(tmp_path / "trace.json.gz", gzip.compress(json.dumps(TRACE).encode())))
    check(read(tmp_path / "misnamed.json", gzip.compress(json.dumps(TRACE).encode())))
    two_members = [gzip.compress(part) for part in (json.dumps(TRACE).encode()[:500], json.dumps(TRACE).encode()[500:])]
    check(read(tmp_path / "members.json.gz", b"".join(two_members)))


def test_the_bare_list_of_events_is_a_trace_too(tmp_path: Path) -> None:
    trace = read(tmp_path / "trace.json", json.dumps(TRACE["traceEvents"]))
    assert len(trace.activities) == 3
    assert trace.base_ns is None


def test_absolute_times_keep_their_nanoseconds(tmp_path: Path) -> None:
    # 1711000000000000.123 µs is 1711000000000000.0 or .25 as a double
    events = '[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1711000000000000.123,"dur":1.5e1}]'
    assert read(tmp_path / "trace.json", events).activities[0, :2].tolist() == [
        1711000000000000123,
        1711000000000015123,
    ]


@pytest.mark.parametrize("wrong", [{"dur": None}, {"dur": -1}, {"ts": "soon"}, {"ts": float("nan")}, {"ts": [1]}])
def test_activities_without_a_usable_time_are_counted_not_kept(tmp_path: Path, wrong: dict[str, Any]) -> None:
    events = [activity("kernel", "good", 1, 1, 7, 1), activity("kernel", "bad", 3, 1, 7, 2) | wrong]
    if wrong == {"dur": None}:
        del events[1]["dur"]
    trace = read(tmp_path / "trace.json", json.dumps({"traceEvents": events}))
    assert (len(trace.activities), trace.num_unusable, trace.num_events) == (1, 1, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ts": "1e999998"}, {"ts": "-1e999998"}, {"dur": "1e300"}, {"ts": "1e-999998"}, {"ts": "NaN"},
        {"dur": "Infinity"}, {"ts": [0, [1], 999_000]}, {"ts": "-0.0", "dur": str((1 << 62) // 1000)},
        {"ts": {"a": 1}}, {"ts": int("9" * 4000)},
    ],
)  # fmt: skip
def test_a_time_that_no_clock_shows_is_unusable(tmp_path: Path, wrong: dict[str, Any]) -> None:
    events = [activity("kernel", "k", 1, 2, 7, 1), activity("kernel", "k", 1, 2, 7, 1) | wrong]
    text = json.dumps({"traceEvents": events})
    for number in wrong.values():
        if isinstance(number, str):
            text = text.replace(json.dumps(number), number)
    trace = read(tmp_path / "x.json", text)
    assert (len(trace.activities), trace.num_unusable) in ((1, 1), (2, 0)) and trace.activities[0, 0] >= 0


@pytest.mark.parametrize("wrong", [{"cat": ["kernel"]}, {"cat": {}}, {"name": [[1]]}, {"args": 3}, {"pid": "9" * 5000}])
def test_a_field_of_another_type_breaks_nothing(tmp_path: Path, wrong: dict[str, Any]) -> None:
    events = [activity("kernel", "k", 1, 2, 7, 1), activity("kernel", "k", 1, 2, 7, 1) | wrong]
    assert read(tmp_path / "x.json", json.dumps({"traceEvents": events})).num_events == 2


@pytest.mark.parametrize("field", ["ts", "pid", "unknown"])
def test_an_event_with_a_number_of_thousands_of_digits_is_left_out(tmp_path: Path, field: str) -> None:
    text = json.dumps({"traceEvents": [activity("kernel", "k", 1, 2, 7, 1), {field: "@"}]})
    trace = read(tmp_path / "x.json", text.replace('"@"', "9" * 5000))
    assert (trace.num_events, trace.num_repaired, trace.num_malformed) == (1, 0, 1)


MALFORMED = {
    "quotes": '"name": "{"device": "cpu"}(12): run"',
    "quotes and lines": '"name": "f = L("a", "b")\n(1): <module>"',
    "Windows path": r'"name": "C:\Users\me\new\train.py(3): f"',
    "Windows folder": '"name": "C:\\\\me\\"',
    "N/A": '"name": "k", "warps": N/A',
    "nan": '"name": "k", "a": nan, "b": -inf, "c": +Inf',
    "no value": '"name": "k", "stream": ',
    "braces": '"name": "f"}, {"x"',
}
"""Names and values as Kineto and other writers leave them (pytorch issues 113001, 98432 and 130622, kineto 131)."""


@pytest.mark.parametrize("chunk_bytes", [7, 1 << 20])
@pytest.mark.parametrize("damage", MALFORMED.values(), ids=list(MALFORMED))
@pytest.mark.parametrize("at", [0, 2, 4])
@pytest.mark.parametrize("indent", [None, 1])
def test_one_malformed_event_leaves_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, at: int, damage: str, chunk_bytes: int
) -> None:
    monkeypatch.setattr(kineto, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(kineto, "LONGEST_HEAD", 300)
    events = [activity("kernel", f"good {number}", number, 0.5, 7, number) for number in range(4)]
    events.insert(at, host("python_function", "@", 1.0, 2.0))
    text = json.dumps({"traceEvents": events, "baseTimeNanoseconds": 5}, indent=indent).replace('"name": "@"', damage)
    trace = read(tmp_path / "x.json", text)
    assert [trace.names[number] for number in trace.activities[:, 5]] == [f"good {number}" for number in range(4)]
    assert trace.num_repaired + trace.num_malformed == 1
    assert trace.base_ns == 5


@pytest.mark.parametrize("damage", ["quotes", "Windows path", "N/A", "nan"])
def test_a_malformed_kernel_is_repaired(tmp_path: Path, damage: str) -> None:
    events = [activity("kernel", "@", number, 0.5, 7, number) for number in range(4)]
    text = json.dumps({"traceEvents": events}).replace('"name": "@"', MALFORMED[damage])
    trace = read(tmp_path / "x.json", text)
    assert (len(trace.activities), trace.num_repaired, trace.num_malformed) == (4, 4, 0)
    assert trace.activities[:, 0].tolist() == [0, 1000, 2000, 3000]
    if damage == "quotes":
        assert trace.names == ['{"device": "cpu"}(12): run']


def test_unescaped_line_ends_and_tabs_are_read(tmp_path: Path) -> None:
    text = json.dumps([activity("kernel", "@", 1, 2, 7, 1)]).replace("@", "a\tb\nc")
    trace = read(tmp_path / "x.json", text)
    assert (trace.names, trace.num_repaired) == (["a\tb\nc"], 0)


@pytest.mark.parametrize("first", [True, False])
def test_a_malformed_log_leaves_the_events(tmp_path: Path, first: bool) -> None:
    log = '"INFO": ["stream "7" of "event", {"a": 1}"]'  # kineto 1184
    parts = [log, json.dumps({"traceEvents": TRACE["traceEvents"]})[1:-1], '"baseTimeNanoseconds": 7']
    trace = read(tmp_path / "x.json", "{" + ", ".join(parts if first else [*parts[1:2], log, parts[2]]) + "}")
    assert (len(trace.activities), trace.base_ns, trace.num_malformed) == (3, 7, 1)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_byte_order_marks_are_accepted(tmp_path: Path, encoding: str) -> None:
    text = json.dumps(TRACE) if encoding != "utf-16-le" else "\ufeff" + json.dumps(TRACE)
    check(read(tmp_path / "x.json", text.encode(encoding)))


def test_a_list_may_end_with_a_comma_or_without_its_bracket(tmp_path: Path) -> None:
    whole = json.dumps(TRACE["traceEvents"])
    for text in (whole[:-1] + ",]", whole[:-1], whole[:-1] + ",\n"):
        assert len(read(tmp_path / "x.json", text).activities) == 3


def test_begins_and_ends_of_events_are_paired_by_track(tmp_path: Path) -> None:
    begin = {"ph": "B", "cat": "kernel", "name": "outer", "pid": 0, "tid": 7, "ts": 1}
    events = [
        begin, begin | {"name": "inner", "ts": 2}, begin | {"tid": 8, "name": "other", "ts": 3},
        {"ph": "E", "pid": 0, "tid": 7, "ts": 4}, {"ph": "E", "pid": 0, "tid": 7, "ts": 6.5},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 9},  # of no begin; and `other` never ends
    ]  # fmt: skip
    trace = read(tmp_path / "x.json", json.dumps(events))
    assert trace.activities[:, :2].tolist() == [[1000, 6500], [2000, 4000]]
    assert trace.num_unusable == 1


def test_a_folder_of_traces(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no trace"):
        kineto.traces_in(tmp_path)
    (tmp_path / "other.json").write_text("[]")
    assert [path.name for path in kineto.traces_in(tmp_path)] == ["other.json"]
    names = ["run/host_1.200.pt.trace.json.gz", "run/host_1.100.pt.trace.json"]
    for number, name in enumerate(reversed(names)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("[]")
        os.utime(tmp_path / name, (number, number))
    assert kineto.traces_in(tmp_path) == [tmp_path / name for name in reversed(names)]


def test_unknown_device_and_stream_are_minus_one(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": "Spans", "tid": 7, "ts": 1, "dur": 1, "args": None}
    assert read(tmp_path / "trace.json", json.dumps([event])).activities[0, 3:].tolist() == [-1, 7, 0, -1]


def test_an_empty_list_is_an_empty_trace(tmp_path: Path) -> None:
    trace = read(tmp_path / "trace.json", '{"traceEvents": []}')
    assert (trace.num_events, trace.activities.shape, trace.annotations.shape) == (0, (0, 7), (0, 3))


def test_cut_off_anywhere_it_says_so_and_behind_which_event(tmp_path: Path) -> None:
    events = [activity("kernel", f"kernel {number}", number, 0.5, 7, number) for number in range(3)]
    text = json.dumps({"traceEvents": events, "traceName": "x"}, indent=1)
    ends = [text.index("}\n  }", text.index(f'"kernel {number}"')) for number in range(3)]  # each event's last brace
    for length in range(text.index("[") + 1, len(text)):
        with pytest.raises(ConfigError, match="cut off after event") as raised:
            read(tmp_path / "trace.json", text[:length])
        complete = sum(length >= end + len("}\n  }") for end in ends)
        assert f"cut off after event {complete}:" in str(raised.value)


@pytest.mark.parametrize("lost", [1, 40, 100])
def test_a_cut_off_gzip_says_so(tmp_path: Path, lost: int) -> None:
    rng = np.random.default_rng(0)
    events = [activity("kernel", f"k{number}", number, 0.5, 7, int(rng.integers(1 << 40))) for number in range(300)]
    packed = gzip.compress(json.dumps({"traceEvents": events}).encode())
    if lost == 1:  # the end of the text is there, only the checksum behind it is not whole: nothing is missing
        assert len(read(tmp_path / "trace.json.gz", packed[:-lost]).activities) == 300
        return
    with pytest.raises(ConfigError, match=r"cut off after event \d+:"):
        read(tmp_path / "trace.json.gz", packed[:-lost])


def test_a_damaged_gzip_says_so(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(json.dumps(TRACE).encode()))
    packed[len(packed) // 2] ^= 0xFF
    with pytest.raises(ConfigError, match=r"damaged|not valid JSON|cut off"):
        read(tmp_path / "trace.json.gz", bytes(packed))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty"),
        ("  \n", "it is empty"),
        ("\x7fELF\x02\x01", "it is not JSON"),
        ("step,time\n1,2\n", "it is not JSON"),
        ("{}", "it has no list traceEvents"),
        ('{"traceEvents": {"a": 1}}', "it has no list traceEvents"),
        ('{"arms": [1, 2], "verdict": {"a": null}}', "it has no list traceEvents"),
        ("[1, 2]", "not objects"),
        ('{"a": nope, "b": [1]}', "after event 0, character 6"),
        ("{traceEvents: []}", "after event 0, character 1"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path / "trace.json", text)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("events", "num_left"),
    [
        ('{"name": nope}', 1),
        ('{"ph": "M"} {"ph": "M"}', 0),
        ('{"ph": "M"},, {"ph": "M", "a": "a long text"}', 1),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, 0),
    ],
)
def test_what_is_no_event_is_counted(tmp_path: Path, events: str, num_left: int) -> None:
    trace = read(tmp_path / "trace.json", '{"traceEvents": [' + events + "]}")
    assert (trace.num_events, trace.num_repaired + trace.num_malformed) == (num_left, 1)


def test_a_file_that_cannot_be_read_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_kineto(tmp_path / "nosuch.json")
    with pytest.raises(ConfigError, match="directory"):
        read_kineto(tmp_path)


def test_memory_does_not_grow_with_the_events_that_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto, "CHUNK_BYTES", 1 << 16)

    def peak_bytes(num_events: int) -> int:
        event = json.dumps(host("cpu_op", "aten::add", 1.5, 2.5, shapes=[[64, 3, 224, 224]] * 4)) + ","
        path = tmp_path / f"{num_events}.json"
        path.write_text('{"traceEvents": [' + event * num_events + "{}]}")
        tracemalloc.start()
        try:
            read_kineto(path)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak_bytes(5_000), peak_bytes(25_000)  # 1 and 5 MB of text
    assert large < 1.1 * small
    assert large < 8 * kineto.CHUNK_BYTES


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_a_trace_that_torch_wrote_reads_as_json_loads_has_it(tmp_path: Path, suffix: str) -> None:
    import torch

    path = tmp_path / f"trace.{suffix}"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            with torch.profiler.record_function("ours"):
                torch.ones(8, 8) @ torch.ones(8, 8)
            profiler.step()
    profiler.export_chrome_trace(str(path))
    content = gzip.decompress(path.read_bytes()) if suffix.endswith("gz") else path.read_bytes()
    document = json.loads(content, parse_float=Decimal)  # a double is 1 ns off on a machine that is up for weeks
    trace = read_kineto(path)
    assert trace.num_events == len(document["traceEvents"])
    assert trace.base_ns == document["baseTimeNanoseconds"]
    expected = sorted(
        (one["ts"] * 1000, (one["ts"] + one["dur"]) * 1000, one["name"])
        for one in document["traceEvents"]
        if one.get("cat") == "user_annotation"
    )
    assert len([name for _, _, name in expected if name == "ours"]) == 3
    assert sorted((*row[:2], trace.names[row[2]]) for row in trace.annotations.tolist()) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:CUDA")
@pytest.mark.parametrize("num_steps", [12, 20, 31])
def test_the_documented_snippet_leaves_its_five_steps_whenever_the_loop_ends(
    num_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    page = Path(__file__).parents[2] / "docs" / "profiler-traces.md"
    code = page.read_text().partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    batch = torch.rand(8, 8)
    exec(code, {"loader": range(num_steps), "train_step": lambda number: batch @ batch})
    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    steps = {event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep")}
    assert steps == {f"ProfilerStep#{number}" for number in range(7, 12)}

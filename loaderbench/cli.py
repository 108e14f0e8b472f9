"""The command line: one short function a command, each parse → call → show. Nothing heavy is imported here."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loaderbench import __version__
from loaderbench.errors import ConfigError, LoaderbenchError, UnavailableError

if TYPE_CHECKING:
    from loaderbench.cases.case import Case
    from loaderbench.cases.study import StudyRequest
    from loaderbench.recording.store import Store
    from loaderbench.reporting.live import Progress

app = typer.Typer(
    name="loaderbench",
    help="What limits this training or inference run: storage, CPU preparation, the copy to the device, "
    "kernel launches or compute?",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
MIN_BUDGET_S = 60.0

dataset_app = typer.Typer(help="Make, derive and inspect data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(dataset_app, name="dataset")

Dataset = Annotated[
    str | None, typer.Argument(help="Folder of images or name of a data set. Left out: a generated set, kept.")
]
Loader = Annotated[
    str,
    typer.Option(help="serial, multiprocess, threaded, dali, synthetic, cached, or another library's: docs/loaders.md"),
]
Decoder = Annotated[
    str | None,
    typer.Option(
        help="pillow, pillow-simd, turbojpeg, torchvision, opencv, libjpeg  [default: pillow; threaded: the fastest]"
    ),
]
DecodeScale = Annotated[
    str | None,
    typer.Option(help="auto: decode large crops at 1/2, 1/4 or 1/8; for --decoder libjpeg  [default: off]"),
]
IoThreads = Annotated[
    int | None, typer.Option(help="Threads that only read, ahead of the workers; for --loader threaded  [default: 0]")
]
Workers = Annotated[str | None, typer.Option(help="Processes or threads  [default: usable CPUs]")]
BatchSize = Annotated[int, typer.Option(help="Samples a step")]
Prefetch = Annotated[int, typer.Option(help="Batches prepared ahead, per worker")]
Model = Annotated[str, typer.Option(help="A torchvision classification model")]
Mode = Annotated[str, typer.Option(help="train or infer")]
InputSize = Annotated[str, typer.Option(help="Side of the square that the model sees, or full")]
Precision = Annotated[
    str | None,
    typer.Option(
        help="fp32, tf32, bf16, fp16, pure-bf16, pure-fp16, amp-bf16, amp-fp16  [default: amp-bf16; fp32 on the CPU]"
    ),
]
LossScale = Annotated[
    str | None,
    typer.Option(help="dynamic, or a whole number; training in fp16  [default: 128; amp-fp16: dynamic]"),
]
Output = Annotated[
    str | None, typer.Option(help="What the loader hands over: float32 or uint8  [default: float32; threaded: uint8]")
]
Overlap = Annotated[bool, typer.Option(help="Copy batches on a stream of their own, beside the compute")]
DeviceOption = Annotated[str, typer.Option(help="auto, cuda[:N], cpu, emulated[:PROFILE]")]
Cache = Annotated[
    str | None, typer.Option(help="cold, warm or as-is  [default: cold where eviction can be proven, else as-is]")
]
Arms = Annotated[str, typer.Option(help="all, real, or a list out of device,host,ram,real,free,fetch")]
Steps = Annotated[int | None, typer.Option(help="Measured steps of each arm  [default: until --ci-target]")]
Duration = Annotated[float, typer.Option(help="Most seconds of measuring for a case")]
CiTarget = Annotated[float, typer.Option(help="Stop at this 95 % half-width, as a fraction of the step time")]
MaxBytes = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Read no more from the data set's storage: 500M, 20G …  [default: no limit]"),
]
Warmup = Annotated[int | None, typer.Option(help="Warm-up steps of each window  [default: until steady]")]
Repeats = Annotated[int, typer.Option(help="Processes a case; the process is then the unit of the interval")]
Kernels = Annotated[
    bool, typer.Option(help="Trace a few steps behind the arms, for the gaps between the device's kernels")
]
Seed = Annotated[int, typer.Option(help="Of order and augmentation")]
MaxFailures = Annotated[float, typer.Option(help="Fraction of undecodable images above which a case fails")]
LoaderOption = Annotated[list[str] | None, typer.Option(help="KEY=VALUE for the loader; may be repeated")]
DecoderOption = Annotated[list[str] | None, typer.Option(help="KEY=VALUE for the decoder; may be repeated")]
Results = Annotated[Path, typer.Option(help="Where runs are kept")]
JsonOut = Annotated[str | None, typer.Option("--json", help="Write the record to FILE, or - for standard output")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no table")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the cases and the time they will take")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"loaderbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    dataset: Dataset = None,
    res: Annotated[int | None, typer.Option(help="Stored resolution: the data set's variant N")] = None,
    loader: Loader = "multiprocess",
    decoder: Decoder = None,
    decode_scale: DecodeScale = None,
    workers: Workers = None,
    io_threads: IoThreads = None,
    batch_size: BatchSize = 64,
    prefetch: Prefetch = 2,
    model: Model = "resnet50",
    mode: Mode = "train",
    input_size: InputSize = "224",
    precision: Precision = None,
    loss_scale: LossScale = None,
    output: Output = None,
    overlap: Overlap = True,
    device: DeviceOption = "auto",
    cache: Cache = None,
    arms: Arms = "all",
    steps: Steps = None,
    duration: Duration = 60.0,
    ci_target: CiTarget = 0.03,
    max_bytes: MaxBytes = None,
    warmup: Warmup = None,
    repeats: Repeats = 1,
    kernels: Kernels = True,
    seed: Seed = 0,
    max_failures: MaxFailures = 0.01,
    loader_option: LoaderOption = None,
    decoder_option: DecoderOption = None,
    results: Results = Path("results"),
    json_out: JsonOut = None,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Then run the advice, and print predicted against measured speed-up")
    ] = False,
    save_profile: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Keep this GPU's times for --device emulated:FILE.toml")
    ] = None,
) -> None:
    """Measure one case and say what limits it."""
    _no_lists(locals(), "run", "loader", "workers", "decoder", "model", "precision")
    if res is None and dataset is None:
        res = 256
    _measure(locals(), [(dataset, res)])


@app.command()
def sweep(
    ctx: typer.Context,
    dataset: Annotated[
        str | None, typer.Argument(help="STUDY.toml; or data sets, comma separated. Left out: a generated set, kept.")
    ] = None,
    res: Annotated[str | None, typer.Option(help="Stored resolutions, comma separated")] = None,
    loader: Loader = "serial,multiprocess,threaded",
    decoder: Decoder = None,
    decode_scale: DecodeScale = None,
    workers: Workers = None,
    io_threads: IoThreads = None,
    batch_size: Annotated[str, typer.Option(help="Samples a step, comma separated")] = "64",
    prefetch: Annotated[str, typer.Option(help="Batches prepared ahead, per worker, comma separated")] = "2",
    buffer_ratio: Annotated[
        str | None,
        typer.Option(help="Short runs that begin with so large a prefetch buffer ÷ their iterations, e.g. 0.1,0.5,1.0"),
    ] = None,
    model: Annotated[str, typer.Option(help="torchvision classification models, comma separated")] = "resnet50",
    mode: Mode = "train",
    input_size: InputSize = "224",
    precision: Precision = None,
    loss_scale: LossScale = None,
    output: Output = None,
    overlap: Overlap = True,
    device: DeviceOption = "auto",
    cache: Cache = None,
    arms: Arms = "all",
    steps: Steps = None,
    duration: Duration = 60.0,
    ci_target: CiTarget = 0.03,
    max_bytes: MaxBytes = None,
    warmup: Warmup = None,
    repeats: Repeats = 1,
    kernels: Kernels = True,
    seed: Seed = 0,
    max_failures: MaxFailures = 0.01,
    loader_option: LoaderOption = None,
    decoder_option: DecoderOption = None,
    results: Results = Path("results"),
    json_out: JsonOut = None,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take cases that are finished in the results folder from there")
    ] = False,
) -> None:
    """Measure every combination of comma lists (or of a study in a file), and print them as one table."""
    options = {name: value for name, value in locals().items() if name != "ctx"}
    if dataset is not None and dataset.endswith(".toml"):
        from loaderbench.cases.study import read_study

        study = {"dataset": None, **read_study(Path(dataset))}
        given = {name for name in options if str(ctx.get_parameter_source(name)).endswith("COMMANDLINE")}
        options |= {name: value for name, value in study.items() if name == "dataset" or name not in given}
    sets: list[str | None] = [None] if options["dataset"] is None else [*str(options["dataset"]).split(",")]
    resolutions: list[int | None] = [None]
    if options["res"] is not None:
        resolutions = list(_whole_numbers("--res", options["res"]))
    elif options["dataset"] is None:
        resolutions = [256, 512, 1024]
    _measure(options, [(one, resolution) for one in sets for resolution in resolutions])


@app.command()
def tune(
    dataset: Dataset = None,
    res: Annotated[int | None, typer.Option(help="Stored resolution: the data set's variant N")] = None,
    budget: Annotated[float, typer.Option(help="Seconds that the search may take, finals included")] = 300.0,
    loader: Annotated[
        str | None, typer.Option(help="Loaders to search, comma separated  [default: all that are installed]")
    ] = None,
    decoder: Annotated[
        str | None, typer.Option(help="Decoders to search, comma separated  [default: all that are installed]")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Numbers to search, comma separated  [default: half, all, twice the CPUs]")
    ] = None,
    prefetch: Annotated[str, typer.Option(help="Numbers to search, comma separated")] = "2,4",
    batch_size: BatchSize = 64,
    model: Model = "resnet50",
    mode: Mode = "train",
    input_size: InputSize = "224",
    precision: Precision = None,
    output: Output = None,
    overlap: Overlap = True,
    device: DeviceOption = "auto",
    cache: Cache = None,
    seed: Seed = 0,
    max_failures: MaxFailures = 0.01,
    results: Results = Path("results"),
    json_out: JsonOut = None,
    quiet: Quiet = False,
    dry_run: DryRun = False,
) -> None:
    """Find the fastest loader, decoder, workers and prefetch for a data set and a device."""
    from loaderbench.cases.study import (
        DECODES_ITSELF,
        default_decoder,
        default_output,
        installed_decoders,
        installed_loaders,
        plan,
    )
    from loaderbench.machine import usable_cpus
    from loaderbench.recording.store import Store
    from loaderbench.reporting.study import print_tuning
    from loaderbench.reporting.terminal import make_console
    from loaderbench.studies import tune as tuning

    if not budget >= MIN_BUDGET_S:
        raise ConfigError(f"--budget must be at least {MIN_BUDGET_S:g} seconds, not {budget:g}")
    _no_lists(locals(), "tune", "model", "precision")
    cpus = usable_cpus()
    loaders = loader or ",".join(installed_loaders())
    decodes_itself = set(loaders.replace(" ", "").split(",")) <= DECODES_ITSELF
    options = {
        **locals(),
        "loader": loaders,
        "decoder": decoder or (None if decodes_itself else ",".join(installed_decoders())),
        "workers": workers or ",".join(str(n) for n in sorted({max(1, cpus // 2), cpus, 2 * cpus})),
        "arms": "real",
        "kernels": False,
        "steps": None,
        "warmup": None,
        "duration": 10.0,
        "ci_target": 0.01,
        "max_bytes": None,
        "repeats": 1,
        "loss_scale": None,
        "loader_option": None,
        "decoder_option": None,
    }
    request = _request(options, [(dataset, 256 if dataset is None and res is None else res)])
    if cache is None and request.cache == "as-is":  # the first to read a file would pay for those after it
        request = dataclasses.replace(request, cache="warm")
    cases = plan(request)
    default = dataclasses.replace(
        cases[0], loader="multiprocess", decoder=default_decoder("multiprocess"), workers=cpus, prefetch=2,
        output=output or default_output("multiprocess"),
    )  # fmt: skip
    if dry_run:
        for case in cases:
            typer.echo(tuning.describe(case))
        typer.echo(f"{len(cases)} settings, at most {budget / 60:.1f} minutes")
        return
    store = Store(results)
    store.check_writable()
    _check_json_target(json_out)

    def say(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    found = tuning.tune(cases, default, budget, store, say)
    code = tuning.snippet(type(default).from_json(found["winner"]))
    if not quiet:
        print_tuning(found, code, make_console(stderr=json_out == "-"))
    if json_out is not None:
        _write_json({**found, "snippet": code}, json_out)


@app.command()
def compare(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A B", help="NAME=DATASET twice, to measure both in turn; or two stored runs; or RUN and --baseline"
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Hold a stored run (the latest) against this one: exit 1 on a regression"),
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Fraction by which images/s may fall short of the baseline's")
    ] = 0.05,
    rounds: Annotated[int, typer.Option(help="How often both sides are measured in turn")] = 3,
    res: Annotated[int | None, typer.Option(help="Stored resolution: both data sets' variant N")] = None,
    loader: Loader = "multiprocess",
    decoder: Decoder = None,
    workers: Annotated[str | None, typer.Option(help="Numbers, comma separated  [default: usable CPUs]")] = None,
    batch_size: BatchSize = 64,
    prefetch: Prefetch = 2,
    model: Model = "resnet50",
    mode: Mode = "train",
    input_size: InputSize = "224",
    precision: Precision = None,
    loss_scale: LossScale = None,
    output: Output = None,
    overlap: Overlap = True,
    kernels: Kernels = True,
    device: DeviceOption = "auto",
    cache: Annotated[
        str | None, typer.Option(help="cold, warm, as-is, comma separated  [default: cold,warm where they can be made]")
    ] = None,
    arms: Arms = "all",
    steps: Steps = None,
    duration: Annotated[
        float, typer.Option(help="Most seconds of measuring for a side, worker count and cache state, all rounds")
    ] = 60.0,
    ci_target: CiTarget = 0.03,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Read no more from either storage, all runs together: 20G  [default: no limit]"
        ),
    ] = None,
    warmup: Warmup = None,
    seed: Seed = 0,
    max_failures: MaxFailures = 0.01,
    loader_option: LoaderOption = None,
    decoder_option: DecoderOption = None,
    results: Results = Path("results"),
    json_out: JsonOut = None,
    quiet: Quiet = False,
    dry_run: DryRun = False,
) -> None:
    """Two storages that hold the same files, measured in turn; or two stored runs."""
    options = {**locals(), "repeats": rounds}
    given = targets or []
    named = [text for text in given if "=" in text]
    _check_json_target(json_out)
    if baseline is not None and len(given) < 2 and not named:
        _compare_with_baseline(baseline, given[0] if given else "latest", options)
    elif baseline is None and len(given) == 2 and len(named) == 2:
        _compare_data_sets(options)
    elif baseline is None and len(given) == 2 and not named:
        _compare_runs(given, options)
    else:
        raise ConfigError(
            "compare takes two data sets (nvme=/data/set nfs=/mnt/nfs/set), two stored runs, or --baseline RUN [RUN]"
        )


@app.command("list")
def list_runs(results: Results = Path("results"), json_out: JsonOut = None) -> None:
    """List the stored runs, broken ones included."""
    from loaderbench.recording.store import Store

    store = Store(results)
    runs = store.runs()
    if json_out is not None:
        entries = [
            {"run_id": one.run_id, "status": one.status, "title": one.title, "problem": one.problem} for one in runs
        ]
        _write_json(entries, json_out)
        return
    from loaderbench.reporting.terminal import print_list

    print_list(runs, findings=[*store.studies(), *store.comparisons()])


@app.command()
def show(
    run_id: Annotated[
        str, typer.Argument(metavar="RUN", help="Id of a run, a study or a comparison, a unique start of it, or latest")
    ],
    results: Results = Path("results"),
    json_out: JsonOut = None,
) -> None:
    """Print one stored run, study or comparison."""
    from loaderbench.recording.store import Store

    store = Store(results)
    if _show_finding(store, run_id, json_out):
        return
    stored = store.find(run_id)
    if stored.record is None:
        raise ConfigError(f"{stored.run_id} has no result: {stored.problem}")
    if json_out is not None:
        _write_json(stored.record, json_out)
        return
    from loaderbench.reporting.terminal import print_run

    print_run(stored.record)


@app.command()
def trace(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, a unique start of it, or latest")],
    out: Annotated[Path | None, typer.Option(help="File to write  [default: RUN.perfetto.json.gz]")] = None,
    results: Results = Path("results"),
) -> None:
    """Write one stored run over time, to be opened at ui.perfetto.dev or in chrome://tracing."""
    from loaderbench.recording.store import Store, load_recording
    from loaderbench.reporting.perfetto import write_trace

    stored = Store(results).find(run_id)
    case, recording, series = load_recording(results / stored.run_id)
    if not recording.segments:
        raise ConfigError(f"{stored.run_id} measured nothing that could be drawn")
    target = out or Path(f"{stored.run_id}.perfetto.json.gz")
    try:
        num_events = write_trace(target, case, recording, series)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}") from error
    typer.echo(f"{target}: {num_events:,} events, {target.stat().st_size / 1e6:,.1f} MB; open it at ui.perfetto.dev")


@app.command("gaps")
def show_gaps(
    trace_file: Annotated[Path, typer.Argument(metavar="TRACE", help="A .json or .json.gz of torch.profiler")],
    device: Annotated[int | None, typer.Option(help="Its number in the trace  [default: the only one]")] = None,
    json_out: JsonOut = None,
    quiet: Quiet = False,
) -> None:
    """Busy and idle time of the device in a torch.profiler trace, and the gaps between its kernels."""
    from loaderbench.analysis.trace_gaps import device_of, summarize
    from loaderbench.recording.kineto import read_kineto

    _check_json_target(json_out)
    with contextlib.nullcontext() if quiet else _progress(f"reading {trace_file.name}, bytes") as progress:
        recorded = read_kineto(trace_file, progress)
    summary = summarize(recorded, device_of(recorded, device))
    if json_out is not None:
        _write_json(summary, json_out)
    if not quiet and json_out != "-":
        from loaderbench.reporting.terminal import print_gaps

        print_gaps(summary)


@app.command()
def report(
    out: Annotated[
        Path | None, typer.Option(help="File, or folder for png and svg  [default: RESULTS/report.FORMAT or /figures]")
    ] = None,
    kind: Annotated[
        str, typer.Option("--format", help="html, md, csv (a row a run), png or svg (a file a figure)")
    ] = "html",
    results: Results = Path("results"),
) -> None:
    """Write all stored runs and comparisons as one page, or in another form."""
    from loaderbench.cases.study import check_choice
    from loaderbench.recording.store import Store, write_atomic
    from loaderbench.reporting import figures
    from loaderbench.reporting.csv import csv_text
    from loaderbench.reporting.html import render_html
    from loaderbench.reporting.markdown import render_markdown
    from loaderbench.reporting.report import read_report

    check_choice("--format", kind, ("html", "md", "csv", "png", "svg"))
    with _progress("studies") as progress:
        found = read_report(Store(results), progress)
    if kind in ("png", "svg"):
        target = out or results / "figures"
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write the figures to {target}: {error.strerror}; name another --out") from error
        for figure in found.figures:
            figures.save(figure, target / f"{figure.name}.{kind}")
        typer.echo(f"{target}: {len(found.figures)} figures of {len(found.records)} runs")
        return
    if kind == "csv":
        text = csv_text(found.records)
    else:
        text = render_html(found) if kind == "html" else render_markdown(found)
    if out == Path("-"):
        typer.echo(text, nl=False)
        return
    target = out or results / f"report.{kind}"
    try:
        write_atomic(target, text.encode())
    except OSError as error:
        raise ConfigError(
            f"cannot write the report {target}: {error.strerror}; name another file with --out"
        ) from error
    typer.echo(f"{target}: {len(found.records)} runs, {len(text.encode()) / 1e6:.1f} MB")


@app.command()
def selftest(
    quick: Annotated[bool, typer.Option("--quick", help="12 cases and 6 nulls, about 5 minutes")] = False,
    device: DeviceOption = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted self-test")] = False,
    results: Results = Path("results"),
    json_out: JsonOut = None,
) -> None:
    """Build known causes into runs on this machine and check the verdicts against a stopwatch."""
    from loaderbench.devices.select import parse_device
    from loaderbench.recording.store import Store
    from loaderbench.reporting.terminal import make_console, print_selftest
    from loaderbench.studies.selftest import confusion, run_selftest

    Store(results).check_writable()
    choice = parse_device(device, model="resnet50", mode="infer", precision=None, batch_size=16)
    result = run_selftest(
        quick=quick,
        device=choice.device,
        precision=choice.precision,
        mode="infer",
        state_file=results / f"selftest-{'quick' if quick else 'full'}.jsonl",
        resume=resume,
        say=lambda line: typer.echo(line, err=True),
    )
    if json_out is not None:
        _write_json(result.to_json(), json_out)
    print_selftest(result.to_json(), confusion(result.outcomes), make_console(stderr=json_out == "-"))


@app.command()
def precision(
    model: Model = "resnet50",
    mode: Mode = "train",
    precisions: Annotated[str | None, typer.Option(help="Comma separated; fp32 always runs  [default: all]")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps to time, and as many to follow  [default: 100; 30 on the CPU]")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples a step  [default: 64; 8 on the CPU]")] = None,
    input_size: Annotated[int | None, typer.Option(help="Side of the images  [default: 224; 64 on the CPU]")] = None,
    loss_scale: LossScale = None,
    device: Annotated[str, typer.Option(help="auto (cuda, else cpu), cuda[:N], cpu")] = "auto",
    seed: Annotated[int, typer.Option(help="Of weights and batches")] = 0,
    json_out: JsonOut = None,
    quiet: Quiet = False,
) -> None:
    """Run a model in every precision: time, memory, and whether its numbers still agree with fp32."""
    from loaderbench.cases.case import PRECISIONS
    from loaderbench.reporting.terminal import make_console, print_precision
    from loaderbench.studies.precision import PrecisionStudy, plan_precision

    _check_json_target(json_out)
    try:
        cases, note = plan_precision(
            model=model,
            mode=mode,
            device=device,
            precisions=PRECISIONS if precisions is None else [name.strip() for name in precisions.split(",")],
            num_steps=steps,
            batch_size=batch_size,
            input_size=input_size,
            loss_scale=loss_scale,
            seed=seed,
        )
    except UnavailableError as error:
        raise ConfigError(str(error)) from error
    if note and not quiet:
        typer.echo(note, err=True)
    study = PrecisionStudy(cases)
    ended: BaseException | None = None
    try:
        with _lines(quiet=quiet) as say:
            study.run(say)
    except (KeyboardInterrupt, SystemExit) as stop:
        ended = stop
    result = study.to_json()
    if not quiet and study.modes:
        print_precision(result, make_console(stderr=json_out == "-"))
    if json_out is not None:
        _write_json(result, json_out)
    if ended is not None:
        num_done = sum(one.status != "interrupted" for one in study.modes)
        code = ended.code if isinstance(ended, SystemExit) else 130
        raise _Interrupted(f"interrupted: {num_done} of {len(cases)} modes were finished and are kept", code)
    if any(one.status == "failed" for one in study.modes):
        raise typer.Exit(1)


@app.command()
def install(
    package: Annotated[str, typer.Argument(help="pillow-simd: built for this processor, beside Pillow")],
) -> None:
    """Build a package that cannot lie beside the others into a folder of its own."""
    from loaderbench import prefixes

    prefixes.install(package, lambda line: typer.echo(line, err=True))


@app.command()
def doctor(
    dataset: Annotated[str | None, typer.Argument(help="A data set's folder, to look at its storage too")] = None,
    json_out: JsonOut = None,
) -> None:
    """Say what this machine can measure, what it cannot, and the one step that enables it."""
    from loaderbench.doctor import examine, to_json

    findings = examine(dataset)
    if json_out is not None:
        _write_json(to_json(findings), json_out)
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        typer.echo(f"{finding.state:<9}{finding.name:<{width}}  {finding.what}")
        if finding.enable:
            typer.echo(f"{'':<9}{'':<{width}}  → {finding.enable}")


@dataset_app.command("make")
def dataset_make(
    res: Annotated[str, typer.Option(help="Resolutions, comma separated: N for N×N, or WxH")],
    out: Annotated[Path, typer.Option(help="Folder to make")],
    num_images: Annotated[int, typer.Option(help="Images a resolution")] = 1000,
    num_classes: Annotated[int, typer.Option(help="Class folders")] = 10,
    aspect_spread: Annotated[float, typer.Option(help="Standard deviation of log(width ÷ height)")] = 0.0,
    quality_spread: Annotated[int, typer.Option(help="JPEG quality varies by ± this")] = 0,
    progressive: Annotated[float, typer.Option(help="Fraction of progressive files")] = 0.0,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal files")] = 0,
) -> None:
    """Make realistic JPEGs, in the layout DIR/<res>/<class>/*.jpg. A second call does nothing."""
    from loaderbench.images.synthesize import make_dataset

    with _progress("making images") as progress:
        folders = make_dataset(
            out,
            [token.strip() for token in res.split(",")],
            num_images,
            seed=seed,
            num_classes=num_classes,
            aspect_spread=aspect_spread,
            quality_spread=quality_spread,
            progressive_fraction=progressive,
            progress=progress,
        )
    for name, folder in folders.items():
        typer.echo(f"{name}: {num_images} images in {folder}")


@dataset_app.command("derive")
def dataset_derive(
    src: Annotated[str, typer.Argument(help="Folder of images")],
    res: Annotated[str, typer.Option(help="Shorter sides, comma separated")],
    out: Annotated[Path, typer.Option(help="Folder to make")],
    quality: Annotated[int | None, typer.Option(help="JPEG quality")] = None,
) -> None:
    """Resize and re-encode your own images into resolution variants."""
    from loaderbench.images.derive import DEFAULT_QUALITY, derive_dataset

    with _progress("deriving images") as progress:
        made = derive_dataset(
            src, _whole_numbers("--res", res), out, quality=quality or DEFAULT_QUALITY, progress=progress
        )
    for side, folder in made.variants.items():
        typer.echo(f"{side}: {folder}")
    typer.echo(f"{made.num_made} made, {made.num_kept} were there, {len(made.broken)} broken")
    for path, reason in made.broken[:20]:
        typer.echo(f"broken: {path}: {reason}", err=True)


@dataset_app.command("convert")
def dataset_convert(
    src: Annotated[str, typer.Argument(help="Folder of images or name of a data set")],
    to: Annotated[str, typer.Option(help="wds (tar shards, for --loader webdataset), litdata or ffcv")],
    res: Annotated[int | None, typer.Option(help="Stored resolution: the data set's variant N")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to make  [default: inside SRC, where the loader finds it]")
    ] = None,
    shard_images: Annotated[
        int | None, typer.Option(help="Images in a file  [default: 64 files, of 16 to 1000 images]")
    ] = None,
) -> None:
    """Copy images into the files that another library reads. A second call does nothing."""
    from loaderbench.images.convert import convert_dataset
    from loaderbench.images.manifest import resolve_dataset

    with _progress("preparing the data set") as progress:
        folder, _ = resolve_dataset(src, res, progress=progress)
    with _progress("converting images") as progress:
        try:
            made = convert_dataset(folder, to, out, shard_images=shard_images, progress=progress)
        except KeyboardInterrupt:
            typer.echo("what was converted is kept: the same command completes it", err=True)
            raise
    state = "was there" if made.was_there else "made"
    typer.echo(
        f"{made.folder}: {state}, {made.num_images} images in {made.num_files} files, {made.total_bytes:,} bytes"
    )
    if out is None:
        typer.echo("torchvision's ImageFolder takes that folder for a class: allow_empty=True there, or --out here")


@dataset_app.command("scan")
def dataset_scan(
    folder: Annotated[str, typer.Argument(help="Folder of images")],
    content: Annotated[bool, typer.Option(help="Look into each file")] = True,
    json_out: JsonOut = None,
) -> None:
    """Count images; their sizes, resolutions, file system and device; list broken files."""
    from loaderbench.images.scan import scan_dataset

    with _progress("scanning") as progress:
        scan = scan_dataset(folder, check_content=content, progress=progress)
    if json_out is not None:
        _write_json(scan.to_json(), json_out)
        return
    from loaderbench.reporting.terminal import print_scan

    print_scan(scan.to_json())


def _no_lists(options: dict[str, Any], command: str, *names: str) -> None:
    for name in names:
        if "," in (options[name] or ""):
            raise ConfigError(f"{command} takes one --{name}: use `loaderbench sweep` for a list")


def _measure(options: dict[str, Any], datasets: list[tuple[str | None, int | None]]) -> None:
    """What run and sweep share: plan, measure one case after the other, show, store."""
    from loaderbench.cases.study import expected_seconds, plan
    from loaderbench.recording.store import Store
    from loaderbench.reporting.live import Progress
    from loaderbench.studies.measure import Record, finished_records, measure_case

    cases = plan(_request(options, datasets))
    if options["dry_run"]:
        _show_plan(cases)
        return
    if options.get("save_profile") and not cases[0].device.startswith("cuda"):
        raise ConfigError("--save-profile takes the times of a real GPU: give --device cuda")
    store = Store(options["results"])
    store.check_writable()
    _check_json_target(options["json_out"])
    found = finished_records(store, cases) if options.get("resume") else {}
    left = [case for case in cases if case.key not in found]
    if found and not options["quiet"]:
        typer.echo(f"{len(found)} of {len(cases)} cases are finished and taken from {options['results']}", err=True)
    records: list[Record] = [found[case.key] for case in cases if case.key in found]
    ended: BaseException | None = None
    expected_s = [expected_seconds(case) for case in left]
    with Progress(len(left), quiet=options["quiet"], expected_s=expected_s) as view:

        def on_record(record: Record) -> None:
            records.append(record)
            view.finished(record)

        try:
            for case in left:
                measure_case(case, store, view.message, on_record)
            if options.get("verify"):
                records[:] = [_verified(record, store, view) for record in records]
        except (KeyboardInterrupt, SystemExit, LoaderbenchError) as stop:
            ended = stop
    _show(records, options, single=len(cases) == 1)
    if options.get("save_profile") and ended is None and records[0]["status"] == "ok":
        from loaderbench.devices import profile

        profile.save(profile.from_record(records[0], options["save_profile"]), options["save_profile"])
    _exit(records, len(cases), ended)


def _exit(records: list[dict[str, Any]], num_cases: int, ended: BaseException | None) -> None:
    """How a command that measured cases ends (cli.md, `Exit codes`)."""
    if isinstance(ended, LoaderbenchError):
        raise ended
    if ended is not None:
        code = ended.code if isinstance(ended, SystemExit) else 130
        raise _Interrupted(f"interrupted: {len(records)} of {num_cases} cases were finished and are kept", code)
    kinds = {record["failure"]["kind"] for record in records if record["status"] == "failed"}
    if kinds == {"ConfigError"} and len(records) == 1:
        raise typer.Exit(2)
    if kinds or all(record["status"] == "skipped" for record in records):
        raise typer.Exit(1)


def _show_plan(cases: list[Case], title: Callable[[Case], str] = attrgetter("title")) -> None:
    from loaderbench.cases.study import expected_seconds

    for case in cases:
        typer.echo(title(case))
    seconds = sum(expected_seconds(case) for case in cases)
    typer.echo(f"{len(cases)} case{'s' * (len(cases) != 1)}, at most {seconds / 60:.1f} minutes")


def _compare_data_sets(options: dict[str, Any]) -> None:
    """Check that both hold the same files, measure them in turn, show, store."""
    from loaderbench.cases.study import expected_seconds
    from loaderbench.images.same_files import HASHED_BYTES, check_same_files
    from loaderbench.recording.store import Store
    from loaderbench.reporting.live import Progress
    from loaderbench.studies.compare import Comparison, default_caches, parse_targets, plan_comparison, title

    _no_lists(options, "compare", "loader", "decoder", "model", "precision")
    targets = parse_targets(options["targets"])
    asked = [state.strip() for state in (options["cache"] or "").split(",") if state.strip()]
    request = _request({**options, "cache": "as-is"}, [(dataset, options["res"]) for _, dataset in targets])
    labels = [label for label, _ in targets]
    variants = [dataclasses.replace(one, name=label) for one, label in zip(request.variants, labels, strict=True)]
    request = dataclasses.replace(request, variants=variants)
    folders = [variant.path for variant in variants]
    most = request.max_bytes
    if not options["quiet"]:
        typer.echo(f"looking whether {' and '.join(labels)} hold the same files", err=True)
    same = check_same_files(folders, labels, HASHED_BYTES if most is None else min(HASHED_BYTES, most // 10))
    if most is not None:
        request = dataclasses.replace(request, max_bytes=most - same["hashed_bytes"])
    notes: list[str] = []
    if not asked:
        runs = 2 * options["rounds"] * len(request.workers or [0])
        each = None if request.max_bytes is None else request.max_bytes // max(1, runs)
        asked, notes = default_caches(folders, same["total_bytes"], each)
    cases = plan_comparison(request, asked, options["rounds"])
    for note in notes if not options["quiet"] else ():
        typer.echo(note, err=True)
    if options["dry_run"]:
        _show_plan(cases, title)
        return
    store = Store(options["results"])
    store.check_writable()
    comparison = Comparison(labels, cases, same, notes, store)
    expected_s = [expected_seconds(case) for case in cases]
    ended: BaseException | None = None
    with Progress(len(cases), quiet=options["quiet"], expected_s=expected_s, title=title) as view:
        try:
            comparison.measure(view.message, view.finished)
        except (KeyboardInterrupt, SystemExit, LoaderbenchError) as stop:
            ended = stop
    if comparison.records:
        _show_comparison(comparison.result(), options)
    _exit(comparison.records, len(cases), ended)


def _stored(store: Store, text: str) -> dict[str, Any]:
    """The record that `text` names. Raises ConfigError for a run that measured nothing."""
    from loaderbench.recording.store import CASE_FILE

    if Path(text).is_dir() and not (Path(text) / CASE_FILE).exists():
        raise ConfigError(f"{text} is a folder and no stored run: to measure two data sets name them, a={text} b=…")
    stored = store.find(text)
    if stored.record is None:
        raise ConfigError(f"{stored.run_id} has no result: {stored.problem}")
    if stored.record["throughput"] is None:
        reason = (stored.record["failure"] or {}).get("message") or "see `loaderbench show`"
        raise ConfigError(f"{stored.run_id} measured nothing that could be compared ({stored.status}): {reason}")
    return stored.record


def _compare_runs(given: list[str], options: dict[str, Any]) -> None:
    from loaderbench.analysis.comparison import compare_two
    from loaderbench.recording.store import Store

    store = Store(options["results"])
    a, b = (_stored(store, text) for text in given)
    _show_comparison({"labels": {"a": "A", "b": "B"}, **compare_two(a, b)}, options)


def _compare_with_baseline(baseline: str, run: str, options: dict[str, Any]) -> None:
    from loaderbench.analysis.comparison import compare_two, is_regression
    from loaderbench.recording.store import Store
    from loaderbench.reporting.comparison import print_regression
    from loaderbench.reporting.terminal import make_console

    if not 0 <= options["threshold"] < 1:
        raise ConfigError(f"--threshold is a fraction such as 0.05, not {options['threshold']:g}")
    store = Store(options["results"])
    before, now = _stored(store, baseline), _stored(store, run)
    if before["run_id"] == now["run_id"]:
        raise ConfigError(f"{run} is the baseline itself: measure a run to hold against it")
    found = compare_two(before, now, factor=[])
    regression = is_regression(found["ratio"], options["threshold"])
    result = {
        "labels": {"a": "baseline", "b": "run"},
        **found,
        "threshold": options["threshold"],
        "regression": regression,
    }
    _show_comparison(result, options)
    if not options["quiet"]:
        print_regression(result, make_console(stderr=options["json_out"] == "-"))
    if regression:
        raise typer.Exit(1)


def _show_comparison(result: dict[str, Any], options: dict[str, Any]) -> None:
    target = options["json_out"]
    if not options["quiet"]:
        from loaderbench.reporting.comparison import print_comparison
        from loaderbench.reporting.terminal import make_console

        print_comparison(result, make_console(stderr=target == "-"))
        if "comparison_id" in result:
            typer.echo(f"\nkept as {result['comparison_id']} in {options['results']}", err=target == "-")
    if target is not None:
        _write_json(result, target)


def _verified(record: dict[str, Any], store: Store, view: Progress) -> dict[str, Any]:
    """The record with its advice run, stored again."""
    from loaderbench.cases.case import Case
    from loaderbench.studies.verify import verify_record

    case = Case.from_json(record["case"])
    return verify_record(record, store, lambda line: view.message(case, "phase", line))[0]


def _request(options: dict[str, Any], datasets: list[tuple[str | None, int | None]]) -> StudyRequest:
    """The study that the flags ask for, over (data set, resolution) each; names, folders and the device resolved."""
    from loaderbench import plugins
    from loaderbench.cases.case import ARMS, MODES, PRECISIONS
    from loaderbench.cases.study import StudyRequest, Target, Variant, check_choice
    from loaderbench.devices.select import parse_device
    from loaderbench.images.manifest import resolve_dataset
    from loaderbench.machine import usable_cpus

    def listed(name: str) -> list[str]:
        return [part.strip() for part in str(options[name]).split(",")]

    loaders = listed("loader")
    for name in loaders:
        plugins.check_name("loaders", name)
    decoders: list[str | None] = [None]
    if options["decoder"] is not None:
        decoders = [plugins.ALIASES.get(name, name) for name in listed("decoder")]
    for decoder in decoders:
        if decoder is not None:
            plugins.check_name("decoders", decoder)
    check_choice("--mode", options["mode"], MODES)
    precisions: list[str | None] = [None] if options["precision"] is None else [*listed("precision")]
    batch_sizes = _whole_numbers("--batch-size", str(options["batch_size"]))
    targets: list[Target] = []
    for model, precision in itertools.product(listed("model"), precisions):
        if precision is not None:
            check_choice("--precision", precision, PRECISIONS)
        try:
            choice = parse_device(
                options["device"],
                model=model,
                mode=options["mode"],
                precision=precision,
                batch_size=min(batch_sizes),
            )
        except UnavailableError as error:
            raise ConfigError(str(error)) from error
        if choice.note and not targets and not options["quiet"]:
            typer.echo(choice.note, err=True)
        targets.append(Target(model, choice.precision, choice.device))
    variants = []
    for dataset, resolution in datasets:
        with _progress("preparing the data set") as progress:
            path, name = resolve_dataset(dataset, resolution, progress=progress)
        variants.append(Variant(path, name, resolution))
    workers = options["workers"]
    side = str(options["input_size"])
    return StudyRequest(
        variants=variants,
        loaders=loaders,
        workers=None if workers is None else _whole_numbers("--workers", workers),
        targets=targets,
        mode=options["mode"],
        loss_scale=options["loss_scale"],
        usable_cpus=usable_cpus(),
        decoders=decoders,
        output=options["output"],
        overlap=options["overlap"],
        batch_sizes=batch_sizes,
        prefetches=_whole_numbers("--prefetch", str(options["prefetch"])),
        buffer_ratios=_numbers("--buffer-ratio", options.get("buffer_ratio")),
        input_size=None if side == "full" else _whole_numbers("--input-size", side)[0],
        cache=options["cache"] or _default_cache([variant.path for variant in variants], loaders),
        arms=ARMS if options["arms"] == "all" else [arm.strip() for arm in options["arms"].split(",")],
        warmup=options["warmup"],
        steps=options["steps"],
        duration_s=options["duration"],
        ci_target=options["ci_target"],
        max_bytes=_num_bytes("--max-bytes", None if options["max_bytes"] is None else str(options["max_bytes"])),
        repeats=options["repeats"],
        kernels=options["kernels"],
        seed=options["seed"],
        max_failure_fraction=options["max_failures"],
        decode_scale=options.get("decode_scale"),
        io_threads=options.get("io_threads"),
        loader_options=_key_values("--loader-option", options["loader_option"]),
        decoder_options=_key_values("--decoder-option", options["decoder_option"]),
    )


def _num_bytes(option: str, text: str | None) -> int | None:
    """`20G` → 20,000,000,000."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKMGT]?)B?", text.strip())
    if match is None:
        raise ConfigError(f"{option} is a size such as 500M or 20G, not {text!r}")
    return int(float(match[1]) * 1000 ** ("", "K", "M", "G", "T").index(match[2].upper()))


def _default_cache(folders: list[str], loaders: list[str]) -> str:
    """`cold` where both eviction and the bytes that really moved can be checked, else `as-is`."""
    from loaderbench.cases.study import WITHOUT_COLD
    from loaderbench.running.cache import can_prove_cold
    from loaderbench.samplers.sources import StorageCounter

    if set(loaders) & WITHOUT_COLD:
        return "as-is"  # one state for all of a study
    for folder in folders:
        if StorageCounter(folder).reason is not None or not can_prove_cold(folder):
            return "as-is"
    return "cold"


def _whole_numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} takes whole numbers separated by commas, not '{text}'") from None


def _numbers(flag: str, text: str | None) -> list[float | None]:
    """[None] where the flag is not given."""
    if text is None:
        return [None]
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} takes numbers separated by commas, not '{text}'") from None


def _key_values(flag: str, texts: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in texts or []:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError(f"{flag} takes KEY=VALUE, not '{text}'")
        pairs[key] = value
    return pairs


def _show(records: list[dict[str, Any]], options: dict[str, Any], *, single: bool) -> None:
    if not records:
        return
    from loaderbench.analysis.study import summarize
    from loaderbench.recording.store import Store

    target = options["json_out"]
    loaders = [name.strip() for name in options["loader"].split(",")]
    # They were measured in an order drawn by chance.
    records = sorted(
        records,
        key=lambda one: (
            one["case"]["resolution"] or 0,
            loaders.index(one["case"]["loader"]),
            one["case"]["workers"],
            one["case"]["repeat"],
        ),
    )
    study = None if single else summarize(records)
    unstored: LoaderbenchError | None = None
    if study is not None:
        try:
            study["study_id"] = Store(options["results"]).write_study(study, records)
        except LoaderbenchError as error:  # what was measured is shown first
            unstored = error
    if not options["quiet"]:
        from loaderbench.reporting.study import print_study
        from loaderbench.reporting.terminal import make_console, print_run, print_table

        console = make_console(stderr=target == "-")
        if study is None:
            print_run(records[0], console)
        else:
            print_table(records, console)
            print_study(study, console)
    if target is not None:
        try:
            _write_json(records[0] if study is None else {"runs": records, "study": study}, target)
        except ConfigError as error:
            stored = ", ".join(record["run_id"] for record in records)
            raise ConfigError(f"{error}; the result is kept in {options['results']}: {stored}") from error
    if unstored is not None:
        raise unstored


def _show_finding(store: Store, name: str, json_out: str | None) -> bool:
    """Print the study or comparison whose id begins with `name`; False where there is none, or several."""
    studies = [one for one in store.studies() if one["study_id"].startswith(name)]
    comparisons = [one for one in store.comparisons() if one["comparison_id"].startswith(name)]
    if len(studies) + len(comparisons) != 1:
        return False
    if json_out is not None:
        _write_json((studies or comparisons)[0], json_out)
        return True
    by_id = {one.run_id: one.record for one in store.runs() if one.record is not None}
    if studies:
        from loaderbench.reporting.study import print_study
        from loaderbench.reporting.terminal import print_table

        print_table([by_id[run] for run in studies[0]["runs"] if run in by_id])
        print_study(studies[0])
    else:
        from loaderbench.reporting.comparison import print_comparison
        from loaderbench.reporting.report import with_records

        print_comparison(with_records(comparisons[0], by_id))
    return True


def _check_json_target(target: str | None) -> None:
    """Said before anything is measured rather than after."""
    if target is None or target == "-":
        return
    path = Path(target)
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {target}: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"cannot write {target}: it is a folder, or its place is read-only")


def _write_json(value: Any, target: str) -> None:
    text = json.dumps(value, indent=1, allow_nan=False)
    if target == "-":
        typer.echo(text)
        return
    try:
        Path(target).write_text(text + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}") from error


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows done of total on stderr: rewritten on a terminal, else one line at the start."""
    shown = False
    live = sys.stderr.isatty()

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if live:
            typer.echo(f"\r\033[K{what}: {done:,} of {total:,}", err=True, nl=False)
        elif not shown:
            typer.echo(f"{what}: {total:,}", err=True)
        shown = True

    yield progress
    if shown and live:
        typer.echo("\r\033[K", err=True, nl=False)


@contextlib.contextmanager
def _lines(*, quiet: bool) -> Iterator[Callable[[str, bool], None]]:
    """Lines on stderr. One that need not stay is replaced by the next on a terminal, and left out elsewhere."""
    live = sys.stderr.isatty()

    def say(line: str, keep: bool) -> None:
        if quiet or not (live or keep):
            return
        typer.echo(f"\r\033[K{line if keep else line[:118]}" if live else line, err=True, nl=keep)

    yield say
    if live and not quiet:
        typer.echo("\r\033[K", err=True, nl=False)


class _Interrupted(LoaderbenchError):
    """Ctrl-C or a signal, with what there is to say about it."""

    def __init__(self, message: str, exit_code: Any) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def main() -> None:
    """Entry point: turns errors into one line and the exit codes of cli.md."""
    message: object = None
    try:
        code: Any = app(standalone_mode=False)
    except typer.TyperException as error:
        code, message = error.exit_code, error.format_message()
    except LoaderbenchError as error:
        code, message = error.exit_code, error
    except SystemExit as stop:
        code = stop.code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:  # standard output is full, a file that no command expects to fail
        code, message = 1, ": ".join(str(part) for part in (error.filename, error.strerror or error) if part)
    if code in (130, 143, 129) and message is None:
        message = "interrupted"
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends already; one more must not change the exit code
    if message is not None:
        typer.echo(f"loaderbench: {message}", err=True)
    # An interrupt inside an exec(), as dataclasses call it, leaves a mark by which Python would end by SIGINT whatever
    # the exit code; the next exec() takes it away (pythonrun.c, unhandled_keyboard_interrupt).
    exec("")
    sys.exit(code if isinstance(code, int) else 0)

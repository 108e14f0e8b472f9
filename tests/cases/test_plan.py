"""Flags → cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import FIELDS, OPTIONS, Case, Subject
from loaderbench.cases.study import expected_seconds, read_options, read_study
from loaderbench.errors import ConfigError
from loaderbench.native import no_libjpeg, not_kept
from loaderbench.plugins import decoder_choice, installed_decoders, loader_choice
from loaderbench.studies import request
from loaderbench.studies.compare_plan import plan_rounds
from loaderbench.studies.request import find_data_sets

SUBJECTS = [Subject("/data/256", "data", 256), Subject("/data/512", "data", 512)]
ASKED = {"loader": ["serial", "multiprocess"], "workers": [1, 2, 4], "device": "cpu", "cache": "as-is"}


def plan(**changes: Any) -> list[Case]:
    """The cases of both subjects; what is not changed is as in ASKED."""
    return request.plan(read_options({**ASKED, **changes}), SUBJECTS, cpus=2)


def test_every_combination_once_and_serial_without_workers() -> None:
    cases = plan()
    assert {(one.subject.resolution, one.feed.loader, one.feed.workers) for one in cases} == {
        (side, *one) for side in (256, 512) for one in (("serial", 0), *(("multiprocess", n) for n in (1, 2, 4)))
    }
    assert len(cases) == 8
    more = plan(decoder=["pillow", "turbojpeg"], batch_size=[8, 64], prefetch=[1, 4])
    assert len({case.key for case in more}) == len(more) == 8 * 8


@pytest.mark.parametrize(
    ("asked", "seconds", "limited"),
    [
        ({}, 60.0, True),
        ({"duration": 15.0}, 15.0, True),
        ({"steps": 64}, 60.0, False),
        ({"steps": 64, "duration": 60.0}, 60.0, True),
    ],
)
def test_steps_are_limited_by_a_duration_that_was_given(asked: dict[str, Any], seconds: float, limited: bool) -> None:
    for case in plan(**asked):
        assert (case.effort.duration_s, case.effort.is_limited) == (seconds, limited)
        assert expected_seconds(case) == seconds + 10  # docs/method.md: what is promised


@pytest.mark.parametrize(
    ("asked", "ends_early"),
    [({}, True), ({"duration": 60.0}, False), ({"ci_target": 0.03}, False), ({"steps": 64}, False),
     ({"repeats": 2}, False), ({"workers": [1, 2]}, False)],
)  # fmt: skip
def test_a_single_case_of_which_nothing_was_asked_ends_once_it_is_decided(
    asked: dict[str, Any], ends_early: bool
) -> None:
    options = read_options({"loader": ["multiprocess"], "workers": [1], "device": "cpu", "cache": "as-is", **asked})
    cases = request.plan(options, SUBJECTS[:1], cpus=2)
    assert [case.effort.until_decided for case in cases] == [ends_early] * len(cases)


@pytest.mark.parametrize("asked", [{}, {"duration": 30.0}, {"steps": 64}])
def test_each_round_of_a_comparison_is_measured_until_its_rate_is_known(asked: dict[str, Any]) -> None:
    options = read_options({**ASKED, "loader": ["multiprocess"], "workers": [1], **asked})
    cases = plan_rounds(options, SUBJECTS[:1], 1)
    assert len(cases) == 1 and not cases[0].effort.until_decided


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "infer"), ("overlap", False), ("input_size", 96), ("output", "uint8"), ("decoder_option", {"a": "b"}),
        ("loader_option", {"a": "b"}), ("warmup", 3), ("steps", 5), ("duration", 7.0), ("max_bytes", 10**9),
        ("ci_target", 0.5), ("kernels", False), ("max_failures", 0.5), ("seed", 7), ("batch_size", 3), ("prefetch", 5),
        ("model", "resnet18"), ("precision", "bf16"), ("device", "emulated"), ("decoder", "turbojpeg"),
        ("loader", "multiprocess"), ("workers", 3),
    ],
)  # fmt: skip
def test_an_option_sets_the_field_that_declares_it(name: str, value: object) -> None:
    field = OPTIONS[name].field
    found = [getattr(getattr(case, FIELDS[field]), field) for case in plan(**{"loader": "multiprocess", name: value})]
    if name == "device":
        assert all(str(one).startswith("emulated") for one in found)
    else:
        assert found and all(one == value for one in found)


def test_arms_are_asked_for_by_name() -> None:
    assert {case.effort.arms for case in plan(arms=["free", "real"])} == {(Arm.REAL, Arm.FREE)}
    with pytest.raises(ConfigError, match="--arms must be all, or a list with real"):
        plan(arms=["free"])


def test_the_order_is_drawn_by_the_seed_and_anew_for_each_repeat() -> None:
    cases = plan(repeats=2)
    first, second = ([one for one in cases if one.effort.repeat == repeat] for repeat in (0, 1))
    assert cases == [*first, *second]

    def order(some: list[Case]) -> list[tuple[int | None, str, int]]:
        return [(one.subject.resolution, one.feed.loader, one.feed.workers) for one in some]

    assert order(first) != order(second) and sorted(map(str, order(first))) == sorted(map(str, order(second)))
    assert plan(repeats=2) == cases
    assert order(plan(seed=1)) != order(first)


def test_a_loader_that_decodes_for_itself_takes_no_part_in_the_list_of_decoders() -> None:
    both = {"loader": ["dali", "multiprocess"], "workers": 2, "decoder": ["pillow", "turbojpeg"]}
    found = [(one.feed.loader, one.feed.decoder) for one in plan(**both) if one.subject.resolution == 256]
    assert sorted(found, key=str) == [("dali", None), ("multiprocess", "pillow"), ("multiprocess", "turbojpeg")]
    with pytest.raises(ConfigError, match="decodes for itself"):
        plan(**{**both, "loader": "dali"})


def test_decode_scale_is_for_decoders_that_can_and_off_unless_asked_for() -> None:
    both = {"loader": "threaded", "workers": 2, "decoder": ["pillow", "libjpeg"]}
    for asked, expected in ((None, "off"), ("auto", "auto"), ("off", "off")):
        scales = {case.feed.decoder: case.feed.decode_scale for case in plan(**both, decode_scale=asked)}
        assert scales == {"pillow": None, "libjpeg": expected}
    with pytest.raises(ConfigError, match=r"needs a decoder that can scale: --decoder libjpeg, not pillow"):
        plan(loader="threaded", decoder="pillow", decode_scale="auto")
    with pytest.raises(ConfigError, match=r"not dali \(decodes for itself\)"):
        plan(loader="dali", decode_scale="auto")
    with pytest.raises(ConfigError, match="must be one of auto, off, not 'half'"):
        plan(**both, decode_scale="half")
    feeds = [case.feed for case in plan(loader="threaded", decoder="libjpeg", decoder_option="scale=auto")]
    assert {(feed.decode_scale, feed.all_decoder_options["scale"]) for feed in feeds} == {("auto", "auto")}
    with pytest.raises(ConfigError, match="not both"):
        plan(loader="threaded", decoder="libjpeg", decoder_option="scale=auto", decode_scale="off")


def test_io_threads_are_an_option_of_the_loaders_that_read_ahead() -> None:
    mixed = plan(loader=["serial", "threaded"], workers=2, io_threads=4)
    options = {case.feed.loader: case.feed.loader_options for case in mixed}
    assert options == {"serial": {}, "threaded": {"io_threads": "4"}}
    with pytest.raises(ConfigError, match="--io-threads is for --loader threaded"):
        plan(loader="serial", io_threads=4)
    with pytest.raises(ConfigError, match="--io-threads must be at least 0"):
        plan(loader="threaded", io_threads=-1)


def test_threads_decode_with_libjpeg_where_it_can_be_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "cc"
    tool.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CPATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    (tmp_path / "jpeglib.h").touch()
    assert no_libjpeg() is None
    assert loader_choice("threaded").decoder == installed_decoders()[0] == decoder_choice("libjpeg")
    assert loader_choice("multiprocess").decoder == decoder_choice("pillow")
    tool.unlink()
    assert no_libjpeg() is not None
    assert loader_choice("threaded").decoder == decoder_choice("turbojpeg")
    assert decoder_choice("libjpeg") not in installed_decoders()


def test_a_study_in_a_file_is_the_flags_it_names(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        "[study]\nres = [256, 512]\nloader = ['serial', 'threaded']\nworkers = [1, 2]\nduration = 5\nci-target = 0.1\n"
        "overlap = false\nloader_option = ['a=b']\nloss-scale = 128\narms = ['real', 'free']\n"
    )
    assert read_study(path) == {
        "res": (256, 512), "loader": ("serial", "threaded"), "workers": (1, 2), "duration": 5, "ci_target": 0.1,
        "overlap": False, "loader_option": {"a": "b"}, "loss_scale": "128", "arms": ("real", "free"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[study]\nworker = [1]\n", r"no option 'worker'.*workers"),
        ("loader = ['serial']\n", r"no table \[study\]"),
        ("[study]\nworkers = {a = 1}\n", "workers"),
        ("[study\n", "not valid TOML"),
        ("[study]\nsteps = '20'\n", "steps takes a whole number, not '20'"),
        ("[study]\noverlap = 'no'\n", "overlap takes true or false"),
        ("[study]\nloader_option = 'a'\n", "loader-option takes KEY=VALUE, not 'a'"),
        ("[study]\nloader_option = ['a=b', 'c']\n", "loader-option takes KEY=VALUE, not 'c'"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        read_study(path)
    assert "\n" not in str(caught.value)


def test_where_nothing_can_be_kept_the_next_decoder_takes_over_and_it_is_said_once(
    tmp_path: Path, small_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if no_libjpeg() is not None:
        pytest.skip("libjpeg cannot be built here anyway")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    chosen, notes = loader_choice("threaded").decoder, []
    options = read_options({"loader": ["threaded", "serial"], "workers": [1, 2], "device": "emulated"})
    subjects = find_data_sets(small_set / "96", options)
    request.plan(options, subjects, on_note=notes.append)
    assert chosen is not None and chosen.name == "turbojpeg"
    (note,) = [note for note in notes if "libjpeg" in note]
    assert "threaded decodes with turbojpeg" in note and "Not a directory; set XDG_CACHE_HOME" in note
    notes.clear()
    request.plan(options.changed(decoder="turbojpeg"), subjects, on_note=notes.append)
    assert not [note for note in notes if "libjpeg" in note], "the decoder was given"


def test_where_others_may_write_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert f"other users may write to {cache}" in str(not_kept("libjpeg"))


def test_what_was_built_before_is_used_although_nothing_more_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = tmp_path / "loaderbench" / "native"
    assert not_kept("libjpeg") is None
    (built / "libjpeg-0123.so").touch()
    monkeypatch.setattr("tempfile.NamedTemporaryFile", None)
    assert not_kept("libjpeg") is None

"""Profiles: times between, above and below measured batch sizes, their labels, and files that are wrong."""

import re
from dataclasses import replace

import pytest

from loaderbench.cases.case import Case, Feed, Step, Subject
from loaderbench.devices.profile import LABELS, from_record, load, named, save, shipped_names, split_factor
from loaderbench.errors import ConfigError
from loaderbench.machine import environment
from loaderbench.recording.record import DeviceFigures, Estimate, RunRecord, TransferFigures
from tests.devices.profile_text import profile_text


@pytest.mark.parametrize(
    ("name", "num_samples", "milliseconds", "label"),
    [
        ("h200-resnet50-train-fp32", 64, 32.0, "measured"),
        ("h200-resnet50-train-fp32", 32, 16.0, "extrapolated"),  # one point: in proportion
        ("h200-resnet50-train-fp32", 128, 64.0, "extrapolated"),
        ("h200-resnet50-train-amp-bf16", 64, 16.2, "measured"),
        ("h200-resnet50-train-amp-bf16", 256, 53.4, "measured"),
        ("h200-resnet50-train-amp-bf16", 160, 34.8, "interpolated"),  # half way
        ("h200-resnet50-train-amp-bf16", 512, 106.8, "extrapolated"),  # above: in proportion
        ("h200-resnet50-infer-amp-bf16", 64, 4.7, "measured"),
        ("h200-resnet50-infer-amp-bf16", 256, 16.3, "measured"),
        ("h200-resnet50-infer-amp-bf16", 16, 1.8, "extrapolated"),  # below: 4.7 − 48 × 11.6 / 192
    ],
)
def test_step_time_of_a_batch_size(name, num_samples, milliseconds, label):
    duration = named(name).duration_ms(num_samples)
    assert duration.value == pytest.approx(milliseconds)
    assert duration.label == label


def test_larger_images_take_longer_by_their_pixels():
    duration = named("h200-resnet50-train-fp32").duration_ms(64, input_size=448)
    assert duration.value == pytest.approx(4 * 32.0)
    assert duration.label == "extrapolated"


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_profiles_label_every_constant_and_are_named_by_what_they_hold(name):
    profile = named(name)
    published = any(step.duration_ms.label == "published" for step in profile.steps)
    assert published == (profile.issue_ms is None) == (profile.origin == "published, not measured here")
    constants = [profile.tail_ms, profile.link_bytes_per_s, *([profile.issue_ms] if profile.issue_ms else [])]
    for step in profile.steps:
        constants += [step.duration_ms, step.busy_ms]
    assert all(constant.label in LABELS and len(constant.source) > 10 for constant in constants)
    assert name == f"{profile.machine}-{profile.model}-{profile.mode}-{profile.precision}"


@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.parametrize("num_samples", [1, 2, 7, 64, 65, 200, 256, 1000])
def test_busy_time_never_exceeds_the_step(name, num_samples):
    profile = named(name)
    assert 0 < profile.busy_ms(num_samples).value <= profile.duration_ms(num_samples).value


def test_a_step_is_never_shorter_than_the_host_takes_to_issue_it():
    # given 7.4 ms to issue a step, which the device works off in 4.0 ms at batch 1 and in 16.2 ms at batch 64
    profile = named("h200-resnet50-train-amp-bf16")
    assert (profile.period_ms(1).value, profile.period_ms(1).label) == (7.4, "assumed")
    assert "issue a step" in profile.period_ms(1).source
    assert profile.period_ms(64) == profile.duration_ms(64) and profile.largest_batch == 256
    assert profile.period_ms(64, 448).value == pytest.approx(4 * 16.2)


def test_an_unknown_profile_names_the_shipped_ones():
    with pytest.raises(
        ConfigError, match=r"no device profile 'h300'; there are profiles of a100, h100, h200, .*doctor"
    ):
        named("h300")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('mode = "train"', "", "lacks the entry 'mode'"),
        ("value = 32.0", 'value = "fast"', "steps.duration_ms must be a number from 1e-06 to 8.64e+07, not fast"),
        ("value = 32.0", "value = inf", "not inf"),
        ("value = 32.0", "value = nan", "not nan"),
        ("value = 32.0", "value = 1e300", "steps.duration_ms must be a number"),
        ("value = 32.0", "value = true", "not True"),
        ("value = 32.0", f"value = {'9' * 400}", "steps.duration_ms must be a number"),
        ("value = 32.0", f"value = {'9' * 5000}", "is not valid TOML: it holds a number of more than 4,300 digits"),
        ("value = 32.0", f"value = {'[' * 5000}", "is not valid TOML: it is nested too deeply"),
        ("value = 7.4", "value = inf", "issue_ms must be a number from 0 to 8.64e+07, not inf"),
        ("issue_ms", "isue_ms", "unknown entry 'isue_ms'; did you mean issue_ms"),
        ("duration_ms", "duraton_ms", "steps: unknown entry 'duraton_ms'; did you mean duration_ms"),
        ("source =", "sauce =", "unknown entry 'sauce'; did you mean source"),
        (
            "batch_size = 64",
            "batch_size = 1e3",
            "a whole number from 1 to 1,000,000,000, not 1000.0",
        ),
        ("input_size = 224", "input_size = true", "input_size must be a whole number from 1 to 100,000, not True"),
        ('mode = "train"', "mode = 1", "mode must be a text, not 1"),
        ("value = 32.0", "value = 3.0", "busy_ms ≤ duration_ms"),
        ('"measured"', '"guessed"', "the label 'guessed'"),
        ("batch_size = 64", "batch_size = 0", "batch_size must be a whole number from 1"),
        ("value = 50e9", "value = 0", "link_bytes_per_s"),
        ("[[steps]]", "[[steps", "not valid TOML"),
        ("[[steps]]", "[steps]", "device profile"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_says_what_is_wrong(tmp_path, old, new, complaint):
    text = profile_text()
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the device profile"):
        named(str(tmp_path / "none.toml"))


def test_a_published_profile_says_where_its_figures_were_read():
    for name in shipped_names():
        if named(name).issue_ms is None:
            lines = profile_text(name).splitlines()
            comment = " ".join(line[2:] for line in lines if line.startswith("#"))
            where = r"github\.com/[\w-]+/[\w-]+, .+ at commit [0-9a-f]{40} \(20\d\d-\d\d-\d\d\)"
            assert re.search(where, comment), name
            assert "Published, not measured here" in comment


def test_a_profile_that_does_not_tell_the_issue_time_has_the_devices_own_period(tmp_path):
    profile = named("t4-resnet50-infer-fp32")
    assert profile.issue_ms is None
    assert (profile.period_ms(8).value, profile.period_ms(8).label) == (22.41, "published")
    assert (profile.busy_ms(8).value, profile.busy_ms(8).label) == (22.41, "assumed")
    assert profile.period_ms(12).label == "interpolated"
    path = tmp_path / "kept.toml"
    save(profile, path)
    assert replace(load(path), name=profile.name) == profile


def test_a_factor_makes_the_device_faster_and_not_its_host_or_link():
    slow, fast = named("h200-resnet50-train-amp-bf16"), named("h200-resnet50-train-amp-bf16x2")
    for size in (1, 64, 100, 300):
        assert fast.duration_ms(size).value == pytest.approx(slow.duration_ms(size).value / 2)
        assert fast.busy_ms(size).value == pytest.approx(slow.busy_ms(size).value / 2)
    assert fast.issue_ms == slow.issue_ms and fast.link_bytes_per_s == slow.link_bytes_per_s
    assert fast.duration_ms(64).label == "assumed" and "the factor 2" in fast.duration_ms(64).source
    assert fast.name == "h200-resnet50-train-amp-bf16x2" and "2 times its speed" in fast.device_name
    assert named("h200-resnet50-train-amp-bf16x1") == slow


def test_a_name_may_have_an_x_and_digits_of_its_own(tmp_path):
    assert split_factor("rtx4090", {"rtx4090"}) == ("rtx4090", 1.0)
    assert split_factor("rtx4090x0.5", {"rtx4090"}) == ("rtx4090", 0.5)
    assert split_factor("rtx6000", {"rtx4090"}) == ("rtx6000", 1.0)  # refused later, as it was written
    assert split_factor("/x2/mine.toml", set()) == ("/x2/mine.toml", 1.0)
    assert split_factor("/x2/mine.tomlx3", set()) == ("/x2/mine.toml", 3.0)
    path = tmp_path / "x9.toml"
    path.write_text(profile_text())
    assert named(f"{path}x0.5").duration_ms(64).value == 64.0


@pytest.mark.parametrize("factor", ["0", "-1", "fast", "", "nan", "inf", "1e9"])
def test_a_factor_that_is_none_is_refused(factor):
    with pytest.raises(ConfigError, match=r"the number after the last x must be a speed factor from 0.001 to 1000"):
        named(f"h200-resnet50-train-fp32x{factor}")


def device_figures(kind, name):
    return DeviceFigures(
        kind=kind, name=name, emulated=False, overlap=True, memory_bytes=None, details={}, busy_fraction=None,
        kernel_gap=None, busy_witnesses=None, memory_peak_bytes=None, nvml=None, clock_drift_ns=None,
        held_issue_s=0.006,
    )  # fmt: skip


def record(**case):
    """What a run on a GPU leaves: 4,000 images/s at batch 64, 6 ms to issue a step, 55 GB/s."""
    asked = Case(
        Subject("tree", "tree", 256),
        Feed("serial", None, 0),
        Step("resnet50", "train", "amp-bf16", "cuda:0", batch_size=64, input_size=224),
    )
    return RunRecord(
        schema=2, rules_version=1, run_id="r", status="ok", failure=None, case=asked.changed(**case), wall_s=1.0,
        environment=replace(environment(), packages={"loaderbench": "1.0"}), started_at="2026-01-02T03:04:05+00:00",
        capacities={"device": Estimate(4_000.0, None, None, "samples/s", 1, "a test")},
        transfer=TransferFigures(
            overlap=True, bytes_per_step=1, copy_s=0.0, exposed_s=0.0, hidden_s=0.0, link_bytes_per_s=1.0,
            ceiling_bytes_per_s=55e9,
        ),
        device=device_figures("cuda", "NVIDIA Test"),
    )  # fmt: skip


def test_a_run_on_a_gpu_becomes_a_profile_and_a_second_one_adds_its_batch_size(tmp_path):
    path = tmp_path / "test-resnet50.toml"
    save(from_record(record(), path), path)
    kept = named(str(path))
    assert kept.duration_ms(64).value == pytest.approx(16.0) and kept.duration_ms(64).label == "measured"
    assert (kept.issue_ms.value, kept.link_bytes_per_s.value) == (pytest.approx(6.0), 55e9)
    assert "2026-01-02" in kept.link_bytes_per_s.source and kept.machine == "test"

    save(from_record(record(batch_size=256), path), path)
    assert [step.batch_size for step in load(path).steps] == [64, 256]
    assert load(path).duration_ms(256).value == pytest.approx(64.0)

    with pytest.raises(ConfigError, match="is the profile of NVIDIA Test resnet50 train amp-bf16"):
        from_record(record(mode="infer"), path)


def test_only_a_real_gpu_gives_a_profile(tmp_path):
    emulated = replace(record(), device=device_figures("emulated", "emulated"))
    with pytest.raises(ConfigError, match="--device cuda"):
        from_record(emulated, tmp_path / "x.toml")
    with pytest.raises(ConfigError, match="--arms all"):
        from_record(replace(record(), transfer=None), tmp_path / "x.toml")
    with pytest.raises(ConfigError, match="--res N"):
        from_record(record(input_size=None, resolution=None), tmp_path / "x.toml")

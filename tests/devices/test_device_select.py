"""From what the user wrote to the device that is opened."""

import subprocess
import sys

import pytest

from loaderbench.cases.case import Step
from loaderbench.devices import select
from loaderbench.devices.select import num_visible_gpus, nvml_ordinal, open_device, parse_device
from loaderbench.errors import ConfigError, UnavailableError
from tests.devices.profile_text import profile_text


def parse(text, model="resnet50", mode="train", precision=None, batch_size=64):
    return parse_device(text, model=model, mode=mode, precision=precision, batch_size=batch_size)


def step(device, model="resnet50"):
    return Step(model, "train", "fp32", device, batch_size=64, input_size=224)


@pytest.mark.parametrize(
    ("text", "mode", "precision", "device", "resolved"),
    [
        ("cpu", "train", None, "cpu", "fp32"),
        ("cpu", "train", "bf16", "cpu", "bf16"),
        ("emulated", "train", None, "emulated:h200-resnet50-train-amp-bf16", "amp-bf16"),
        ("emulated", "infer", None, "emulated:h200-resnet50-infer-amp-bf16", "amp-bf16"),
        ("emulated", "train", "fp32", "emulated:h200-resnet50-train-fp32", "fp32"),
        ("emulated:h200", "train", "fp32", "emulated:h200-resnet50-train-fp32", "fp32"),
        ("emulated:h200-resnet50-train-fp32", "train", None, "emulated:h200-resnet50-train-fp32", "fp32"),
        ("emulated:h200x0.5", "train", "fp32", "emulated:h200-resnet50-train-fp32x0.5", "fp32"),
        ("emulated:h200-resnet50-train-fp32x2.0", "train", None, "emulated:h200-resnet50-train-fp32x2", "fp32"),
        ("emulated:h200x1", "train", "fp32", "emulated:h200-resnet50-train-fp32", "fp32"),
        ("emulated:rtx4090x2", "infer", None, "emulated:rtx4090-resnet50-infer-amp-fp16x2", "amp-fp16"),
        ("cpu:1", "train", None, "cpu:1", "fp32"),
        ("cpu:02", "train", None, "cpu:2", "fp32"),
        ("xpu", "train", None, "xpu:0", "fp32"),
        ("xpu:1", "train", "bf16", "xpu:1", "bf16"),
    ],
)
def test_resolves(monkeypatch, text, mode, precision, device, resolved):
    monkeypatch.setattr(select, "usable_cpus", lambda: 2)
    monkeypatch.setattr(select, "has_intel_gpu", lambda: True)
    choice = parse(text, mode=mode, precision=precision)
    assert (choice.device, choice.precision, choice.note) == (device, resolved, None)


def test_a_resolved_text_resolves_to_itself():
    choice = parse("emulated", precision="fp32")
    assert parse(choice.device, precision=choice.precision) == choice


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(select, "num_visible_gpus", lambda: 2)
    assert parse("auto").device == "cuda:0"
    assert parse("auto").precision == "amp-bf16"
    assert parse("cuda:1").device == "cuda:1"
    with pytest.raises(UnavailableError, match="there is no GPU 2: 2 found"):
        parse("cuda:2")


def test_auto_without_a_gpu_emulates_one_and_says_so(monkeypatch):
    monkeypatch.setattr(select, "num_visible_gpus", lambda: 0)
    choice = parse("auto")
    assert choice.device == "emulated:h200-resnet50-train-amp-bf16"
    assert "emulated H200" in choice.note
    with pytest.raises(UnavailableError, match="no NVIDIA GPU here"):
        parse("cuda")


@pytest.mark.parametrize(
    ("text", "changes", "complaint"),
    [
        (
            "emulated",
            {"model": "vgg16"},
            "no emulated profile of h200 for vgg16 train amp-bf16; h200 has infer amp-bf16 (resnet50), train amp-bf16 "
            "(resnet50), train fp32 (resnet50); vgg16 has a100 infer pure-fp16, rtx2080ti infer fp32, "
            "rtx4090 infer amp-fp16; use your own times with --device emulated:FILE.toml; use --device cpu",
        ),
        ("emulated", {"model": "alexnet"}, "; no machine has alexnet; "),
        (
            "emulated:a100",
            {"mode": "infer"},
            "of a100 for resnet50 infer amp-bf16; it has amp-fp16, pure-fp16, tf32: use --precision amp-fp16",
        ),
        ("emulated:h300", {}, "no device profile 'h300'; there are profiles of a100, h100, h200"),
        ("emulated:rtx6000", {}, "no device profile 'rtx6000'"),
        ("emulated:h200x0", {}, "emulated:h200x0: the number after the last x must be a speed factor"),
        ("emulated:h200x-1", {}, "from 0.001 to 1000: h200x2 is twice as fast"),
        ("emulated:h200-resnet50-train-fp32", {"mode": "infer"}, "is for --model resnet50 --mode train"),
        ("emulated:h200-resnet50-train-fp32", {"precision": "bf16"}, "--precision fp32, not resnet50 train bf16"),
        ("tpu", {}, "unknown device 'tpu'"),
        (
            "cpu:0",
            {},
            "unknown device 'cpu:0': give 1 to 2 threads, the usable CPUs here; or use cpu for",
        ),
        ("cpu:99", {}, "give 1 to 2 threads, the usable CPUs here"),
        ("cpu:-1", {}, "unknown device 'cpu:-1'"),
        ("cpu:all", {}, "unknown device 'cpu:all'"),
        ("xpu:one", {}, "use xpu or xpu:N with a number"),
        ("cuda:one", {}, "cuda:N with a number"),
        ("cpu", {"batch_size": 0}, "--batch-size must be 1 or more"),
    ],
)
def test_refuses_in_one_line(monkeypatch, text, changes, complaint):
    monkeypatch.setattr(select, "usable_cpus", lambda: 2)
    with pytest.raises(ConfigError) as caught:
        parse(text, **changes)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_users_own_profile_file_is_kept_by_its_absolute_path(tmp_path, monkeypatch):
    text = profile_text()
    (tmp_path / "mine.toml").write_text(text.replace('model = "resnet50"', 'model = "vgg16"'))
    monkeypatch.chdir(tmp_path)
    choice = parse("emulated:mine.toml", model="vgg16")
    assert choice.device == f"emulated:{tmp_path / 'mine.toml'}"
    assert open_device(step(choice.device, model="vgg16"), 224).describe().details["model"] == "vgg16"


def test_an_intel_gpu_is_seen_by_its_vendor(tmp_path):
    with pytest.raises(UnavailableError, match="no Intel GPU here"):
        parse("xpu")
    for name, vendor in (("renderD128", "0x10de"), ("renderD129", "0x8086")):
        assert not select.has_intel_gpu(str(tmp_path))
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device" / "vendor").write_text(f"{vendor}\n")
    assert select.has_intel_gpu(str(tmp_path))


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 3), ("", 0), ("-1", 0), ("0", 1), ("2,0", 2), ("0,7,1", 1), ("GPU-5c1e,MIG-77", 2), (" 1 , 2", 2)],
)
def test_gpus_are_counted_as_cuda_would(tmp_path, monkeypatch, visible, count):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert num_visible_gpus(str(tmp_path)) == count


def test_no_driver_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert num_visible_gpus(str(tmp_path)) == 0


def test_opens_what_the_case_names():
    assert open_device(step("cpu"), 224).describe().kind == "cpu"
    one = open_device(step("cpu:1"), 224)
    assert one.describe().details["num_threads"] == 1 and one.name.endswith(", 1 thread")
    one.close()
    twice = open_device(step("emulated:h200-resnet50-train-fp32x2"), 448)
    assert twice.describe().details["constants"]["step_duration_ms"]["value"] == 64.0
    emulated = open_device(step("emulated:h200-resnet50-train-fp32"), 448)
    assert emulated.describe().details["constants"]["step_duration_ms"]["value"] == 128.0
    with pytest.raises(ConfigError, match="unknown device"):
        open_device(step("tpu"), 224)


def test_a_choice_tells_what_its_device_will_be_like(monkeypatch):
    monkeypatch.setattr(select, "num_visible_gpus", lambda: 1)

    def traits(text):
        told = parse(text).traits
        return told.computes, told.pins_memory, told.on_host_cpus

    assert traits("cpu") == (True, False, True)
    assert traits("cuda") == (True, True, False)
    assert traits("emulated") == (False, False, False)
    for text in ("cpu", "emulated"):
        choice = parse(text)
        opened = open_device(step(choice.device), 224)
        facts = opened.describe()
        told = (opened.torch_device is not None, opened.pins_memory, facts.on_host_cpus)
        assert told == traits(text)
        assert (facts.emulated, facts.copies) == (not choice.traits.computes, opened.copies)


def test_nvml_is_told_cudas_number():
    names = ("cuda", "cuda:3", "cpu", "emulated:h200")
    assert [nvml_ordinal(name) for name in names] == [0, 3, None, None]


def test_choosing_and_emulating_a_device_does_not_import_torch():
    program = (
        "import sys; from loaderbench.devices.select import parse_device; import loaderbench.workloads; "
        "parse_device('emulated', model='resnet50', mode='train', precision=None, batch_size=64); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

"""Real steps of torchvision's models, on the CPU with tiny images; on a GPU where there is one."""

import math
import sys
from types import SimpleNamespace

import pytest

from loaderbench.cases.case import PRECISIONS, Step
from loaderbench.devices.select import num_visible_gpus, open_device
from loaderbench.errors import ConfigError, OutOfMemory, UnavailableError
from loaderbench.running.memory_trace import trace_step
from loaderbench.workloads import build_workload, known, training
from tests.thinned import thinned

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(num_visible_gpus() == 0, reason="no NVIDIA GPU (or not asked for: -m gpu)"),
]


def build(seed=0, num_classes=1000, **changes):
    fields = {
        "batch_size": 4,
        "model": "resnet18",
        "mode": "train",
        "precision": "fp32",
        "device": "cpu",
        "input_size": 32,
    }
    step = Step(**{**fields, **changes})
    device = open_device(step, step.input_size)
    return build_workload(step, device, image_size=step.input_size, seed=seed, num_classes=num_classes)


@pytest.mark.parametrize("precision", thinned(["fp32", "bf16", "amp-bf16", "pure-bf16"], 2))
def test_training_lowers_the_loss(precision):
    # given one batch and a fresh model, whose loss is near ln(1000)
    workload = build(precision=precision)
    inputs, targets = workload.example("float32")
    # when it is trained on for a few steps
    losses = []
    for _ in range(6):
        workload.step(inputs, targets)
        losses.append(float(workload.last_output))
    # then it learns the batch by heart
    assert losses[0] == pytest.approx(math.log(1000), abs=1)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-bf16", "pure-bf16"])
def test_inference_gives_logits_and_keeps_the_weights(precision):
    workload = build(mode="infer", precision=precision)
    inputs, targets = workload.example("float32")
    workload.step(inputs, targets)
    first = workload.last_output
    workload.step(inputs, targets)
    assert first.shape == (4, 1000)
    assert bool((first == workload.last_output).all())
    assert not first.requires_grad


def test_uint8_images_are_normalized_on_the_device_as_the_loader_does_it():
    import torch

    # given the same pixels as bytes and as the loader's normalized floats
    workload = build(mode="infer")
    pixels, targets = workload.example("uint8")
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    floats = (pixels.float() / 255 - mean) / std
    # when both go through the model
    workload.step(pixels, targets)
    from_pixels = workload.last_output
    workload.step(floats, targets)
    # then the logits agree
    torch.testing.assert_close(from_pixels, workload.last_output, rtol=1e-3, atol=1e-4)


def test_the_seed_decides_the_weights():
    outputs = []
    for seed in (1, 1, 2):
        workload = build(mode="infer", seed=seed)
        inputs, targets = build(mode="infer", seed=0).example("float32")
        workload.step(inputs, targets)
        outputs.append(workload.last_output)
    assert bool((outputs[0] == outputs[1]).all())
    assert not bool((outputs[0] == outputs[2]).all())


def test_building_leaves_the_callers_random_numbers_alone():
    import torch

    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    build().example("uint8")
    assert bool((torch.rand(4) == expected).all())


@pytest.mark.parametrize(
    ("model", "input_size"),
    [
        ("googlenet", 64),
        ("squeezenet1_1", 64),
        ("mobilenet_v3_small", 64),
        ("densenet121", 64),
        ("resnext50_32x4d", 64),
        ("regnet_y_400mf", 64),
        ("efficientnet_b0", 64),
        pytest.param("vit_b_32", 224, marks=pytest.mark.slow),
    ],
)
def test_every_family_trains(model, input_size):
    workload = build(model=model, input_size=input_size, batch_size=2)
    workload.step(*workload.example("uint8"))
    assert math.isfinite(float(workload.last_output))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "input_size"), [("inception_v3", 299), ("vgg11", 64), ("convnext_tiny", 64)])
def test_every_heavy_family_trains(model, input_size):
    workload = build(model=model, input_size=input_size, batch_size=2)
    workload.step(*workload.example("uint8"))
    assert math.isfinite(float(workload.last_output))


def test_auxiliary_classifiers_are_part_of_the_training_loss_alone():
    # given googlenet, whose two auxiliary classifiers count 0.3 each
    workload = build(model="googlenet", batch_size=2)
    workload.step(*workload.example("float32"))
    # then the first loss is about 1.6 times that of one classifier over 1,000 classes
    assert float(workload.last_output) == pytest.approx(1.6 * math.log(1000), rel=0.15)
    inference = build(model="googlenet", mode="infer", batch_size=2)
    inference.step(*inference.example("float32"))
    assert inference.last_output.shape == (2, 1000)


@pytest.mark.parametrize(
    ("changes", "error", "complaint"),
    [
        ({"model": "resnet5"}, ConfigError, "unknown model 'resnet5'; close names: resnet50"),
        ({"model": "inception_v3", "input_size": 224}, ConfigError, "--input-size 299"),
        ({"model": "vit_b_16", "input_size": 256}, ConfigError, "--input-size 224"),
        ({"model": "alexnet", "input_size": 32}, ConfigError, "alexnet cannot train"),
        ({"input_size": None}, ConfigError, "--res N"),
        ({"precision": "tf32"}, UnavailableError, "tensor cores"),
        ({"precision": "amp-fp16"}, UnavailableError, "use fp32, bf16, pure-bf16, amp-bf16"),
        ({"precision": "fp8"}, ConfigError, "unknown precision 'fp8'"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line_before_the_first_step(changes, error, complaint):
    with pytest.raises(error) as caught:
        build(**changes)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_models_that_its_sources_name_are_those_that_torchvision_has():
    import torchvision

    assert known.torchvision_models() == set(torchvision.models.list_models(module=torchvision.models))


def test_without_its_sources_a_name_is_left_to_torchvision(monkeypatch):
    monkeypatch.setattr(known.importlib.util, "find_spec", lambda name: None)
    known.torchvision_models.cache_clear()
    assert known.torchvision_models() == frozenset()
    known.check_torchvision("no_such_model", None)
    known.torchvision_models.cache_clear()


def test_a_batch_that_does_not_fit_fails_the_case_and_says_so():
    import torch

    # given a batch of more bytes than there are addresses
    workload = build(mode="infer")
    inputs = torch.zeros(1, 3, 64, 64).expand(2**40, 3, 64, 64)
    # when it is run
    with pytest.raises(OutOfMemory) as caught:
        workload.step(inputs, None)
    # then the message names the case and what to change
    assert "batch 4 of resnet18 fp32" in str(caught.value)
    assert "try a smaller --batch-size" in str(caught.value)


def test_other_errors_stay_what_they_are():
    import torch

    workload = build(mode="infer")
    with pytest.raises(RuntimeError, match="channels"):
        workload.step(torch.zeros(2, 5, 64, 64), None)


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_model_that_cannot_take_channels_last_is_told_what_to_call(mode, monkeypatch):
    import torch

    class Viewing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.maps, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4 * 30 * 30, 5)

        def forward(self, images):
            return self.head(self.maps(images).view(len(images), -1))

    monkeypatch.setitem(sys.modules, "made_up_models", SimpleNamespace(viewing=Viewing))
    workload = build(model="made_up_models:viewing", mode=mode, num_classes=1)
    with pytest.raises(ConfigError, match=r"^made_up_models:viewing calls view\(\) .* call reshape\(\) or flatten\(\)"):
        workload.step(*workload.example("float32"))
    with pytest.raises(ConfigError, match="call reshape"):  # on fake tensors PyTorch's words are others
        trace_step(Step("made_up_models:viewing", mode, "fp32", "cpu", 4, 32), 0, on_accelerator=True)


def test_more_classes_than_imagenets_get_their_outputs():
    for num_classes, num_outputs in ((10, 1000), (1200, 1200)):
        workload = build(num_classes=num_classes, batch_size=2, model="squeezenet1_1", mode="infer")
        workload.step(*workload.example("uint8"))
        assert workload.last_output.shape == (2, num_outputs)


def test_facts():
    facts = build().describe()
    assert facts.num_parameters == 11_689_512  # torchvision's table for resnet18
    assert facts.optimizer.momentum == 0.9
    assert facts.details["memory_format"] == "channels_last"
    assert (facts.model, facts.mode, facts.precision, facts.emulated) == ("resnet18", "train", "fp32", False)
    assert build(mode="infer").describe().optimizer is None


def test_what_does_not_fit_when_the_model_is_built_says_so(monkeypatch):
    def refuse(model, dtype, *, pure):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

    monkeypatch.setattr(training, "_convert", refuse)
    with pytest.raises(OutOfMemory) as caught:
        build()
    assert str(caught.value) == (
        "does not fit: batch 4 of resnet18 fp32 needs more than this machine's free memory; try a smaller --batch-size"
    )


@pytest.mark.parametrize(
    ("precision", "weights", "batch_norm"),
    [
        ("fp32", "float32", "float32"),
        ("amp-bf16", "float32", "float32"),  # mixed, 32-bit storage
        ("bf16", "bfloat16", "float32"),  # mixed, 16-bit storage
        ("pure-bf16", "bfloat16", "bfloat16"),
    ],
)
def test_each_mode_stores_what_its_name_says(precision, weights, batch_norm):
    workload = build(precision=precision)
    workload.step(*workload.example("float32"))
    model, state = workload._model, workload._optimizer.state
    for parameter, kind in ((model.conv1.weight, weights), (model.bn1.weight, batch_norm)):
        stored = (parameter, parameter.grad, state[parameter]["momentum_buffer"])
        assert {str(tensor.dtype) for tensor in stored} == {f"torch.{kind}"}
    assert str(workload.last_output.dtype) == ("torch.bfloat16" if precision == "pure-bf16" else "torch.float32")


def weights_after(workload, num_steps):
    import torch

    inputs, targets = workload.example("float32")
    for _ in range(num_steps):
        workload.step(inputs, targets)
    return torch.cat([parameter.detach().flatten() for parameter in workload._model.parameters()])


def test_a_static_scale_leaves_the_weights_path_as_it_was():
    import torch

    # given fp32, where multiplying by a power of two rounds nothing
    expected = weights_after(build(), 3)
    # then not a bit differs with such a scale
    assert bool((weights_after(build(loss_scale="1024"), 3) == expected).all())
    # and with another only the last digits do (of the first step: training amplifies what is left)
    torch.testing.assert_close(weights_after(build(loss_scale="1000"), 1), weights_after(build(), 1))


@pytest.mark.slow
def test_a_dynamic_scale_skips_each_step_that_overflows(monkeypatch):
    import torch

    # given steep gradients, and a scale with which they overflow fp32 (its largest number is just below 2**128)
    monkeypatch.setattr(training, "INITIAL_DYNAMIC_SCALE", 2.0**127)
    workload, plain = build(loss_scale="dynamic"), build()
    for built in (workload, plain):
        built._model.fc.weight.data.mul_(1024)
    start = weights_after(workload, 0)
    inputs, targets = workload.example("float32")
    # when steps are run until one does not overflow
    num_overflows = 0
    while not math.isfinite(float(workload.observed_step(inputs, targets)[1])):
        num_overflows += 1
        assert bool((weights_after(workload, 0) == start).all()), "the step was skipped"
        assert num_overflows < 64
    # then each of those halved the scale, and the first real step is that of plain training
    assert num_overflows >= 1
    assert workload._scaler.get_scale() == 2.0 ** (127 - num_overflows)
    torch.testing.assert_close(weights_after(workload, 0), weights_after(plain, 1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss_scale", [None, "1024", "dynamic"])
def test_an_observed_step_tells_loss_and_gradient_norm_and_is_the_same_step(loss_scale):
    import torch

    plain, observed = build(), build(loss_scale=loss_scale)
    inputs, targets = plain.example("float32")
    plain.step(inputs, targets)
    loss, norm = observed.observed_step(inputs, targets).tolist()
    squares = sum(float((parameter.grad.double() ** 2).sum()) for parameter in plain._model.parameters())
    assert loss == float(plain.last_output)
    assert norm == pytest.approx(math.sqrt(squares), rel=1e-4)
    torch.testing.assert_close(weights_after(observed, 0), weights_after(plain, 0), rtol=1e-4, atol=1e-6)


def test_facts_name_the_scale():
    assert build().describe().optimizer.loss_scale == 1
    assert build(loss_scale="256").describe().optimizer.loss_scale == 256
    assert build(loss_scale="dynamic").describe().optimizer.loss_scale == "dynamic"


class TestOnGpu:
    pytestmark = needs_gpu

    @pytest.mark.filterwarnings("ignore:Synchronization debug mode")
    @pytest.mark.parametrize("mode", ["train", "infer"])
    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_a_step_never_waits_for_the_device(self, precision, mode):
        import torch

        workload = build(device="cuda:0", precision=precision, mode=mode)
        inputs, targets = (tensor.to("cuda:0") for tensor in workload.example("uint8"))
        for _ in range(3):
            workload.step(inputs, targets)
        torch.cuda.set_sync_debug_mode("error")
        try:
            workload.step(inputs, targets)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert bool(torch.isfinite(workload.last_output).all())

    @pytest.mark.filterwarnings("ignore:Synchronization debug mode")
    @pytest.mark.parametrize("loss_scale", ["128", "dynamic"])
    @pytest.mark.parametrize("precision", ["fp16", "pure-fp16", "amp-fp16"])
    def test_no_loss_scale_makes_the_host_wait(self, precision, loss_scale):
        import torch

        workload = build(device="cuda:0", precision=precision, loss_scale=loss_scale)
        inputs, targets = (tensor.to("cuda:0") for tensor in workload.example("uint8"))
        for _ in range(12):  # the dynamic scale has found its size by then
            workload.step(inputs, targets)
        torch.cuda.set_sync_debug_mode("error")
        try:
            seen = workload.observed_step(inputs, targets)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert bool(torch.isfinite(seen).all())

    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_training_lowers_the_loss(self, precision):
        workload = build(device="cuda:0", precision=precision)
        inputs, targets = (tensor.to("cuda:0") for tensor in workload.example("float32"))
        losses = []
        for _ in range(15):
            workload.step(inputs, targets)
            losses.append(float(workload.last_output))
        assert losses[-1] < 0.5 * losses[0]


def test_auxiliary_outputs_without_a_weight_cost_nothing_and_may_be_anything():
    import torch

    workload = build()
    inputs, targets = workload.example("float32")
    logits = workload._model(inputs).detach()
    alone = float(workload._loss(logits, targets))
    assert float(workload._loss((logits, None), targets)) == alone
    assert float(workload._loss((logits, torch.zeros(8, 3, 2, 2)), targets)) == alone


def test_a_workload_is_named_before_its_model():
    workload = build(model="vision:resnet18")
    workload.step(*workload.example("uint8"))
    assert math.isfinite(float(workload.last_output))

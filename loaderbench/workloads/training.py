"""A classification model of PyTorch, in training or inference as PyTorch's users do it.

Train: forward, cross-entropy, backward, SGD (momentum 0.9, weight decay 1e-4 as in torchvision's ImageNet
reference), or Adam (PyTorch's defaults) where the step asks for it. SGD's learning rate is 0.01, a tenth of the
reference's, so that no model's loss overflows while it is measured on few images. Infer: eval and inference_mode. All
precisions use channels_last.

| precision | weights, gradients, momentum | activations | needs |
| --- | --- | --- | --- |
| fp32 | fp32 | fp32, TF32 off for matrix products and convolutions | – |
| tf32 | fp32 | fp32, TF32 on for both | CUDA, capability 8.0 |
| amp-bf16, amp-fp16 | fp32 | autocast | CPU has bf16 only |
| bf16, fp16 | that type; batch norm fp32 | that type; loss fp32 | CPU has bf16 only |
| pure-bf16, pure-fp16 | that type, batch norm too | that type, the loss too | CPU has bf16 only |

fp16 training would lose small gradients, so its loss is scaled (`Step.loss_scale`; by default FP16_LOSS_SCALE, for
amp-fp16 dynamic). For a fixed scale, learning rate and weight decay are adapted so that the weights move as without it:
this costs no kernel and no host wait, and steps that overflow are not skipped. The dynamic scale is GradScaler's. Its
default step waits on the host for the overflow flag every step; with the fused SGD, used for it alone, the flag stays
on the device.
"""

from __future__ import annotations

import contextlib
from time import perf_counter_ns
from typing import Any, cast

import torch
from torch import nn

from loaderbench.cases.case import PRECISIONS, Step
from loaderbench.devices.base import Device
from loaderbench.errors import BatchTooSmall, ConfigError, OutOfMemory, UnavailableError
from loaderbench.plain import JsonObject
from loaderbench.recording.facts import OptimizerFacts, WorkloadFacts
from loaderbench.workloads.example import NUM_CLASSES, random_batch

BATCH_NORM_SAYS = "Expected more than 1 value per channel"
"""How PyTorch's batch norm begins its complaint about a batch of one whose map is 1×1."""
VIEW_SAYS = ("view size is not compatible with input tensor's size", "Cannot view a tensor with shape")
"""How PyTorch begins its complaint about a view of a tensor in another order of memory; the second on fake tensors."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LEARNING_RATE = 0.01
ADAM_LEARNING_RATE = 1e-3
"""PyTorch's default."""
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
FP16_LOSS_SCALE = 128.0
INITIAL_DYNAMIC_SCALE = 2.0**16
"""GradScaler's own default; it halves with each step that overflows."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class ModelWorkload:
    """A `Workload` that computes, on a torch device.

    Raises:
        ConfigError: unknown precision.
        UnavailableError: the device cannot do the precision.
        OutOfMemory: the model does not fit into memory.
    """

    def __init__(
        self,
        step: Step,
        device: Device,
        model: nn.Module,
        *,
        image_size: int,
        seed: int = 0,
        num_classes: int = NUM_CLASSES,
        auxiliary_loss_weight: float = 0.0,
        details: JsonObject | None = None,
    ) -> None:
        """
        Args:
            model: on the CPU, in fp32: images [N, 3, S, S] → logits [N, num_classes], or a tuple that begins with them,
                the others those of auxiliary classifiers.
            image_size: side of the square images.
            seed: draws the examples.
            auxiliary_loss_weight: weight of each auxiliary classifier's loss.
            details: further facts about the model for the record.
        """
        self._asked, self._image_size, self._seed, self._num_classes = step, image_size, seed, num_classes
        self._owner = device
        self._device: torch.device = device.torch_device
        self._train = step.mode == "train"
        check_precision(step.precision, device)
        _set_numerics(step.precision)
        self._auxiliary_loss_weight, self._details = auxiliary_loss_weight, details or {}
        kind, _, dtype = step.precision.rpartition("-")
        self._pure = kind == "pure"
        self._autocast_dtype = DTYPES[dtype] if kind == "amp" else None
        self._dtype = DTYPES.get(dtype, torch.float32) if kind != "amp" else torch.float32
        try:
            self._model = _convert(model, self._dtype, pure=self._pure).to(self._device)
        except RuntimeError as error:
            self._raise_if_out_of_memory(error)
            raise
        self._model.train(self._train)
        scale = torch.tensor([1 / (255 * std) for std in IMAGENET_STD])
        shift = torch.tensor([-mean / std for mean, std in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)])
        self._scale = scale.view(1, 3, 1, 1).to(self._device)
        self._shift = shift.view(1, 3, 1, 1).to(self._device)
        loss_scale = _loss_scale(step)
        dynamic = loss_scale == "dynamic"
        self._loss_scale = 1.0 if dynamic else float(loss_scale)
        self._scaler = torch.amp.GradScaler(self._device.type, INITIAL_DYNAMIC_SCALE) if dynamic else None
        self._optimizer = self._build_optimizer() if self._train else None
        self.phases: list[tuple[int, int, int]] = []
        self.last_output: Any = None
        """The last step's loss (train; scalar) or logits (infer), still on the device. Reading its value waits."""

    @property
    def model(self) -> nn.Module:
        """The model itself, on the device."""
        return self._model

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """None in inference."""
        return self._optimizer

    @property
    def constants(self) -> tuple[torch.Tensor, ...]:
        """List its tensors on the device that are not the model's."""
        return self._scale, self._shift

    def give_memory(self, device: torch.device) -> None:
        """Give each weight of a workload that was built on the meta device memory on `device`, without values.

        Weights that are shared stay shared. The optimizer is made anew.
        """
        made: dict[int, torch.Tensor] = {}
        for module in self._model.modules():
            groups: Any = (module._parameters, module._buffers)
            for owned in groups:
                for name, tensor in owned.items():
                    if tensor is None:
                        continue
                    if id(tensor) not in made:
                        empty = torch.empty_like(tensor, device=device)
                        is_parameter = isinstance(tensor, nn.Parameter)
                        made[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
                    owned[name] = made[id(tensor)]
        self._device = device
        self._scale = torch.empty_like(self._scale, device=device)
        self._shift = torch.empty_like(self._shift, device=device)
        if self._scaler is not None:
            self._scaler = torch.amp.GradScaler(device.type, INITIAL_DYNAMIC_SCALE)
        self._optimizer = self._build_optimizer() if self._train else None

    def _build_optimizer(self) -> torch.optim.Optimizer:
        if self._asked.optimizer == "adam":
            return torch.optim.Adam(self._model.parameters(), lr=ADAM_LEARNING_RATE)
        optimizer = torch.optim.SGD(
            self._model.parameters(),
            lr=LEARNING_RATE / self._loss_scale,
            momentum=MOMENTUM,
            weight_decay=WEIGHT_DECAY * self._loss_scale,
            fused=True if self._scaler is not None else None,
        )
        if self._scaler is not None:
            # The fused SGD takes its first momentum from uninitialized memory when overflow skips the first step
            # (seen with PyTorch 2.15). Zeros give the same first step as no momentum.
            for parameter in self._model.parameters():
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer

    def step(self, inputs: Any, targets: Any) -> None:
        """Enqueue one step.

        Raises:
            OutOfMemory: it does not fit in the device's memory; it never continues with a smaller batch.
            BatchTooSmall: batch norm in training has one value a channel.
        """
        try:
            if self._train:
                self._train_step(inputs, targets)
            else:
                self._infer_step(inputs)
        except RuntimeError as error:
            self._raise_if_out_of_memory(error)
            raise
        except ValueError as error:
            if str(error).startswith(BATCH_NORM_SAYS):
                raise BatchTooSmall(batch_of_one(self._asked.model, self._image_size)) from error
            raise

    def observed_step(self, inputs: Any, targets: Any) -> Any:
        """Enqueue a training step as `step` does; returns its loss and gradient norm: float32 [2] on the device.

        The norm is L2 over all parameters, without the loss scale; inf or NaN where a gradient overflowed.
        Raises OutOfMemory as `step` does.
        """
        try:
            self._backward(inputs, targets)
            seen = torch.stack([self.last_output.float(), self._gradient_norm()])
            self._update()
        except RuntimeError as error:
            self._raise_if_out_of_memory(error)
            raise
        return seen

    @property
    def scales_dynamically(self) -> bool:
        """Check if a step may be skipped, so that `update` must follow a `backward`."""
        return self._scaler is not None

    def prepared(self, inputs: Any) -> Any:
        """Device inputs as the model takes them: its layout and type, uint8 normalized."""
        return self._prepare(inputs)

    def zero_gradients(self) -> None:
        assert self._optimizer is not None
        self._optimizer.zero_grad(set_to_none=True)

    def forward(self, prepared: Any, targets: Any) -> Any:
        """The loss of a training step, the model's outputs in inference. Raises ConfigError for a model that cannot
        take channels_last."""
        try:
            if self._train:
                with self._autocast():
                    return self._loss(self._model(prepared), targets)
            with torch.inference_mode(), self._autocast():
                return self._model(prepared)
        except (RuntimeError, ValueError) as error:
            if not str(error).startswith(VIEW_SAYS):
                raise
            raise ConfigError(
                f"{self._asked.model} calls view() on a tensor in channels_last order, which loaderbench uses for "
                f"every model: call reshape() or flatten() instead (PyTorch: {error})"
            ) from error

    def backward(self, loss: Any) -> None:
        """Gradients of the loss, scaled where the precision needs that."""
        self._scaled(loss).backward()

    def update(self) -> None:
        """The optimizer's step on the gradients of `backward`."""
        self._update()

    def _train_step(self, inputs: Any, targets: Any) -> None:
        self._backward(inputs, targets)
        self._update()

    def _backward(self, inputs: Any, targets: Any) -> None:
        begun = perf_counter_ns()
        self.zero_gradients()
        loss = self.forward(self._prepare(inputs), targets)
        self.last_output = loss.detach()
        forward = perf_counter_ns()
        self.backward(loss)
        self.phases.append((begun, forward, perf_counter_ns()))

    def _scaled(self, loss: Any) -> Any:
        if self._scaler is not None:
            return self._scaler.scale(loss)
        return loss if self._loss_scale == 1.0 else loss * self._loss_scale

    def _update(self) -> None:
        assert self._optimizer is not None
        if self._scaler is None:
            self._optimizer.step()
            return
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def _gradient_norm(self) -> Any:
        """Summed in fp64 whatever the gradients' type, so that only a gradient, not a square, can overflow."""
        gradients = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients])
        return (torch.linalg.vector_norm(norms) / self._scaled(torch.ones((), device=self._device))).float()

    def _infer_step(self, inputs: Any) -> None:
        begun = perf_counter_ns()
        with torch.inference_mode():
            outputs = self.forward(self._prepare(inputs), None)
        self.last_output = outputs[0] if isinstance(outputs, tuple) else outputs
        self.phases.append((begun, perf_counter_ns(), -1))

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._autocast_dtype)

    def _prepare(self, inputs: Any) -> Any:
        """Device inputs as the model takes them: channels_last, its type; uint8 normalized by ImageNet's mean and std.

        uint8: one byte-wide kernel for the layout, one that scales, shifts and widens. float32 is normalized already.
        """
        if inputs.dtype == torch.uint8:
            inputs = torch.addcmul(self._shift, inputs.contiguous(memory_format=torch.channels_last), self._scale)
        return inputs.to(self._dtype, memory_format=torch.channels_last)

    def _loss(self, outputs: Any, targets: Any) -> Any:
        if isinstance(outputs, tuple):
            outputs, *auxiliary = outputs
        else:
            auxiliary = []
        loss = self._cross_entropy(outputs, targets)
        for logits in auxiliary if self._auxiliary_loss_weight else ():
            loss = loss + self._auxiliary_loss_weight * self._cross_entropy(logits, targets)
        return loss

    def _cross_entropy(self, logits: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(logits if self._pure else logits.float(), targets)

    def _raise_if_out_of_memory(self, error: RuntimeError) -> None:
        """Raise OutOfMemory for an error that means lack of memory, the device's or the host's."""
        whose = self._owner.out_of_memory(error)
        if whose is not None:
            what = f"batch {self._asked.batch_size} of {self._asked.model} {self._asked.precision}"
            raise OutOfMemory(f"does not fit: {what} needs more than {whose}; try a smaller --batch-size") from error

    def example(self, output: str, seed: int | None = None) -> tuple[Any, Any]:
        seed = self._seed if seed is None else seed
        return random_batch(self._asked, self._image_size, output, seed, self._num_classes)

    def describe(self) -> WorkloadFacts:
        adam = self._asked.optimizer == "adam"
        optimizer = OptimizerFacts(
            name="Adam" if adam else "SGD",
            learning_rate=ADAM_LEARNING_RATE if adam else LEARNING_RATE,
            momentum=0.0 if adam else MOMENTUM,
            weight_decay=0.0 if adam else WEIGHT_DECAY,
            fused=self._scaler is not None,
            loss_scale="dynamic" if self._scaler is not None else self._loss_scale,
        )
        return WorkloadFacts(
            self._asked.model,
            self._asked.mode,
            self._asked.precision,
            num_parameters=sum(parameter.numel() for parameter in self._model.parameters()),
            optimizer=optimizer if self._train else None,
            details={
                "memory_format": "channels_last",
                "cudnn_benchmark": torch.backends.cudnn.benchmark,
                "torch": str(torch.__version__),
                **self._details,
            },
        )


def batch_of_one(model: str, image_size: int) -> str:
    """Why a model with batch norm cannot train on a batch of one."""
    return (
        f"{model} cannot train on batches of one image of {image_size}×{image_size}: its last maps are "
        "1×1, and batch norm needs two values per channel; give --batch-size 2 or more, or a larger "
        "--input-size"
    )


def check_precision(precision: str, device: Device) -> None:
    """Raise UnavailableError where the device cannot compute in `precision`, ConfigError for an unknown precision."""
    if precision not in PRECISIONS:
        raise ConfigError(f"unknown precision '{precision}'; use one of {', '.join(PRECISIONS)}")
    if (why := device.lacks(precision)) is not None:
        raise UnavailableError(why)


def _set_numerics(precision: str) -> None:
    """Set PyTorch's switches for this process, so that no default or earlier case decides.

    PyTorch's default is TF32 for cuDNN's convolutions and not for matrix products; here it is both or neither.
    cuDNN's algorithm search suits the fixed shapes of a run.
    """
    mode = "tf32" if precision == "tf32" else "ieee"
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    cudnn.benchmark = True
    if hasattr(matmul, "allow_fp16_accumulation"):  # PyTorch 2.7 and later; convolutions have no such switch
        matmul.allow_fp16_accumulation = precision == "pure-fp16"
    if hasattr(matmul, "fp32_precision"):  # PyTorch 2.9 and later, which refuses a mix of the old and the new switches
        matmul.fp32_precision = mode
        cudnn.conv.fp32_precision = mode
        cudnn.rnn.fp32_precision = mode
    else:
        matmul.allow_tf32 = mode == "tf32"
        cudnn.allow_tf32 = mode == "tf32"


def _loss_scale(step: Step) -> str:
    if step.mode != "train":
        return "1"
    default = {"fp16": f"{FP16_LOSS_SCALE:g}", "pure-fp16": f"{FP16_LOSS_SCALE:g}", "amp-fp16": "dynamic"}
    return step.loss_scale or default.get(step.precision, "1")


def _convert(model: nn.Module, dtype: torch.dtype, *, pure: bool) -> nn.Module:
    """The model in channels_last and `dtype`; unless pure, batch norm in fp32: its statistics need the digits."""
    converted: Any = model
    converted = converted.to(dtype=dtype, memory_format=torch.channels_last)
    for module in converted.modules():
        if isinstance(module, nn.BatchNorm2d) and not pure:
            module.float()
    return cast(nn.Module, converted)

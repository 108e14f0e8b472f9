"""A model of PyTorch, in training or inference as PyTorch's users do it.

Train: forward, loss (cross-entropy for a classifier; workloads/objective.py has the rule), backward, SGD (momentum 0.9,
weight decay 1e-4 as in torchvision's ImageNet reference), or Adam or AdamW (PyTorch's defaults) where the step asks for
it. SGD's learning rate is 0.01, a tenth of the reference's, so that no model's loss overflows while it is measured on
few images. Infer: eval and inference_mode. All precisions use channels_last, for what has images' four dimensions.

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
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from loaderbench.cases.case import PRECISIONS, Step
from loaderbench.cases.inputs import sample_inputs, words_of
from loaderbench.devices.base import Device
from loaderbench.errors import BatchTooSmall, ConfigError, OutOfMemory, UnavailableError
from loaderbench.plain import JsonObject
from loaderbench.recording.facts import OptimizerFacts, WorkloadFacts
from loaderbench.workloads.example import NUM_CLASSES, random_batch, random_inputs
from loaderbench.workloads.objective import Objective

BATCH_NORM_SAYS = "Expected more than 1 value per channel"
"""How PyTorch's batch norm begins its complaint about a batch of one whose map is 1×1."""
VIEW_SAYS = ("view size is not compatible with input tensor's size", "Cannot view a tensor with shape")
"""How PyTorch begins its complaint about a view of a tensor in another order of memory; the second on fake tensors."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LEARNING_RATE = 0.01
ADAMS: dict[str, type[torch.optim.Adam]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
"""`--optimizer` → the class, all of whose defaults are PyTorch's."""
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
        image_size: int | None,
        seed: int = 0,
        num_classes: int = NUM_CLASSES,
        objective: Objective | None = None,
        limits: Sequence[int] = (),
        details: JsonObject | None = None,
    ) -> None:
        """
        Args:
            model: on the CPU, in fp32. It takes the step's inputs.
            image_size: side of the square images; None: the step says what it takes.
            seed: draws the examples.
            num_classes: of the data set, for the labels of images.
            objective: the loss; None: of logits [N, num_classes].
            limits: as of random_inputs.
            details: further facts about the model for the record.
        """
        self._asked, self._image_size, self._seed, self._num_classes = step, image_size, seed, num_classes
        self._limits = tuple(limits)
        self._objective = objective or Objective(
            torch.empty(2, num_classes, device="meta"), integer_inputs=False, auxiliary_weight=0.0
        )
        self._owner = device
        self._device: torch.device = device.torch_device
        self._train = step.mode == "train"
        check_precision(step.precision, device)
        _set_numerics(step.precision)
        self._details = details or {}
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
        """The last step's loss (train; scalar) or what the model returned (infer), still on the device. Reading its
        value waits."""

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
        if (adam := ADAMS.get(self._asked.optimizer)) is not None:
            return adam(self._model.parameters())
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
                raise BatchTooSmall(self._batch_of_one()) from error
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

    def _batch_of_one(self) -> str:
        shape = sample_inputs(self._asked, self._image_size)[0].shape
        return batch_of_one(self._asked.model, shape[1:])

    def prepared(self, inputs: Any) -> Any:
        """Device inputs as the model takes them: its layout and type, uint8 images normalized."""
        return self._prepare(inputs)

    def scores(self) -> torch.Tensor:
        """What the last step of inference gave: logits [M, classes] of each sample or position, else all values
        [N, …]."""
        return self._objective.scores(self.last_output)

    def zero_gradients(self) -> None:
        assert self._optimizer is not None
        self._optimizer.zero_grad(set_to_none=True)

    def forward(self, prepared: Any, targets: Any) -> Any:
        """The loss of a training step, the model's outputs in inference. Raises ConfigError for a model that cannot
        take channels_last."""
        try:
            if self._train:
                with self._autocast():
                    return self._loss(self._outputs(prepared), targets)
            with torch.inference_mode(), self._autocast():
                return self._outputs(prepared)
        except (RuntimeError, ValueError) as error:
            if not str(error).startswith(VIEW_SAYS):
                raise
            raise ConfigError(
                f"{self._asked.model} calls view() on a tensor in channels_last order, which loaderbench uses for "
                f"every model: call reshape() or flatten() instead (PyTorch: {error})"
            ) from error

    def _outputs(self, prepared: Any) -> Any:
        return call(self._model, prepared)

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
            self.last_output = self.forward(self._prepare(inputs), None)
        self.phases.append((begun, perf_counter_ns(), -1))

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._autocast_dtype)

    def _prepare(self, inputs: Any) -> Any:
        """Device inputs as the model takes them: images in channels_last, floating point in its type; a loader's uint8
        normalized by ImageNet's mean and std.

        uint8: one byte-wide kernel for the layout, one that scales, shifts and widens. float32 is normalized already.
        """
        if isinstance(inputs, torch.Tensor) and inputs.dtype == torch.uint8 and self._asked.inputs is None:
            inputs = torch.addcmul(self._shift, inputs.contiguous(memory_format=torch.channels_last), self._scale)
        return tree_map(self._converted, inputs)

    def _converted(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        order = torch.channels_last if tensor.ndim == 4 else torch.preserve_format
        return tensor.to(self._dtype, memory_format=order)

    def _loss(self, outputs: Any, targets: Any) -> Any:
        return self._objective.loss(outputs, targets, in_float32=not self._pure)

    def _raise_if_out_of_memory(self, error: RuntimeError) -> None:
        """Raise OutOfMemory for an error that means lack of memory, the device's or the host's."""
        whose = self._owner.out_of_memory(error)
        if whose is not None:
            what = f"batch {self._asked.batch_size} of {self._asked.model} {self._asked.precision}"
            raise OutOfMemory(f"does not fit: {what} needs more than {whose}; try a smaller --batch-size") from error

    def example(self, output: str, seed: int | None = None) -> tuple[Any, Any]:
        """A random host batch: what the model takes (a tensor, or a tuple or dict of several), and the loss's
        targets."""
        seed = self._seed if seed is None else seed
        if self._is_classifier:
            assert self._image_size is not None
            return random_batch(self._asked, self._image_size, output, seed, self._num_classes)
        random, size = torch.Generator().manual_seed(seed), self._asked.batch_size
        inputs = random_inputs(self._asked, size, random, self._limits, self._image_size)
        return inputs, self._objective.targets(size, random)

    @property
    def _is_classifier(self) -> bool:
        """Whether it takes square images and gives a class for each, as a loader delivers them."""
        return self._asked.inputs is None and self._objective.one_class_each

    def describe(self) -> WorkloadFacts:
        adam = self._asked.optimizer in ADAMS
        defaults = {} if self._optimizer is None else self._optimizer.defaults
        optimizer = OptimizerFacts(
            name=type(self._optimizer).__name__,
            learning_rate=defaults.get("lr", 0.0) if adam else LEARNING_RATE,
            momentum=0.0 if adam else MOMENTUM,
            weight_decay=defaults.get("weight_decay", 0.0) if adam else WEIGHT_DECAY,
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
                **({} if self._asked.inputs is None else {"inputs": words_of(self._asked.inputs)}),
                **({"loss": self._objective.words} if self._train else {}),
                "cudnn_benchmark": torch.backends.cudnn.benchmark,
                "torch": str(torch.__version__),
                **self._details,
            },
        )


def call(model: nn.Module, inputs: Any) -> Any:
    """What the model returns. A tuple or list of inputs is its positional arguments, a dict its keywords."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def batch_of_one(model: str, size: Sequence[int]) -> str:
    """Why a model with batch norm cannot train on a batch of one. `size`: height and width of its images; other inputs
    have other sizes."""
    if len(size) != 2:
        return f"{model} cannot train on batches of one: batch norm needs two values per channel; give --batch-size 2"
    return (
        f"{model} cannot train on batches of one image of {size[0]}×{size[1]}: its last maps are "
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
    """The model in channels_last, as far as its weights have four dimensions, and `dtype`; unless pure, batch norm in
    fp32: its statistics need the digits."""
    converted = model.to(dtype=dtype)
    for weights in (*converted.parameters(), *converted.buffers()):
        if weights.ndim == 4:
            weights.data = weights.data.contiguous(memory_format=torch.channels_last)
    for module in converted.modules():
        if isinstance(module, nn.BatchNorm2d) and not pure:
            module.float()
    return converted

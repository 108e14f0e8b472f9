"""The memory of one step, traced without its device: every allocation and release, in order.

The step is the one that is measured (workloads/training.py), run on fake tensors: they have shapes, types and storages,
and no memory (torch._subclasses.fake_tensor). A dispatch mode sees each operator's results; a storage counts from the
operator that made it until it is gone. Weights and optimizer state are there when the step begins, as from the second
step on.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from loaderbench.cases.case import Step
from loaderbench.devices.shapes import ShapesDevice
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.recording.model_memory import (
    ALLOCATION_FIELDS,
    EVENT_FIELDS,
    MEMORY_KINDS,
    STEP_PHASES,
    LayerOutput,
    MemoryTrace,
)
from loaderbench.running.memory_cap import tensors_among
from loaderbench.running.models import of_pytorch
from loaderbench.running.operator_probe import FUSED, PROBED, OperatorCall, may_hold, probe
from loaderbench.running.recurrent import LAYER, forward_bytes
from loaderbench.running.workspaces import (
    CUDA_ROUNDING,
    library_blocks,
    product_bytes,
    unchecked_processor,
    workspace_bytes,
)
from loaderbench.workloads import build_workload
from loaderbench.workloads.example import image_size
from loaderbench.workloads.objective import tensors_of
from loaderbench.workloads.training import ModelWorkload

TRACE_VERSION = 9
"""Raise it when a trace of the same step changes: kept ones are then made anew."""
PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, TEMPORARY = range(len(MEMORY_KINDS))
STANDING, FORWARD, BACKWARD, UPDATE = range(len(STEP_PHASES))
NO_LAYER = (torch.ops.aten._to_copy.default, torch.ops.aten.detach.default, torch.ops.aten.clone.default)
"""Operators that PyTorch adds between a model's own."""
WHOLE = (torch.ops.aten.conv2d.default, torch.ops.aten.linear.default, torch.ops.aten.max_pool2d.default)
"""Composite operators whose rules (running/workspaces.py) and probes are of the whole."""
_graph: Any = torch._C
_autograd: Any = torch._C._autograd


def trace_step(step: Step, seed: int, *, on_accelerator: bool, probed: bool = True) -> MemoryTrace:
    """Trace one step in its steady state.

    Args:
        on_accelerator: by the rules of CUDA's allocator (sizes rounded, grouped optimizer, cuBLAS's workspace); else
            by those of the CPU's (bytes as they are, oneDNN's workspaces).
        probed: on the CPU run small operators once, for what they hold inside (running/operator_probe.py); else all go
            by the rules, which change with the batch in one way: traces through which a line is to go.

    Raises:
        ConfigError: as the workload's build.
        UnavailableError: the model cannot be traced, for it reads values.
    """
    begun = time.perf_counter()
    tracer = StepTracer(rounding=rounding_of(on_accelerator=on_accelerator), inside=not on_accelerator)
    follow_step(tracer, step, seed, on_accelerator=on_accelerator)
    if not on_accelerator:
        tracer.probe(small=probed)
    unchecked_on = None if on_accelerator else unchecked_processor()
    return replace(tracer.trace(step.batch_size), seconds=time.perf_counter() - begun, unchecked_on=unchecked_on)


def rounding_of(*, on_accelerator: bool) -> int:
    """Bytes to whose multiples the allocator rounds sizes up."""
    return CUDA_ROUNDING if on_accelerator else 1


def follow_step(tracer: StepTracer, step: Step, seed: int, *, on_accelerator: bool, device: str = "cpu") -> None:
    """Show the tracer what stands when a step begins in its steady state, and the step.

    `device` is the fake tensors' own: autograd saves by it. Raises as trace_step.
    """
    workload = _built(step, seed)
    if on_accelerator and any(isinstance(one, nn.RNNBase) for one in workload.model.modules()):
        raise UnavailableError(
            f"{step.model} has recurrent layers, whose workspace on an accelerator only its library knows: its "
            "memory can be measured but not predicted"
        )
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            workload.give_memory(torch.device(device))
            if on_accelerator:
                _group_updates(workload.optimizer)
                for size in library_blocks(step.mode == "train"):
                    tracer.stand_library(size)
            inputs, targets = tree_map(lambda one: one.to(device), workload.example("float32"))
            _settle(workload, inputs, targets)
            tracer.stand(PARAMETERS, (*workload.model.parameters(), *workload.model.buffers()))
            tracer.stand(GRADIENTS, _gradients(workload))
            tracer.stand(OPTIMIZER, _state(workload.optimizer))
            tracer.stand(ACTIVATIONS, (*tensors_of(inputs), targets))
            tracer.stand(TEMPORARY, workload.constants)
            tracer.stand(TEMPORARY, _held_by(workload.last_output))
            with tracer.following(workload):
                workload.step(inputs, targets)
                tracer.end_step(inputs, workload.last_output)
    except (RuntimeError, TypeError) as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        raise UnavailableError(
            f"{step.model} cannot be traced without values ({type(error).__name__}: {reason[:200]}): its "
            "memory can be measured but not predicted"
        ) from error


def _built(step: Step, seed: int) -> ModelWorkload:
    """The workload on the meta device; a model whose construction needs values is made on the CPU first."""
    here, size = replace(step, device="cpu"), image_size(step)

    def build() -> Any:
        return build_workload(here, ShapesDevice(), image_size=size, seed=seed, num_classes=1)

    try:
        with torch.device("meta"):
            workload = build()
    except (RuntimeError, ConfigError) as error:
        if isinstance(error, ConfigError) and ":" not in step.model:
            raise  # torchvision's need no values to be checked
        workload = build()  # a user's model may need them
    return of_pytorch(workload, step, "memory cannot be traced")


def _group_updates(optimizer: torch.optim.Optimizer | None) -> None:
    """Let the optimizer update all parameters in groups, as it does by default on CUDA."""
    for group in () if optimizer is None else optimizer.param_groups:
        if not group.get("fused"):
            group["foreach"] = True


def _settle(workload: ModelWorkload, inputs: Any, targets: Any) -> None:
    """What earlier steps leave: gradients, the optimizer's state, and the last output."""
    if workload.optimizer is None:
        workload.step(inputs, targets)
        return
    for parameter in workload.model.parameters():
        parameter.grad = torch.empty_like(parameter)
    workload.optimizer.step()


class StepTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no annotations there
    """Keeps what the operators within its context allocate and release, beside what stands already."""

    takes_apart = True
    """Trace the parts of composite operators, which arrive whole in inference."""

    def __init__(self, *, rounding: int, inside: bool) -> None:
        """`inside`: count what operators of the CPU allocate and give back."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._rounding, self._inside = rounding, inside
        self._allocations: list[list[int]] = []
        self._events: list[tuple[int, int, int, int, int]] = []
        self._num_events = 0
        """What comes behind the step is not of it: the model's own end."""
        self._live: dict[int, tuple[Any, int]] = {}
        """Address of a storage → (its weak reference, its allocation)."""
        self._operators: dict[str, int] = {"": 0}
        self._modules: dict[str, int] = {"": 0}
        self._phase, self._operator, self._module = STANDING, 0, 0
        self._paths: dict[int, str] = {}
        self._stack: list[tuple[int, bool]] = []
        """Modules that are being run: (number of the path, has no modules inside)."""
        self._module_of_node: dict[int, int] = {}
        """Autograd node, by its sequence number → module whose operator made it."""
        self._layers: list[LayerOutput] = []
        self._inner: list[tuple[int, OperatorCall]] = []
        """Allocations of what operators hold inside that can be probed."""

    # -- what the trace is told

    def stand(self, kind: int, tensors: Iterable[torch.Tensor]) -> None:
        """What is there when the step begins."""
        for tensor in tensors:
            self._see(tensor, kind)

    def stand_library(self, size: int) -> None:
        """Memory that a library keeps."""
        self._allocate(size, TEMPORARY)

    def end_step(self, inputs: Any, output: Any) -> None:
        """The step has ended; its inputs and its output live on."""

    @contextmanager
    def following(self, workload: ModelWorkload) -> Iterator[None]:
        """The step is run within this context."""
        self._paths = {id(module): path for path, module in workload.model.named_modules()}
        self._phase = FORWARD

        def begin_update(*_: Any) -> None:
            self._phase, self._module = UPDATE, 0
            self._name(GRADIENTS, _gradients(workload))

        with ExitStack() as stack:
            if workload.optimizer is not None:
                stack.callback(workload.optimizer.register_step_pre_hook(begin_update).remove)
            stack.callback(register_module_forward_pre_hook(self._enter).remove)
            stack.callback(register_module_forward_hook(self._leave).remove)
            with self:
                yield
        self._num_events = len(self._events)

    def trace(self, batch_size: int) -> MemoryTrace:
        """What was followed."""
        return MemoryTrace(
            batch_size,
            np.array(self._allocations, dtype=np.int64).reshape(-1, len(ALLOCATION_FIELDS)),
            np.array(self._events[: self._num_events], dtype=np.int64).reshape(-1, len(EVENT_FIELDS)),
            tuple(self._operators),
            tuple(self._modules),
            tuple(self._layers),
            seconds=None,
        )

    # -- what it sees

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        self._operator = self._operators.setdefault(name, len(self._operators))
        self._locate()
        # Of fake tensors PyTorch 2.11 makes a copy there; of real ones none does.
        is_idle = func is torch.ops.aten.dropout.default and not args[2]
        if self._inside and self.takes_apart and not is_idle and _comes_whole(func):
            # What it makes inside is live, too. PyTorch's own code for it: Python's (func.decompose) lets go earlier.
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **(kwargs or {}))
        out = args[0] if is_idle else func(*args, **(kwargs or {}))
        if self._inside and func is LAYER:
            out = self._with_workspace(args, out)
        results = out if isinstance(out, list | tuple) else (out,)
        for tensor in tensors_among(results):
            self._see(tensor, TEMPORARY)
        if self._inside:
            may_be_probed = name in PROBED or name in FUSED or may_hold(func, args)
            call = OperatorCall.of(func, args, kwargs or {}, results) if may_be_probed else None
            self._hold_inside(name, call, workspace_bytes(name, args, results), may_be_probed=may_be_probed)
        elif name in FUSED:
            raise UnavailableError(f"what {name} holds inside on an accelerator is not known")
        elif held := product_bytes(name):
            self._release(self._allocate(held, TEMPORARY))
        if self._phase == FORWARD and self._stack and not self._stack[-1][1]:
            self._see_function(func, results)
        return out

    @staticmethod
    def _with_workspace(arguments: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
        """Give a recurrent layer's results a workspace as large as oneDNN's: that of fake tensors has no bytes."""
        *others, workspace = results
        size = forward_bytes(arguments).workspace
        if size:
            workspace = arguments[0].new_empty(size, dtype=torch.uint8)
        return (*others, workspace)

    def _hold_inside(self, name: str, call: OperatorCall | None, by_rules: int, *, may_be_probed: bool) -> None:
        """Count what the operator allocates and gives back before it returns. One that may be probed has an allocation
        at every batch, of no bytes too, so that traces line up."""
        if name in FUSED and call is None:
            raise UnavailableError(f"what {name} holds inside is known for plain tensors only")
        if by_rules or may_be_probed:
            allocation = self._allocate(by_rules, TEMPORARY)
            self._release(allocation)
            if call is not None:
                self._inner.append((allocation, call))

    def probe(self, *, small: bool = True) -> None:
        """Put what operators really hold in place of what the rules say. Call it after the step was followed.

        `small`: run small operators that may run in oneDNN; others, for which there are no rules, always are.

        Raises:
            UnavailableError: a fused operator cannot be run.
        """
        wanted = [(allocation, call) for allocation, call in self._inner if small or str(call.operator) not in PROBED]
        held = probe(call for _, call in wanted)
        for allocation, call in wanted:
            if str(call.operator) in FUSED and call.key not in held:
                raise UnavailableError(f"what {call.operator} holds inside is not known: it could not be run alone")
            self._allocations[allocation][0] = held.get(call.key, self._allocations[allocation][0])

    def _locate(self) -> None:
        """The phase and the module that the operator belongs to."""
        node = _graph._current_autograd_node()
        if node is not None:
            if self._phase == FORWARD:
                self._begin_backward()
            # Nodes that add up gradients have no operator of the forward pass: they are the last one's.
            self._module = self._module_of_node.get(node._sequence_nr(), self._module)
        elif self._phase == FORWARD:
            self._module = self._stack[-1][0] if self._stack else 0
            # The operator's node was made just before it; operators without one must not take the last one's number.
            self._module_of_node.setdefault(_autograd._get_sequence_nr() - 1, self._module)

    def _begin_backward(self) -> None:
        """What the forward pass made and is live still is kept for the backward pass."""
        self._phase = BACKWARD
        for _, allocation in self._live.values():
            if self._allocations[allocation][1] == TEMPORARY:
                self._allocations[allocation][1] = ACTIVATIONS

    def _see(self, tensor: torch.Tensor, kind: int) -> None:
        """Count the tensor's storage, if it is new."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._live or not size:
            return
        allocation = self._allocate(size, kind)

        def gone(_: object) -> None:
            del self._live[key]
            self._release(allocation)

        self._live[key] = weakref.ref(storage, gone), allocation

    def _allocate(self, size: int, kind: int) -> int:
        self._allocations.append([-(-size // self._rounding) * self._rounding, kind])
        self._event(len(self._allocations) - 1, 1)
        return len(self._allocations) - 1

    def _release(self, allocation: int) -> None:
        self._event(allocation, -1)

    def _event(self, allocation: int, sign: int) -> None:
        self._events.append((allocation, sign, self._phase, self._operator, self._module))

    def _name(self, kind: int, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            known = self._live.get(tensor.untyped_storage()._cdata)
            if known is not None:
                self._allocations[known[1]][1] = kind

    # -- layers

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        path = self._paths.get(id(module), "")
        is_leaf = next(module.children(), None) is None
        self._stack.append((self._modules.setdefault(path, len(self._modules)), is_leaf))

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        _, is_leaf = self._stack.pop()
        made = list(tensors_of(output))
        if is_leaf and made:
            self._add_layer(self._paths.get(id(module), ""), type(module).__name__, made)

    def _see_function(self, func: Any, results: Sequence[Any]) -> None:
        """A function between the modules. Not views, and not autocast's conversions."""
        if not isinstance(results[0], torch.Tensor) or func.is_view or func in NO_LAYER:
            return
        name = func._schema.name.partition("::")[2]
        path = list(self._modules)[self._stack[-1][0]]
        self._add_layer(f"{path}.{name}" if path else name, name, list(tensors_among(results)))

    def _add_layer(self, name: str, kind: str, made: Sequence[torch.Tensor]) -> None:
        """`made`: its outputs; the first one's shape stands for all."""
        size = sum(one.numel() * one.element_size() for one in made)
        name = f"{name} (recomputed)" if self._phase == BACKWARD else name
        self._layers.append(LayerOutput(name, kind, tuple(made[0].shape), size, len(self._events)))


def _comes_whole(operator: Any) -> bool:
    """Check if it is made of others, as many are in inference, where autograd does not take them apart."""
    if operator.namespace != "aten" or operator in WHOLE:
        return False
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))


def _held_by(outputs: Any) -> Iterator[torch.Tensor]:
    """All tensors that a model's outputs keep alive, those within its own objects too, such as a cache of keys and
    values."""
    waiting, seen = [outputs], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, torch.Tensor):
            yield one
        elif id(one) not in seen and not isinstance(one, str | int | float | type | nn.Module):
            seen.add(id(one))
            parts = one.values() if isinstance(one, Mapping) else one if isinstance(one, list | tuple) else ()
            waiting += [*parts, *getattr(one, "__dict__", {}).values()]


def _gradients(workload: ModelWorkload) -> list[torch.Tensor]:
    return [parameter.grad for parameter in workload.model.parameters() if parameter.grad is not None]


def _state(optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    states = () if optimizer is None else optimizer.state.values()
    return [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]

"""What operators allocate inside and give back before they return: a trace of operators' results does not see it.

The rules of the CPU were read off torch.profiler's memory events (PyTorch 2.15, oneDNN 3) and follow the sources named
at each; benchmarks/model.py compares their sum with those events. Bytes throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from loaderbench.running.recurrent import LAYER, LAYER_BACKWARD, backward_bytes, forward_bytes

ONEDNN_INPUT = 20480
"""Values of a single image's input up to which fp32 convolutions without groups and with small kernels are not given to
oneDNN (aten/src/ATen/native/Convolution.cpp, use_mkldnn)."""
SMALL_KERNEL = 3
INDEX_BYTES = 8
"""Max pooling's indices are int64."""
BLOCK = 16
"""Channels of oneDNN's blocked weights are padded to it (`nChw16c`, for AVX-512; of few input channels none are)."""
CUBLAS_BYTES = 32 * 2**20
"""Workspace of cuBLAS from compute capability 9.0 on, which PyTorch takes from its own allocator
(aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize). Assumed for every accelerator."""
CUBLASLT_BYTES = 2**20
"""The same of cuBLASLt, which computes linear layers with a bias (aten/src/ATen/cuda/CUDABlas.cpp): seen on an H200
with PyTorch 2.11."""
KEPT_BELOW = (2, 15)
"""PyTorch before this version keeps workspaces from the first product on, one of cuBLAS for each thread's handle, and
the backward pass is another thread: seen on an H200 with 2.11. From then on each product takes and returns its own
(pull request 194311, and `CUDABlasHandleWithWorkspace` in ATen/cuda/CUDAContextLight.h of 2.15): not seen yet."""
MATRIX_PRODUCTS = frozenset(f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul"))
CUDA_ROUNDING = 512
"""kMinBlockSize of PyTorch's allocator for CUDA (c10/cuda/CUDACachingAllocator.cpp): sizes are rounded up to it."""


CHECKED_ON = "AVX512"
"""What torch.backends.cpu.get_cpu_capability says of the processors on which the rules were checked."""


RULED = frozenset({
    "aten.max_pool2d.default", "aten.native_batch_norm_backward.default", str(LAYER), str(LAYER_BACKWARD)
})  # fmt: skip
"""Operators whose rule holds at every size, besides those that may run in oneDNN."""


def keeps_workspaces() -> bool:
    """Whether this PyTorch keeps cuBLAS's workspaces between products."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) < KEPT_BELOW


def library_blocks(training: bool) -> tuple[int, ...]:
    """Bytes of each block that cuBLAS keeps on an accelerator between steps."""
    return (*([CUBLAS_BYTES] * (1 + training)), CUBLASLT_BYTES) if keeps_workspaces() else ()


def product_bytes(operator: str) -> int:
    """What the operator holds on an accelerator for as long as it runs."""
    return CUBLAS_BYTES if operator in MATRIX_PRODUCTS and not keeps_workspaces() else 0


def unchecked_processor() -> str | None:
    """This processor's vector units, where the rules were not checked on such ones."""
    capability = str(torch.backends.cpu.get_cpu_capability())
    return None if capability == CHECKED_ON else capability


def workspace_bytes(operator: str, arguments: Sequence[Any], results: Sequence[Any]) -> int:
    """Most bytes that the operator holds on the CPU besides its arguments and results; 0 where no rule is known.

    Convolutions that run in oneDNN (aten/src/ATen/native/mkldnn/Conv.cpp):

    - forward: the weight reordered into oneDNN's layout.
    - backward, with a gradient of the weight: the gradient in oneDNN's layout and, where it is made contiguous
      (`mkldnn_to_dense`), once more before it takes the weight's channels_last layout. In bf16 oneDNN sums the gradient
      in fp32, in a scratchpad twice as large, before that. With groups it pads the channels of each group, except
      for depthwise convolutions of images that are at least as large as the kernel, for which it has kernels.
    - backward, without it: the weight reordered.

    Others unfold the image into columns (aten/src/ATen/native/ConvolutionMM2d.cpp), except for 1x1 kernels. Max pooling
    in inference makes indices that nobody asked for (aten/src/ATen/native/Pooling.cpp, max_pool2d). The backward pass
    of batch norm allocates the images' gradient, and once more where images and gradient lie in one order, before it
    lets go of the first (aten/src/ATen/native/Normalization.cpp, batch_norm_backward_cpu_template). Recurrent layers of
    oneDNN are run once on short sequences (running/recurrent.py).
    """
    if operator in ("aten.convolution.default", "aten.conv2d.default"):
        images, weight = arguments[0], arguments[1]
        groups = arguments[8] if len(arguments) > 8 else arguments[6] if len(arguments) == 7 else 1
        if not _in_onednn(images, weight, groups):
            return _columns_bytes(weight, results[0])
        return _blocked_bytes(weight)
    if operator == "aten.convolution_backward.default":
        output, images, weight = arguments[:3]
        groups = arguments[9]
        if not _in_onednn(images, weight, groups):
            return _columns_bytes(weight, output)
        if results[1] is None:
            return _blocked_bytes(weight)
        blocked, dense = _gradient_bytes(weight, images, groups), _bytes_of(results[1])
        summed = 2 * blocked if weight.dtype == torch.bfloat16 else 0
        return blocked + max(dense, summed - dense)
    if operator == str(LAYER):
        return forward_bytes(arguments).forward
    if operator == str(LAYER_BACKWARD):
        return backward_bytes(arguments)
    if operator == "aten.max_pool2d.default":
        return int(results[0].numel()) * INDEX_BYTES
    if operator == "aten.native_batch_norm_backward.default":
        return _bytes_of(results[0]) if results[0] is not None and _in_one_order(*arguments[:2]) else 0
    return 0


def _in_one_order(one: torch.Tensor, other: torch.Tensor) -> bool:
    orders = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    return any(one.is_contiguous(memory_format=order) and other.is_contiguous(memory_format=order) for order in orders)


def _in_onednn(images: torch.Tensor, weight: torch.Tensor, groups: int) -> bool:
    large_kernel = min(weight.shape[2:]) > SMALL_KERNEL
    is_large = images.shape[0] > 1 or images.numel() > ONEDNN_INPUT
    return images.dtype != torch.float32 or groups > 1 or large_kernel or is_large


def _columns_bytes(weight: torch.Tensor, output: torch.Tensor) -> int:
    """Of an image [channels · kernel, output's pixels]."""
    kernel = weight.shape[2] * weight.shape[3]
    pixels = output.shape[2] * output.shape[3]
    return weight.shape[1] * kernel * pixels * output.element_size() if kernel > 1 else 0


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _gradient_bytes(weight: torch.Tensor, images: torch.Tensor, groups: int) -> int:
    """Bytes of the gradient of a weight [out, in of a group, …] in oneDNN's layout."""
    if groups == 1:
        return _blocked_bytes(weight)
    num_out, num_in = weight.shape[0] // groups, weight.shape[1]
    has_kernel = num_out == num_in == 1 and min(images.shape[2:]) >= min(weight.shape[2:])
    if has_kernel:
        return _bytes_of(weight)
    padded = (-(-num_out // BLOCK) * BLOCK) * (-(-num_in // BLOCK) * BLOCK)
    return _bytes_of(weight) // (num_out * num_in) * padded


def _blocked_bytes(weight: torch.Tensor) -> int:
    """Bytes of a weight [out, in, …] with its output channels padded to a block."""
    num_out = weight.shape[0]
    padded = -(-num_out // BLOCK) * BLOCK if num_out > BLOCK else num_out
    return _bytes_of(weight) // num_out * padded

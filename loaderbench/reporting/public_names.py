"""Names that everybody has, of models, layers, transforms, packages, storages: they tell nothing of anyone.

Names of other packages are as these write them; letters of layers' names are compared in lower case, without digits.
"""

from __future__ import annotations

import re


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MODELS = _names(
    """
    emulated lenet alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161
    densenet169 densenet201 efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4
    efficientnet_b5 efficientnet_b6 efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s googlenet
    inception_v3 maxvit_t mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large
    mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf
    regnet_x_8gf regnet_y_128gf regnet_y_16gf regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf
    regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34 resnet50 resnext101_32x8d resnext101_64x4d
    resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0
    squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn
    vgg19 vgg19_bn vit_b_16 vit_b_32 vit_h_14 vit_l_16 vit_l_32 wide_resnet101_2 wide_resnet50_2
    """
)
"""Those of torchvision that classify images, and loaderbench's own."""
SIDES = _names(
    """
    cold disk disks fast hdd local lustre memory network new nfs nvme old ram slow ssd tmpfs warm 32 64 96 128 160
    192 224 256 320 384 448 512 640 768 1024 2048 4096
    """
)
"""What data sets and sides of a comparison are called that says no more than their kind of storage, or their size."""
CLASSES = _names(
    """
    CIFAR10 CIFAR100 ChainDataset ConcatDataset DataLoader DatasetFolder FakeData FashionMNIST ImageFolder ImageNet
    IterableDataset MNIST StackDataset StatefulDataLoader Subset TensorDataset BatchSampler DistributedSampler
    RandomSampler SequentialSampler SubsetRandomSampler WeightedRandomSampler default_collate default_convert AugMix
    AutoAugment CenterCrop ColorJitter Compose ConvertImageDtype CutMix ElasticTransform FiveCrop GaussianBlur
    GaussianNoise Grayscale Identity JPEG Lambda LinearTransformation MixUp Normalize PILToTensor Pad RGB
    RandAugment RandomAdjustSharpness RandomAffine RandomApply RandomAutocontrast RandomChannelPermutation
    RandomChoice RandomCrop RandomEqualize RandomErasing RandomGrayscale RandomHorizontalFlip RandomInvert
    RandomOrder RandomPerspective RandomPhotometricDistort RandomPosterize RandomResize RandomResizedCrop
    RandomRotation RandomShortestSize RandomSolarize RandomVerticalFlip RandomZoomOut Resize ScaleJitter TenCrop
    ToDtype ToImage ToPILImage ToPureTensor ToTensor TrivialAugmentWide
    """
)
"""Of PyTorch and torchvision: what feeds a training."""
OPTIMIZERS = _names("SGD Adam AdamW Adagrad Adadelta Adamax NAdam RAdam RMSprop LBFGS")
_LAYERS = _names(
    """
    a activation adaptiveavgpool adaptivemaxpool add affine attention attn aux auxlogits avgpool b batchnorm block
    blocks bmm bn branch c cat chunk classifier concat conv convtranspose cosine cpb cross d dbl decoder denseblock
    denselayer departition div downsample dropout e einsum elu embedding encoder entropy expand fc features flatten
    fn gelu glu getitem grid groupnorm gru hardsigmoid hardswish hardtanh head heads identity inception instancenorm
    interpolate layer layernorm layers leakyrelu linear ln log logsoftmax logits loss lstm lrn matmul max maxpool
    mbconv mean merge mish mixed mlp mul multiheadattention nll nllloss nondynamicallyquantizablelinear norm
    normalize op out output pad partition patch permute pool pow pre prelu proj qkv reduction relu reshape residual
    rmsnorm rnn roll scale scaled self sequential sigmoid silu size skip softmax softplus split sqrt squeeze stage
    stack stem stochastic stochasticdepth sub sum swap swapaxes tanh t to transition transpose unflatten unsqueeze
    upsample view window windowpartition windowdepartition x dot product batch forward backward convolution
    overrideable native cudnn miopen mkldnn addmm mm copy zeros like ones empty clone fill threshold with indices
    data flash efficient aten default tensor scalar memory format unsafe adaptive avg intlist dim as strided new
    detach
    """
)
"""Letters of which the names of torchvision's layers, and of their types and functions, are made."""
ENVIRONMENT = _names(
    """
    OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OMP_WAIT_POLICY MKL_NUM_THREADS MKL_DYNAMIC OPENBLAS_NUM_THREADS
    GOMP_CPU_AFFINITY KMP_AFFINITY KMP_BLOCKTIME MALLOC_ARENA_MAX MALLOC_TRIM_THRESHOLD_ MALLOC_MMAP_THRESHOLD_
    MALLOC_CONF CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING CUDA_VERSION
    NVIDIA_VISIBLE_DEVICES LD_PRELOAD PYTHONMALLOC PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE CUBLAS_WORKSPACE_CONFIG DALI_AFFINITY_MASK all true false none TRUE FALSE close
    spread cores threads sockets PCI_BUS_ID FASTEST_FIRST LAZY EAGER malloc
    """
)
"""Names and values of variables that change results."""
SYSTEMS = _names(
    """
    x86_64 aarch64 arm64 amd64 ppc64le riscv64 s390x generic cloud aws azure gcp gke linuxkit wsl2 microsoft
    standard lowlatency rt lts kubernetes docker podman kubepods lxc oci systemd-nspawn performance powersave
    schedutil ondemand conservative userspace always madvise never AVX AVX2 AVX512 SSE4.2 NEON DEFAULT ext2 ext3
    ext4 xfs btrfs zfs tmpfs overlay nfs nfs4 ceph lustre gpfs beegfs fuse fuse.sshfs fuse.s3fs fuse.gcsfuse 9p
    virtiofs ramfs squashfs vfat exfat ntfs3
    """
)
"""Words of kernels, architectures, vector units, containers, governors and file systems."""
PACKAGES = _names(
    """
    loaderbench torch torchvision nvidia-dali-cuda110 nvidia-dali-cuda120 nvidia-dali-cuda130 pillow pillow-simd
    simplejpeg opencv-python opencv-python-headless numpy nvidia-ml-py
    """
)
LAUNCHERS = _names("torchrun mpirun mpi srun slurm accelerate")


def is_layer(name: str) -> bool:
    """Whether a layer's name, or that of its type, is made of these words alone: `layer1.0.conv1`, `BatchNorm2d`."""
    if not re.fullmatch(r"[A-Za-z_.:]*(?:\d{1,3}[A-Za-z_.:]+)*(?:\d{1,3})?", name) or re.search(r"\d(\.\d+){3}", name):
        return False
    return all(word in _LAYERS for word in re.findall("[a-z]+", name.lower()))


KERNEL = re.compile(
    rf"\d+(?:[-.+]?(?:\d{{1,5}}|(?:el|fc|deb|bpo|rc)\d{{1,3}}|{'|'.join(sorted(SYSTEMS))})(?![A-Za-z\d]))*"
)
"""The begin of a kernel's version: what a machine's owner appends is left out."""

_HARDWARE = _names(
    """
    CPU GPU APU Processor processor Graphics graphics GHz MHz Core core Cores Threads threads with and at Gen
    Generation Series Max Ultra Super Ti Pro PRO Mobile Laptop Embedded Server Workstation Edition Virtual virtual
    Genuine Dual Quad Six Eight R TM tm w rev altivec supported Gfx th
    AMD EPYC Ryzen Threadripper Opteron Athlon Phenom FX Radeon Instinct Vega RX WX XT XTX AI HX
    Intel INTEL Xeon Core Atom Celeron Pentium Platinum Gold Silver Bronze Phi Iris Xe Arc UHD HD Flex Data Center
    Broadwell Haswell Skylake Cascadelake Cascade Lake Icelake Ice Sapphire Rapids Emerald Granite IBRS noTSX Westmere
    SandyBridge IvyBridge Nehalem Milan Rome Genoa Turin Bergamo Naples
    NVIDIA GeForce Tesla Quadro GRID TITAN Titan RTX GTX Grace Hopper Blackwell Ada Ampere Volta Turing Superchip SXM
    PCIe PCIE PCI NVL HBM MIG DGX GB MB Tegra Jetson Orin Xavier Thor Nano Spark
    ARM Arm ARMv AArch Cortex Neoverse Apple Ampere Altra AmpereOne Graviton Kunpeng Axion Cobalt Qualcomm Snapdragon
    Oryon ThunderX Cavium Fujitsu POWER Power RISC-V implementer part None
    QEMU KVM Common Hygon Zhaoxin VIA TCG version
    """
)
_MODEL_NUMBER = re.compile(
    r"[ivwx]?\d{1,5}|v\dl|0x[0-9a-f]{1,4}|[A-Z]{0,3}\d[A-Z\d]{0,6}|ARMv\d|POWER\d|1\dth|\dg\.\d{1,3}gb"
    r"|\d(?:\.\d{1,2})?(?:[GM]Hz|\+)?"
)
"""`9B14`, `i7`, `H100`, `12700K`, `v4`, `80GB`, `2.60GHz`, `0xd0c`."""


def is_hardware(name: str) -> bool:
    """Whether a processor's or GPU's name is made of its makers' words and model numbers alone. The owner of a virtual
    machine may give its processor any other name."""
    words = re.findall(r"[^\s()®™@,/-]+", name)
    numbers = [word for word in words if word not in _HARDWARE and word not in SYSTEMS]
    return len(numbers) < len(words) <= 16 and all(map(_MODEL_NUMBER.fullmatch, numbers))

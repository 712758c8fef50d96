"""What others measured, for a machine that cannot show an effect itself. Nothing here was measured by the course."""

from __future__ import annotations

from amp_course.speed.experiments.finding import Published

TOO_SMALL = Published(
    "ResNet-20 on CIFAR-10 trained in 21 minutes under Apex AMP and in 15 without: "
    "a net this small may not fill the GPU, says the answer",
    "NVIDIA/apex#297; karpathy/minGPT#51 tells the same of `torch.autocast`",
)
NO_UNITS_GPU = Published(
    "One program, three GPUs: AMP was faster on an RTX 2080 and a Jetson Xavier, and much slower on a GTX 1650, which has no "
    "tensor cores",
    "NVIDIA/apex#806",
)
NO_UNITS_CPU = Published(
    "On a CPU without bf16 units, five epochs of a small regression took 12.7 s in fp32 and 1,160 s under autocast",
    "pytorch/pytorch#118499",
)
HOST_READS = Published(
    "On a GPU each such read waits until the queue is empty; Accelerate's `scaler.get_scale()` did it twice a step",
    "huggingface/accelerate#1714",
)
ODD_SIZES_GPU = Published(
    "On a Hopper GPU in bf16, padding the inner size from 588 to 592 made one matmul 3.5 times as fast, 131 to 37 µs",
    "m87-labs/kestrel PR#143",
)
ODD_SIZES_BF16 = Published(
    "In bf16 on a GPU, ten matmuls with 100,000 rows took 0.10 ms with 4 columns and 2.8 ms with 5",
    "pytorch/pytorch#106469; #146817 reports a factor of 100 on an A100",
)
CAST_COST = Published(
    "On an A100, too, a linear layer under autocast is slower than in plain 16 bits at small batches, because the casts "
    "can take longer than the matmul",
    "huggingface/transformers#15026",
)
WAITING = Published(
    "In a training of Lag-Llama, 84.7 of 99.7 s went into waiting for the next batch",
    "time-series-foundation-models/lag-llama#51",
)
WORKERS = Published(
    "ResNet-50 on ImageNet, 48 cores: an epoch took 7:48, 7:46 and 7:47 minutes with 32, 48 and 64 workers. More than "
    "enough changes nothing",
    "experience report to FlyEgle/imageclassification",
)
THREADS = Published(
    "Where a GPU does the work, their number matters little: ResNet-50 with OMP_NUM_THREADS at 1, 2 and 4 took 7:47, 7:51 and "
    "7:50 minutes an epoch; AMP, 4:46",
    "experience report to FlyEgle/imageclassification",
)
CHANNELS_LAST = Published(
    "ResNet-50 under Apex AMP on an A100: 1,450 images a second contiguous, 2,150 in channels_last; another reader "
    "of the thread saw no difference. Some shapes lose: a grouped convolution on a V100 took 143 ms instead of 4.1",
    "NVIDIA/apex#1445; pytorch/pytorch#34977",
)
FUSED = Published(
    "Llama 3 8B on 8 A100s: fused AdamW raised the utilisation of the GPUs by 1.5 to 2 percentage points",
    "pytorch/torchtitan PR#355",
)
COMPILE = Published(
    "PyTorch's own benchmarks show 1.3 to 2 times the speed on real models",
    "documentation of torch.compile, pytorch#93794",
)
GRAPHS = Published(
    "NVIDIA reports 1.2 to 3 times the speed, where launches were the bottleneck",
    "CUDA Graph Best Practice for PyTorch",
)
ATTENTION = Published(
    "When fused attention came to CPUs, its authors showed up to 3 times the speed on models with attention",
    "pytorch/rfcs PR#56",
)

"""Time all-reduces of several sizes; rank 0 prints the bytes of each, and the seconds of the
fastest:

torchrun --standalone --nproc-per-node 2 time_all_reduce.py
"""

import os
import time

import torch
import torch.distributed as dist


def main() -> None:
    gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    # 1 KiB to 16 MiB
    buckets = [torch.zeros(2**exponent // 4, device=device) for exponent in range(10, 25, 2)]
    seconds: list[list[float]] = [[] for _ in buckets]
    for _ in range(20):  # all sizes in turn, so a slow moment costs each of them one try
        for bucket, measured in zip(buckets, seconds, strict=True):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(bucket)
            if gpu:
                torch.cuda.synchronize()
            measured.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        for bucket, measured in zip(buckets, seconds, strict=True):
            print(bucket.nbytes, min(measured), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

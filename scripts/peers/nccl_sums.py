#!/usr/bin/env python3
"""Sums over all GPUs of this machine by NCCL, as PyTorch calls it: the yardstick of ranks_bench.

One process a GPU; vectors of f32; the slowest rank's time of a call behind others of its kind.
"""
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [1 << 10, 1 << 12, 1 << 13, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 27, 1 << 28]
REPETITIONS = 3


def rank(index, ranks):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.cuda.set_device(index)
    dist.init_process_group("nccl", rank=index, world_size=ranks, device_id=torch.device("cuda", index))
    for size in SIZES:
        data = torch.zeros(size // 4, device="cuda")
        calls = max(8, min(400, (256 << 20) // size))
        least = float("inf")
        for _ in range(20):
            dist.all_reduce(data)
        for _ in range(REPETITIONS):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(data)
            torch.cuda.synchronize()
            least = min(least, (time.perf_counter() - begin) / calls)
        slowest = torch.tensor([least], device="cuda")
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if index == 0:
            seconds = slowest.item()
            sent = 2 * (ranks - 1) / ranks * size
            print(f"{size:12d} {seconds * 1e6:12.2f} {sent / seconds / 1e9:16.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    count = torch.cuda.device_count()
    if count < 2:
        raise SystemExit("nccl_sums: sums take two GPUs")
    print(f"NCCL, {count} GPUs\n{'bytes':>12} {'sum, us':>12} {'sent, GB/s':>16}", flush=True)
    mp.spawn(rank, args=(count,), nprocs=count)

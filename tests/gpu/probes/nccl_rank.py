"""One rank of an all-reduce: nccl_rank.py RANK COUNT PORT."""

import sys

import torch
import torch.distributed as dist

rank, count, port = map(int, sys.argv[1:])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
value = torch.ones(2**20, device="cuda")
dist.all_reduce(value)
torch.cuda.synchronize()
assert float(value[0]) == count
dist.destroy_process_group()

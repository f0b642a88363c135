"""An elastic training in Horovod's words that fails once, as its second argument says."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

import stepladder.compat.horovod.torch as hvd

hvd.init()
how, out = sys.argv[1:]
weight = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(weight.weight)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weight.parameters(), lr=1.0))
sampler = hvd.elastic.ElasticSampler(range(16), shuffle=False)
state = hvd.elastic.TorchState(weight, optimizer, sampler=sampler, batch=0)
resets: list[int] = []
state.register_reset_callbacks([lambda: resets.append(state.batch)])
fuse = Path(f"{out}-{hvd.rank()}.fuse")


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> list[int]:
    seen = []
    for example in list(state.sampler):
        state.optimizer.zero_grad()
        (-state.model(torch.ones(1, 1)).sum()).backward()
        state.optimizer.step()
        seen.append(example)
        if state.batch == 4 and not fuse.exists():
            fuse.touch()
            if how == "raise":
                raise hvd.HorovodInternalError("a collective failed")
            if hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        state.batch += 1
        state.sampler.record_batch(state.batch, 1)
        if state.batch % 2 == 0:
            state.commit()
    return seen


seen = train(state)
Path(f"{out}-{hvd.rank()}.txt").write_text(
    f"{state.batch} {float(weight.weight):g} {resets} {seen}"
)

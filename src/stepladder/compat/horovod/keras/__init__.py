"""Drop-in replacement of Horovod for Keras 3 on its torch backend.

    import stepladder.compat.horovod.keras as hvd

Start the script with `torchrun --nproc-per-node 4 train.py`, or by a `HorovodRunner`.
"""

from stepladder.compat.horovod.collectives import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    barrier,
)
from stepladder.compat.horovod.compression import Compression
from stepladder.compat.horovod.keras import callbacks
from stepladder.compat.horovod.keras.optimizer import DistributedOptimizer
from stepladder.compat.horovod.keras.values import (
    allgather,
    allreduce,
    broadcast,
    load_model,
)
from stepladder.compat.horovod.objects import (
    allgather_object,
    broadcast_object,
)
from stepladder.compat.horovod.session import (
    HorovodInternalError,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)

__all__ = [
    "callbacks",
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "barrier",
    "Compression",
    "DistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "load_model",
    "allgather_object",
    "broadcast_object",
    "HorovodInternalError",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
]

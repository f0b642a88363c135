"""A program with a Spark session that calls HorovodRunner, and prints what it returned."""

from __future__ import annotations

import json

from stepladder.compat.horovod import HorovodRunner
from stepladder.errors import StepladderError


def main(base: float, failing: int = -1) -> list[float]:
    import torch

    from stepladder.compat.horovod import torch as hvd

    hvd.init()
    if hvd.rank() == failing:
        raise ValueError("the third batch")
    total = hvd.allreduce(torch.tensor(base + hvd.rank()), op=hvd.Sum)
    return [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), float(total)]


def error_of(num: int, **kwargs: int) -> str:
    try:
        HorovodRunner(np=num).run(main, base=3.0, **kwargs)
    except StepladderError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    seen = {
        "result": HorovodRunner(np=2).run(main, base=3.0),
        "failed": error_of(2, failing=1),
        "too_few": error_of(3),
    }
    print(json.dumps(seen))

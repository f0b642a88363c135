"""A program connected to Ray that calls HorovodRunner, and prints what it returned."""

from __future__ import annotations

import json

import ray

from stepladder.compat.horovod import HorovodRunner
from tests.spark.horovod_spark import error_of, main

if __name__ == "__main__":
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, object_store_memory=100 * 1024**2
    )
    seen = {
        "result": HorovodRunner(np=2).run(main, base=3.0),
        "failed": error_of(2, failing=1),
        "too_few": error_of(3),
    }
    print(json.dumps(seen))

"""One rank of a script in the words of Horovod for Keras: writes what it computed to a file."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch

import stepladder.compat.horovod.keras as hvd
import stepladder.compat.horovod.torch as of_torch

BATCH = 12  # of all ranks together


class Rates(keras.callbacks.Callback):
    """Notes the learning rate of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(self.model.optimizer.learning_rate))


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return four batches; each rank takes its part of each batch, in order."""
    random = np.random.default_rng(3)
    inputs = random.normal(size=(4, BATCH, 4)).astype("float32")
    targets = random.normal(size=(4, BATCH, 2)).astype("float32")
    mine = slice(hvd.rank() * BATCH // hvd.size(), (hvd.rank() + 1) * BATCH // hvd.size())
    return inputs[:, mine].reshape(-1, 4), targets[:, mine].reshape(-1, 2)


def model() -> keras.Model:
    keras.utils.set_random_seed(7 + hvd.rank())  # so that the broadcast is needed
    hidden = keras.layers.Dense(8, activation="tanh")
    return keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(2)])


def trained(
    optimizer: keras.optimizers.Optimizer,
    folder: Path,
    distributed: Callable[[Any], Any] = hvd.DistributedOptimizer,
) -> dict[str, Any]:
    net = model()
    net.compile(optimizer=distributed(optimizer), loss="mse", metrics=["mae"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    size = BATCH // hvd.size()
    how = {"batch_size": size, "shuffle": False, "verbose": 0, "epochs": 2}
    seen = net.fit(*data(), callbacks=callbacks, **how)
    path = folder / f"{type(optimizer).__name__}-{hvd.size()}-{hvd.rank()}.keras"
    net.save(path)
    plain = keras.saving.load_model(path)
    return {
        "weights": net.get_weights(),
        "history": seen.history,
        "saved": type(plain.optimizer).__name__,
        "is_plain": not hasattr(plain.optimizer, "hvd_op"),
        "iterations": int(plain.optimizer.iterations),
        "is_distributed": hasattr(hvd.load_model(path).optimizer, "hvd_op"),
    }


def warmed_up() -> dict[str, Any]:
    net, rates = model(), Rates()
    optimizer = keras.optimizers.SGD(0.01 * hvd.size(), momentum=0.9)
    net.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss="mse")
    warmup = hvd.callbacks.LearningRateWarmupCallback(warmup_epochs=2)
    later = hvd.callbacks.LearningRateScheduleCallback(
        initial_lr=0.01 * hvd.size(), multiplier=0.1, start_epoch=3
    )
    how = {"batch_size": BATCH // hvd.size(), "shuffle": False, "verbose": 0, "epochs": 4}
    seen = net.fit(*data(), callbacks=[warmup, later, rates], **how)
    return {"rates": rates.rates, "lr": seen.history["lr"], "momentum": optimizer.momentum}


def unused() -> list[Any]:
    """Rank 1 has no gradient for the first variable, and no rank has one for the last."""
    variables = [keras.Variable([0.0]) for _ in range(3)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    first = torch.tensor([4.0]) if hvd.rank() == 0 else None
    grads = [first, torch.tensor([2.0]), None]
    sent = optimizer._reduced(grads, variables)
    return [None if value is None else value.tolist() for value in sent]


def main() -> None:
    hvd.init()
    folder = Path(sys.argv[1])
    result = {
        "SGD": trained(keras.optimizers.SGD(0.1, momentum=0.9), folder),
        "Adam": trained(keras.optimizers.Adam(0.01), folder, of_torch.DistributedOptimizer),
        "warmup": warmed_up(),
        "unused": unused() if hvd.size() == 2 else None,
        "values": (
            hvd.allreduce(np.array([1.0 + hvd.rank()])).tolist(),
            hvd.broadcast(3 + hvd.rank(), root_rank=0).tolist(),
            hvd.allgather(np.array([hvd.rank()])).tolist(),
        ),
    }
    (folder / f"{hvd.size()}-{hvd.rank()}").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()

"""Digits with Keras 3 and HorovodRunner: the steps of the listing that Databricks documents.

    pip install 'stepladder[keras,horovod]'
    python examples/horovod_keras.py checkpoints

Differences from a listing for TensorFlow: the import of hvd, and `keras` in place of `tf.keras`.
np=-2 is two processes on this machine; np=2 uses the active Spark session.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from stepladder.compat.horovod import HorovodRunner

NUM_CLASSES = 10
BATCH_SIZE = 32
EPOCHS = 4
SEGMENTS = ["abcdef", "bc", "abdeg", "abcdg", "bcfg"]  # of the digits 0 to 4 on a display
SEGMENTS += ["acdfg", "acdefg", "abc", "abcdefg", "abcdfg"]
PLACES = {  # rows and columns of each segment
    "a": (slice(4, 7), slice(8, 20)),
    "b": (slice(4, 14), slice(18, 21)),
    "c": (slice(13, 24), slice(18, 21)),
    "d": (slice(21, 24), slice(8, 20)),
    "e": (slice(13, 24), slice(7, 10)),
    "f": (slice(4, 14), slice(7, 10)),
    "g": (slice(12, 15), slice(8, 20)),
}


def draw_digits(num, seed):
    """Return pictures (n, 28, 28, 1) of digits, moved by up to three pixels and with noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, NUM_CLASSES, num)
    pictures = random.normal(0.2, 0.2, (num, 28, 28)).astype("float32")
    for picture, label in zip(pictures, labels, strict=True):
        shape = np.zeros((28, 28), "float32")
        for segment in SEGMENTS[label]:
            shape[PLACES[segment]] = 0.8
        picture += np.roll(shape, random.integers(-3, 4, 2), axis=(0, 1))
    return pictures.clip(0, 1)[..., None], labels


def get_dataset(rank=0, size=1):
    """Return every size-th example of the training set, and the test set."""
    x_train, y_train = draw_digits(2048, seed=0)
    return (x_train[rank::size], y_train[rank::size]), draw_digits(512, seed=1)


def get_model():
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(NUM_CLASSES, activation="softmax"),
        ]
    )


def train_hvd(checkpoint_dir, learning_rate=1.0):
    import stepladder.compat.horovod.keras as hvd  # before keras: it chooses the torch backend

    hvd.init()
    import keras
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank())
    (x_train, y_train), (x_test, y_test) = get_dataset(hvd.rank(), hvd.size())
    keras.utils.set_random_seed(hvd.rank())  # each rank shuffles and drops in its own way
    model = get_model()
    optimizer = keras.optimizers.Adadelta(learning_rate=learning_rate * hvd.size())
    model.compile(
        optimizer=hvd.DistributedOptimizer(optimizer),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(warmup_epochs=1),
    ]
    if hvd.rank() == 0:  # other ranks would overwrite the same files
        path = f"{checkpoint_dir}/checkpoint-{{epoch}}.keras"
        callbacks.append(keras.callbacks.ModelCheckpoint(path))
    model.fit(
        x_train,
        y_train,
        batch_size=BATCH_SIZE,
        callbacks=callbacks,
        epochs=EPOCHS,
        verbose=2 if hvd.rank() == 0 else 0,
        validation_data=(x_test, y_test),
    )
    return model.evaluate(x_test, y_test, verbose=0)


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "checkpoints"
    Path(folder).mkdir(parents=True, exist_ok=True)
    loss, accuracy = HorovodRunner(np=-2).run(train_hvd, checkpoint_dir=folder)
    print(f"test loss {loss:.4f}, accuracy {accuracy:.4f}")

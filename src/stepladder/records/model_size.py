"""What decides how a model is divided among devices: bytes to keep, and bytes to send."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Bytes of a model and of its training; those of activations are for one example.

    Attributes:
        weights: all weights and buffers; trained: weights that are trained, and their gradients.
        states: of the optimizer.
        kept: activations that a step keeps for its backward pass.
        copies: what it keeps besides, whatever the batch, such as weights in 16 bits.
        unit: the largest part of the model that is put together at once if it is sharded.
        divided: weights that tensor parallelism divides; 0: it has nothing to divide.
        shares: into how many parts it can divide each of them, and all divisors of that.
        inner: of the activations, those that it divides.
        summed: activations that it adds up in a forward pass.
        cut: activations that cross a cut in the middle of the model; None: it cannot be cut.
        num_cuts: places where the model can be cut.
    """

    weights: int
    trained: int
    states: int
    kept: int
    unit: int
    copies: int = 0
    divided: int = 0
    shares: int = 0
    inner: int = 0
    summed: int = 0
    cut: int | None = None
    num_cuts: int = 0

    @property
    def fixed(self) -> int:
        """Bytes of a part of the model that do not depend on the batch: weights, gradients, states.

        Those that are divided among devices with the model.
        """
        return self.weights + self.trained + self.states

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
        num_sums: places where it does, in a forward pass.
        cut: activations that cross a cut in the middle of the model; None: it cannot be cut.
        num_cuts: places where the model can be cut.
        peaks: what a backward pass holds at the same time, as pairs of activations of an example
            and gradients: the largest for some number of examples; empty: not counted.
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
    num_sums: int = 0
    cut: int | None = None
    num_cuts: int = 0
    peaks: tuple[tuple[int, int], ...] = ()

    def step_bytes(self, examples: int) -> int:
        """Return the peak of a step on one device that has all of the model.

        Gradients appear while activations are freed, so that the two are not all there at once.
        """
        held = [examples * kept + gradients for kept, gradients in self.peaks]
        most = max(held, default=examples * self.kept + self.trained)
        return self.weights + self.states + self.copies + most

    @property
    def fixed(self) -> int:
        """Bytes of a part of the model that do not depend on the batch: weights, gradients, states.

        Those that are divided among devices with the model.
        """
        return self.weights + self.trained + self.states

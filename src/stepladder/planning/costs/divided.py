"""What models in parts send, and how long their devices wait, by formula."""

from __future__ import annotations

from stepladder.planning.costs.all_reduce import Group, all_reduce_s
from stepladder.records.collectives import Link


def fsdp_s(group: Group, num_bytes: float, *, is_resharded: bool = True) -> float:
    """Return the seconds of a sharded step's messages: an all-gather is half of an all-reduce.

        3 (p - 1) / p n, or 2 (p - 1) / p n if weights are kept between forward and backward pass

    Args:
        num_bytes: of all trained weights.
        is_resharded: weights are freed after the forward pass, and fetched again.

    Source: Rajbhandari et al. 2020, "ZeRO", section 7, arXiv:1910.02054.
    """
    halves = 3 if is_resharded else 2
    return halves / 2 * all_reduce_s("native", group, num_bytes)


def tensor_parallel_s(group: Group, summed_bytes: float, *, num_sums: int) -> float:
    """Return the seconds of tensor parallelism's messages in a step, which nothing hides.

    Args:
        summed_bytes: activations of the examples of a step that are added up at one place.
        num_sums: places in a forward pass: an attention and an MLP have one each. The backward pass
            has as many.

    Source: Shoeybi et al. 2019, "Megatron-LM", section 3, arXiv:1909.08053.
    """
    return 2 * num_sums * all_reduce_s("native", group, summed_bytes)


def pipeline_bubble_frac(num_stages: int, num_parts: int, *, interleaved: int = 1) -> float:
    """Return the share of a step in which a stage waits: (S - 1) / (v M + S - 1).

    Args:
        num_stages: S.
        num_parts: M, micro-batches of a step.
        interleaved: v, groups of layers that each device has.

    Source: Narayanan et al. 2021, section 2.2, arXiv:2104.04473.
    """
    waits = num_stages - 1
    return waits / (interleaved * num_parts + waits) if waits else 0.0


def pipeline_s(
    computed_s: float, *, num_stages: int, num_parts: int, cut_bytes: float, link: Link
) -> float:
    """Return the seconds of a pipeline's step.

    Args:
        computed_s: of all examples of the step on one device.
        num_stages, num_parts: see `pipeline_bubble_frac`.
        cut_bytes: activations of one part that cross a cut; as many gradients return.
    """
    busy_s = computed_s / num_stages
    part_s = 2 * (link.alpha_s + cut_bytes * link.beta_s) if num_stages > 1 else 0.0
    waits = num_stages - 1
    return busy_s * (1 + waits / num_parts) + waits * part_s

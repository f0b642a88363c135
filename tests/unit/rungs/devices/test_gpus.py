"""GPUs by data sheet, the user's own list, and the predicted gain of a larger one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.config.choices import Precision
from stepladder.config.recipe import Recipe
from stepladder.errors import DataError
from stepladder.records.profile import Profile
from stepladder.rungs import GPUS, RUNGS, Gpu, read_gpus, rungs_with
from stepladder.rungs.devices.larger_gpu import LargerGpu

HEAD = "name,half_flops_per_s,fp32_flops_per_s,bytes_per_s,price_per_hour\n"
SMALL = Gpu(name="Small", half_flops_per_s=4e12, fp32_flops_per_s=1e12, bytes_per_s=1e11)
LARGE = Gpu(name="Large", half_flops_per_s=40e12, fp32_flops_per_s=8e12, bytes_per_s=2e11)


def on_small(make_profile: Callable[..., Profile], *, mfu: float) -> Profile:
    return make_profile(
        device="cuda",
        device_name="MAKER Small-16GB",
        peak_flops_per_s=0.9e12,
        bandwidth_bytes_per_s=0.8e11,
        mfu=mfu,
        phases_s={"forward": 1.0},
    )


def test_a_list_is_read_with_prices_where_they_are_known(tmp_path: Path) -> None:
    path = tmp_path / "gpus.csv"
    path.write_text(HEAD + "Small,4e12,1e12,1e11,\nLarge,40e12,8e12,2e11,2.5\n", encoding="utf-8")
    assert read_gpus(path) == (SMALL, replace(LARGE, price_per_hour=2.5))


def test_a_list_may_have_the_rate_of_tf32(tmp_path: Path) -> None:
    path = tmp_path / "gpus.csv"
    text = HEAD.replace("\n", ",tf32_flops_per_s\n") + "Small,4e12,1e12,1e11,,2e12\n"
    path.write_text(text + "Large,40e12,8e12,2e11,2.5,\n", encoding="utf-8")
    with_tf32 = replace(SMALL, tf32_flops_per_s=2e12)
    assert read_gpus(path) == (with_tf32, replace(LARGE, price_per_hour=2.5))


def test_a_list_may_have_machines_with_several_gpus(
    tmp_path: Path, make_profile: Callable[..., Profile]
) -> None:
    path = tmp_path / "gpus.csv"
    text = HEAD.replace("\n", ",devices\n") + "Large,40e12,8e12,2e11,2.5,\n"
    path.write_text(text + "Large,40e12,8e12,2e11,8,4\n", encoding="utf-8")
    one, four = read_gpus(path)
    assert (one.devices, four.devices) == (1, 4)
    found = LargerGpu((SMALL, four, one)).predict(on_small(make_profile, mfu=0.6), Recipe())
    assert found.note.endswith("; 2.5 per hour")  # one of them
    path.write_text(text + "Large,40e12,8e12,2e11,8,1.5\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"devices: 1\.5 is not a whole number"):
        read_gpus(path)


def test_convolutions_in_32_bits_run_at_the_rate_of_tf32() -> None:
    gpu = replace(SMALL, tf32_flops_per_s=2e12)
    assert gpu.flops_per_s(Precision.FP32, has_conv=True) == 2e12
    assert gpu.flops_per_s(Precision.FP32) == 1e12
    assert gpu.flops_per_s(Precision.BF16, has_conv=True) == 4e12
    assert SMALL.flops_per_s(Precision.FP32, has_conv=True) == 1e12


def test_a_gpu_with_tf32_computes_a_convnet_so_many_times_faster(
    make_profile: Callable[..., Profile],
) -> None:
    large = replace(LARGE, tf32_flops_per_s=32e12)
    busy = on_small(make_profile, mfu=0.6)
    assert LargerGpu((SMALL, large)).predict(busy, Recipe()).gain == pytest.approx(32)
    patches_alone = replace(busy, conv_frac=0.1)  # as in a ViT: the rest are matrix products
    found = LargerGpu((SMALL, large)).predict(patches_alone, Recipe())
    assert found.gain == pytest.approx(8)
    # values that the list lacks for one GPU do not count against it
    small = replace(SMALL, tf32_flops_per_s=4e12)
    assert LargerGpu((small, LARGE)).predict(busy, Recipe()).gain == pytest.approx(8)
    assert LargerGpu((small, large)).predict(busy, Recipe()).gain == pytest.approx(8)


def test_a_list_that_a_spreadsheet_saved_is_read(tmp_path: Path) -> None:
    path = tmp_path / "gpus.csv"
    path.write_text(HEAD + "Small,4e12,1e12,1e11,\n", encoding="utf-8-sig")
    assert read_gpus(path) == (SMALL,)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "name,price\nSmall,1\n",
            "the list of GPUs lacks the columns half_flops_per_s, fp32_flops_per_s",
        ),
        (HEAD, "has no rows"),
        (HEAD + "Small,4e12,fast,1e11,\n", "fp32_flops_per_s: 'fast' is not a number above 0"),
        (HEAD + "Small,4e12,1e12,-1,\n", "bytes_per_s: '-1' is not a number above 0"),
        (HEAD + "Small,4e12\n", "fp32_flops_per_s: '' is not a number above 0"),
    ],
)
def test_a_bad_list_is_refused_with_its_place(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "gpus.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"gpus\.csv") as caught:
        read_gpus(path)
    assert what in str(caught.value)


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_gpus(tmp_path / "none.csv")


def test_near_the_peak_the_peaks_are_compared(make_profile: Callable[..., Profile]) -> None:
    found = LargerGpu((SMALL, LARGE)).predict(on_small(make_profile, mfu=0.6), Recipe())
    assert found.gain == pytest.approx(8)


def test_far_from_the_peak_the_bandwidths_are_compared(
    make_profile: Callable[..., Profile],
) -> None:
    found = LargerGpu((SMALL, LARGE)).predict(on_small(make_profile, mfu=0.1), Recipe())
    assert found.gain == pytest.approx(2)


def test_with_prices_the_cheapest_training_is_named(make_profile: Callable[..., Profile]) -> None:
    middle = replace(LARGE, name="Middle", bytes_per_s=1.5e11, price_per_hour=1.0)
    dear = replace(LARGE, price_per_hour=3.0)
    profile = on_small(make_profile, mfu=0.1)
    assert LargerGpu((SMALL, middle, LARGE)).predict(profile, Recipe()).note.startswith("Middle")
    assert LargerGpu((SMALL, middle, dear)).predict(profile, Recipe()).note.startswith("Middle")


def test_the_longest_name_that_fits_is_this_machines(
    make_profile: Callable[..., Profile],
) -> None:
    profile = replace(on_small(make_profile, mfu=0.1), device_name="NVIDIA H200")
    assert LargerGpu().why_not(profile, Recipe()) == "no GPU in the list would be faster"
    with_80gb = replace(profile, device_name="NVIDIA A100-SXM4-80GB")
    found = LargerGpu().predict(with_80gb, Recipe())
    assert found.inputs["more_bytes"] == pytest.approx(4800 / 2039)


def test_a_gpu_that_the_users_list_lacks_is_known_from_ours(
    make_profile: Callable[..., Profile],
) -> None:
    profile = replace(on_small(make_profile, mfu=0.1), device_name="Tesla T4")
    offered = replace(LARGE, bytes_per_s=960e9)
    assert LargerGpu((offered,)).predict(profile, Recipe()).inputs["more_bytes"] == 3  # T4: 320
    own = replace(SMALL, name="T4", bytes_per_s=480e9)
    assert LargerGpu((own, offered)).predict(profile, Recipe()).inputs["more_bytes"] == 2


def test_the_users_list_replaces_ours_in_the_ladder() -> None:
    rungs = rungs_with((SMALL,))
    assert [rung.name for rung in rungs] == [rung.name for rung in RUNGS]
    (larger,) = (rung for rung in rungs if isinstance(rung, LargerGpu))
    assert larger.gpus == (SMALL,)


def test_no_gpu_of_ours_has_a_price_and_all_names_differ() -> None:
    assert all(gpu.price_per_hour is None for gpu in GPUS)
    assert len({gpu.name for gpu in GPUS}) == len(GPUS)

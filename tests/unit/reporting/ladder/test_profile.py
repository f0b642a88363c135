"""The profile's rows and texts, from profiles with easy numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepladder.records.profile import Profile, Provenance, TrainingTime
from stepladder.reporting.ladder.profile import ProfileRow, ProfileView, profile_view

TIME = TrainingTime(epochs=10, steps_per_epoch=100, step_s=0.1)
CACHED = TrainingTime(one_time_s={"features": 5.0}, epochs=10, steps_per_epoch=100, step_s=0.01)


def view(*profiles: Profile) -> ProfileView:
    found = profile_view(profiles)
    assert found is not None
    return found


def row(found: ProfileView, name: str) -> ProfileRow:
    return next(row for row in found.rows if row.name.startswith(name))


def test_why_the_noise_scale_is_unknown_is_in_its_row(
    profile_of: Callable[..., Profile],
) -> None:
    unknown: dict[str, Any] = {"noise_scale_unknown_because": "too few examples"}
    alone = row(view(profile_of(TIME, **unknown)), "gradient noise scale")
    assert alone.before == alone.after == "unknown: too few examples"
    both = view(profile_of(TIME, noise_scale=41.0), profile_of(CACHED, **unknown))
    assert row(both, "gradient noise scale").before == "41"
    assert row(both, "gradient noise scale").after == "unknown: too few examples"
    earlier = view(profile_of(TIME))  # of a ledger without a reason
    assert not any(row.name.startswith("gradient noise scale") for row in earlier.rows)


def test_utilisation_says_whether_it_is_a_steps_or_the_trunks(
    profile_of: Callable[..., Profile],
) -> None:
    found = view(profile_of(TIME, mfu=0.2), profile_of(CACHED, mfu=0.4))
    mfu = row(found, "model FLOPs utilisation")
    assert (mfu.before, mfu.after) == ("20.0 %", "40.0 % in the trunk")
    assert "the trunk's single pass over the examples reached 40.0 %" in found.note
    assert "At the end, a step reached 20.0 %" in view(profile_of(TIME, mfu=0.2)).note


def test_disk_and_checkpoint_are_reported_where_they_were_measured(
    profile_of: Callable[..., Profile],
) -> None:
    found = view(profile_of(TIME, disk_bytes_per_s=2e8, save_s=0.025))
    assert row(found, "disk read bandwidth").after == "200 MB/s"
    assert row(found, "time of the final checkpoint").after == "25 ms"
    names = [row.name for row in view(profile_of(TIME)).rows]
    assert not any(name.startswith(("disk read bandwidth", "time of the final")) for name in names)


def test_the_roofline_says_on_which_side_of_its_ridge_the_job_is(
    profile_of: Callable[..., Profile],
) -> None:
    # the ridge is at 1e12 / 1e11 = 10 operations per byte
    machine = {"peak_flops_per_s": 1e12, "bandwidth_bytes_per_s": 1e11}
    low = view(profile_of(TIME, forward_flops=4e6, forward_bytes=1e6, **machine))
    assert row(low, "arithmetic intensity of the forward pass").after == "4"
    assert row(low, "roofline limit of the forward pass").after == "400 GFLOP/s"
    assert (
        "has 4 FLOP per byte, without fusion of layers: it is limited by memory bandwidth, to 400"
        in low.note
    )
    high = view(profile_of(TIME, forward_flops=4e7, forward_bytes=1e6, **machine))
    assert row(high, "roofline limit of the forward pass").after == "1 TFLOP/s"
    assert "has 40 FLOP per byte, without fusion of layers: it is limited by compute" in high.note
    unknown = view(profile_of(TIME, forward_flops=4e7, **machine))
    assert "it is limited by" not in unknown.note


def test_what_reading_takes_is_reported_in_its_parts(profile_of: Callable[..., Profile]) -> None:
    facts = {"loader_fetch_s": 0.0002, "loader_decode_s": 0.003, "fetch_bytes_per_s": 1e8}
    far = {"link_bytes_per_s": 4.5e7, "cache_hit_frac": 0.25}
    provenance = dict.fromkeys((*facts, *far), Provenance.MEASURED)
    found = view(profile_of(TIME, **facts, **far, provenance=provenance))
    told = {
        "time to read an example": "0.2 ms",
        "time to decode an example": "3 ms",
        "read bandwidth of one thread": "100 MB/s",
        "download bandwidth of the object store": "45 MB/s",
        "hit rate of the file cache": "25.0 %",
    }
    for name, said in told.items():
        assert (row(found, name).after, row(found, name).source) == (said, "measured")
    pixels = view(profile_of(TIME, **facts | {"loader_decode_s": 0.0}))
    assert not any(row.name.startswith("time to decode") for row in pixels.rows)

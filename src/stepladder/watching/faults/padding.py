"""Padding that is read as if it were data."""

from __future__ import annotations

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.inputs import Misread, PaddingSeen
from stepladder.watching.seen.seen import Seen

_MIN_MISREAD = 2  # batches
_MOST = 0.8  # of the inspected batches
_LEAST_ENDED = 0.5  # of the rows end in padding


def padding_misread(seen: Seen) -> Answer:
    """Compares key padding masks with token ids, and inputs of linear layers with the last output.

    A mask is inverted if it is True exactly where the ids are not padding. The output of a
    recurrent layer at the last place is that of padding if most sequences end before.
    """
    looked = [one for one in seen.paddings if one.num_looked]
    if not looked:
        return Unseen("no padded sequences were inspected in attention or recurrent layers")
    for one in looked:
        if one.num_misread < _MIN_MISREAD or one.num_misread < _MOST * one.num_looked:
            continue
        found = _mask(one) if one.misread is Misread.MASK else _last(one)
        if found is not None:
            return found
    return Sound("padding was not read as data")


def _mask(one: PaddingSeen) -> Found:
    return Found(
        evidence=f"the key padding mask of {one.layer} is True at all {one.num_real:,} real tokens "
        f"of a batch and False at its {one.num_padded:,} places of padding (id {one.padding}), in "
        f"{one.num_misread} of {one.num_looked} inspected batches: it is inverted, so attention "
        "sees only the padding",
        fix="Pass a mask that is True at the padding: src_key_padding_mask=(tokens == "
        f"{one.padding}).",
        where=one.where,
        numbers={"num_real": one.num_real, "num_padded": one.num_padded},
    )


def _last(one: PaddingSeen) -> Found | None:
    if one.num_ended < _LEAST_ENDED * one.num_rows:
        return None
    share = 100 * one.num_padded / (one.num_padded + one.num_real)
    return Found(
        evidence=f"a linear layer receives the output of {one.layer} at the last place of padded "
        f"sequences, but {one.num_ended} of {one.num_rows} inspected sequences end before "
        f"({share:.0f} % of their places are padding): it is the output after the padding",
        fix="Read the output at the last real token, out[torch.arange(n), lengths - 1], or pass "
        "pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False) and read h_n.",
        where=one.where,
        severity=Severity.WARNING,
        numbers={"num_ended": one.num_ended, "num_rows": one.num_rows},
    )

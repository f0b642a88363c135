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
    """Compares the keys that attention hides with token ids, and reads last outputs of padding.

    A mask is inverted if it hides exactly the ids that are not padding. The output of a recurrent
    layer at the last place is that of padding if most sequences end before.
    """
    for end in seen.packed_ends:
        if end.num_steps >= _MIN_MISREAD:
            return Found(
                evidence="the loss depends on the last place of the output of pad_packed_sequence, "
                f"but {end.num_short} of {end.num_rows} inspected sequences end before: there, it "
                "is padding, all zeros",
                fix="Read h_n, which the recurrent layer returns, or the last real place, "
                "out[torch.arange(n), lengths - 1].",
                where=end.where,
                severity=Severity.WARNING,
                numbers={"num_short": end.num_short, "num_rows": end.num_rows},
            )
    looked = [one for one in seen.paddings if one.num_looked]
    if not looked:
        return Unseen("no padded sequences were inspected in attention or recurrent layers")
    for one in looked:
        if one.num_misread < _MIN_MISREAD or one.num_misread < _MOST * one.num_looked:
            continue
        found = _last(one) if one.misread is Misread.LAST else _mask(one)
        if found is not None:
            return found
    return Sound("padding was not read as data")


def _mask(one: PaddingSeen) -> Found:
    real, padded = f"{one.num_real:,} real tokens", f"{one.num_padded:,} places of padding"
    often = f"in {one.num_misread} of {one.num_looked} inspected batches"
    mask = f"(tokens == {one.padding})"
    shaped = mask + one.axes
    real_shaped = shaped.replace("==", "!=")
    is_table = not one.axes.startswith("[")  # one score per token, perhaps of a free place
    evidence, fix = {
        Misread.MASK: (
            f"the key padding mask of {one.layer} is True at all {real} of a batch and False at "
            f"its {padded} (id {one.padding}), {often}: it is inverted",
            f"Pass a mask that is True at the padding: src_key_padding_mask={mask}.",
        ),
        Misread.ATTENDED: (
            f"the mask of {one.layer} is True at all {padded} of a batch (id {one.padding}) and "
            f"False at its {real}, {often}, where True means that a key takes part",
            f"Pass a mask that is True at the real tokens: attn_mask={real_shaped}.",
        ),
        Misread.ADDED: (
            f"the mask that {one.layer} adds hides all {real} of a batch and none of its {padded} "
            f"(id {one.padding}), {often}: it is inverted",
            f"Pass a mask that is True at the real tokens: attn_mask={real_shaped}.",
        ),
        Misread.SCORES: (
            f"the scores that a softmax receives hide all {real} of a batch and none of its "
            f"{padded} (id {one.padding}), {often}: their mask is inverted",
            f'Hide the padding instead: scores.masked_fill({shaped}, float("-inf")).',
        ),
    }[one.misread or Misread.MASK]
    return Found(
        evidence=f"{evidence}, so attention sees only the padding",
        fix=fix,
        where=one.where,
        severity=Severity.WARNING if one.misread is Misread.SCORES and is_table else None,
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

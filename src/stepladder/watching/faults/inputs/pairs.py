"""Faults in what the inputs of a table say about their targets."""

from __future__ import annotations

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.labels import AheadSeen, CopiesSeen, PairsSeen, Told
from stepladder.watching.seen.seen import Seen

_MIN_ROWS = 64  # distinct rows
_MIN_ROWS_OF_TWO = 200  # with only two classes, or if only the order is the same
_MANY = 8
_MIN_AGAIN = 30
_CHANGED = 0.7  # of the labels that would change by chance
_MIN_ASKED = 200
_MIN_REMEMBERED = 300
_MIN_TOKENS = 4  # distinct ones
_COPIED = 0.6  # of the tokens; the others may follow from the order of those before them
_MIN_SHIFTED = 4  # calls
_SHIFTED = 0.9  # of the calls
_SEEN_AHEAD = 0.01  # of the influence of earlier tokens; rounding is far smaller
_CLEARLY_AHEAD = 0.1  # if the operation is unknown
_NORMS = ("group_norm", "instance_norm", "layer_norm", "batch_norm")  # over places as well
_MIN_APART = 3  # pairs of reads in which a mask is mirrored in another way than its picture
_MIN_EXAMPLES_APART = 2
_BY_CHANCE = 3.0  # standard deviations
_RECURRENT = "Pass bidirectional=False: its backward direction reads the tokens to be predicted."
_ATTENTION = (
    "Hide later tokens: scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), "
    'float("-inf")) before the softmax, or is_causal=True in scaled_dot_product_attention.'
)
_HIDING = {
    "": "Let scores depend only on the tokens up to their place: mask attention above the "
    "diagonal, pad convolutions on the left, and read in one direction.",
    "multi_head_attention_forward": "Pass a causal mask to attention: "
    "nn.Transformer.generate_square_subsequent_mask(n), as mask, src_mask, tgt_mask or attn_mask.",
    "scaled_dot_product_attention": "Pass is_causal=True to scaled_dot_product_attention, or a "
    "mask that is True on and below the diagonal.",
    "conv1d": "Pad only on the left: F.pad(x, (dilation * (kernel_size - 1), 0)) before a "
    "convolution with padding=0.",
    **dict.fromkeys(("matmul", "__matmul__", "bmm", "einsum"), _ATTENTION),
    **dict.fromkeys(("gru", "lstm", "rnn_tanh", "rnn_relu"), _RECURRENT),
}


def label_in_inputs(seen: Seen) -> Answer:
    """Compares targets with columns of tables and with tokens, also later ones that a copy sees."""
    of_tokens = _copied(seen.copies) or _ahead(seen.ahead)
    if of_tokens is not None:
        return of_tokens
    tables = [one for one in seen.pairs if one.num_distinct >= _MIN_ROWS and one.num_values > 1]
    ahead = seen.ahead if seen.ahead is not None and seen.ahead.why_not is None else None
    if not tables and ahead is not None and ahead.influence < _CLEARLY_AHEAD:
        return Sound(f"the scores of {ahead.built} hardly depend on later tokens")
    if not tables:
        return Unseen("no table of inputs with one target per row was inspected, or too few rows")
    for one in tables:
        is_weak = one.num_values == 2 or one.told is Told.ORDER
        if one.told is None or (is_weak and one.num_distinct < _MIN_ROWS_OF_TWO):
            continue
        if one.is_last:
            return _of_window(one)
        return Found(
            evidence=f"in all {one.num_rows:,} inspected examples, {_words(one)}",
            fix=f"Remove {_columns(one)} from the inputs, unless it is known before the target is.",
            where=one.where,
            numbers={"column": one.columns[0], "num_examples": one.num_rows},
        )
    one = tables[0]
    return Sound(f"none of {one.num_columns} columns determines the target")


def _of_window(one: PairsSeen) -> Found:
    return Found(
        evidence=f"in all {one.num_rows:,} inspected examples, the target is equal to a value at "
        "the last position of the input: the window contains what is to be predicted, so that "
        "copying it is enough",
        fix="End the window one step earlier, as in x[i : i + n] with the target x[i + n].",
        where=one.where,
        numbers={"column": one.columns[0], "num_examples": one.num_rows},
    )


def _copied(one: CopiesSeen | None) -> Found | None:
    """Find a causal model of tokens whose targets are not shifted, and that has learned to copy."""
    if one is None or one.why_not is not None or not one.is_causal:
        return None
    if one.num_distinct < _MIN_TOKENS or one.num_copied < _COPIED * one.num_tokens:
        return None
    return Found(
        evidence=f"the targets are the input tokens themselves in all {one.num_equal} inspected "
        f"steps, and {one.built} has learned to copy the current token, not to predict the next "
        f"one: given tokens in random order, a copy of it returns {one.num_copied:,} of "
        f"{one.num_tokens:,} unchanged (without the most frequent one)",
        fix="Shift the targets by one: pass tokens[:, :-1] to the model, and tokens[:, 1:] to the "
        "loss.",
        where=one.where,
        numbers={"num_tokens": one.num_tokens, "num_copied": one.num_copied},
    )


def _ahead(one: AheadSeen | None) -> Found | None:
    """Find a model that predicts the next token and whose scores depend on it."""
    if one is None or one.why_not is not None or one.operation in _NORMS:
        return None
    if one.influence < (_SEEN_AHEAD if one.operation else _CLEARLY_AHEAD):
        return None
    num = one.num_shifted + one.num_other
    if one.num_shifted < _MIN_SHIFTED or one.num_shifted < _SHIFTED * num:
        return None
    copies = ""
    if one.num_copied >= _COPIED * one.num_tokens > 0:
        copies = (
            f"; given tokens in random order, it returns {one.num_copied:,} of {one.num_tokens:,} "
            "one place early (without the most frequent one)"
        )
    return Found(
        evidence=f"in {one.num_shifted} of {num} inspected steps, the targets are the input tokens "
        f"shifted by one, but {one.built} sees the token that it has to predict: in a copy, other "
        f"tokens after a place change its scores {one.influence:.2g} times as much as other tokens "
        f"up to there do{copies}",
        fix=_HIDING.get(one.operation or "", _HIDING[""]),
        where=one.where,
        numbers={
            "influence": one.influence,
            "num_tokens": one.num_tokens,
            "num_copied": one.num_copied,
        },
    )


def labels_misaligned(seen: Seen) -> Answer:
    """If nothing is learned: checks for labels that change, or that no simple probe predicts.

    Pictures with masks are read again after the last step: both have to be mirrored alike.
    """
    if (mirrored := _mirrored(seen)) is not None:
        return mirrored
    if not any(one.num_looked for one in seen.losses):
        return Unseen("no loss function of torch was inspected")
    for one in seen.labels:
        steps = f"{one.num_steps:,} steps"
        when = f"the {steps} of the first epoch" if one.is_remembered else f"the last {steps}"
        told = (
            f"the loss was that of a constant guess ({one.loss:.3g} in {when}, and {one.guess:.3g} "
            f"follows from the shares of the {one.num_classes} classes)"
        )
        is_changed = one.num_changed >= _CHANGED * one.chance * one.num_again
        is_again = min(one.num_again, one.num_distinct) >= _MIN_AGAIN  # and not all the same
        if is_again and is_changed and not one.is_remembered:
            return Found(
                evidence=f"{one.num_changed:,} of {one.num_again:,} examples that were seen again "
                f"had another label, about as many as by chance, and {told}",
                fix="Shuffle inputs and labels together: order = torch.randperm(n), then x[order] "
                "and y[order].",
                where=one.where,
                numbers={"num_again": one.num_again, "num_changed": one.num_changed},
            )
        scores = [score for score in (one.nearest, one.linear) if score is not None]
        is_enough = one.num_distinct >= (_MIN_REMEMBERED if one.is_remembered else _MIN_ASKED)
        if scores and is_enough and max(scores) < _BY_CHANCE:
            return Found(
                evidence=f"{told}, and neither nearest neighbours nor a linear fit predict the "
                f"labels of {one.num_distinct:,} examples better than permuted labels",
                fix="Check that inputs and labels are in the same order: shuffle and filter them "
                "with the same indices.",
                where=one.where,
                severity=Severity.INFO if one.is_noise else None,  # perhaps to try a script
                numbers={"nearest": one.nearest, "linear": one.linear},
            )
    return Sound("the loss fell below that of a constant guess, or examples predict their labels")


def _mirrored(seen: Seen) -> Found | None:
    one = seen.mirrored
    if one is None or one.num_apart < _MIN_APART or one.num_examples_apart < _MIN_EXAMPLES_APART:
        return None
    return Found(
        evidence=f"{one.dataset} mirrors pictures and masks separately: in {one.num_apart} of "
        f"{one.num_pairs} pairs of reads of one example, the picture was flipped and its mask was "
        "not, or the other way round",
        fix="Apply each geometric transform to both: draw its random numbers once per example, "
        "then flip the picture and the mask with them.",
        where=one.where,
        numbers={"num_pairs": one.num_pairs, "num_apart": one.num_apart},
    )


def _columns(one: PairsSeen) -> str:
    shown = ", ".join(map(str, one.columns[:_MANY]))
    shown += ", …" if len(one.columns) > _MANY else ""
    return f"column {shown}" if len(one.columns) == 1 else f"columns {shown}"


def _words(one: PairsSeen) -> str:
    columns, is_one = _columns(one), len(one.columns) == 1
    whole = f"{columns} of the model's {one.num_columns} inputs (counted from 0)"
    if one.told is Told.EQUAL:
        return f"{whole} {'is' if is_one else 'are'} the target itself"
    if one.told is Told.AFFINE:
        return f"{whole} {'is' if is_one else 'are'} the target times a constant, plus a constant"
    if one.told is Told.ORDER:
        return f"{whole} {'has' if is_one else 'have'} exactly the order of the targets"
    if one.told is Told.CLASS:
        has, own = ("has", "its") if is_one else ("have", "their")
        return f"{whole} {has} a value of {own} own for each of the {one.num_values} classes"
    return f"{whole} together have another value for each of the {one.num_values} classes"

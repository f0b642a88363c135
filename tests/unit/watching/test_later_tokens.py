"""Models that see the token that they have to predict, and sound ones that look like that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

START = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
V, T, D = 9, 14, 16
def sentences(n):
    first, stride = torch.randint(1, V, (n, 1)), torch.randint(1, 4, (n, 1))
    return 1 + (first + stride * torch.arange(T + 1)) % (V - 1)
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.places = nn.Embedding(V, D), nn.Parameter(0.1 * torch.randn(T, D))
        self.qkv, self.head = nn.Linear(D, 3 * D), nn.Linear(D, V)
        self.layer = nn.TransformerEncoderLayer(D, 2, 32, dropout=0.1, batch_first=True)
        self.one_way = nn.GRU(D, D, batch_first=True)
        self.both_ways = nn.LSTM(D, D // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.TransformerDecoderLayer(D, 2, 32, dropout=0.0, batch_first=True)
        self.conv, self.norm = nn.Conv1d(D, D, 3, padding=1), nn.GroupNorm(1, D)
        self.plain = nn.Conv1d(D, D, 3)
        self.to_z, self.from_z = nn.Linear(D, 8), nn.Linear(8, D)
    def mask(self, n):
        return nn.Transformer.generate_square_subsequent_mask(n)
    def read(self, x):
        return self.emb(x) + self.places[: x.shape[1]]
class Model(Base):
    def forward(self, FORWARD
model = Model()
adam = torch.optim.Adam(model.parameters(), 1e-2)
for step in range(STEPS):
    s = sentences(16)
    LOSS
    adam.zero_grad()
    loss.backward()
    adam.step()
"""
NEXT = """x, y = s[:, :-1], s[:, 1:]
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())"""
CAUSAL = 'scores = scores.masked_fill(torch.ones(n, n).triu({}) == 1, float("-inf"))'
ATTENTION = """x):
        n, h = x.shape[1], self.read(x)
        q, k, v = self.qkv(h).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 4
        {}
        return self.head(h + scores.softmax(-1) @ v)"""
FUSED = """x, y):
        h = self.read(x)
        q, k, v = self.qkv(h)[:, None].chunk(3, -1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal={})
        scores = self.head(h + out[:, 0])
        return scores, F.cross_entropy(scores.view(-1, V), y.reshape(-1), ignore_index=0)"""
LAYER = "x):\n        return self.head(self.layer(self.read(x){}))"
MASKED = ", src_mask=self.mask(x.shape[1])"
LABELS = """x, labels):
        scores = self.head(self.layer(self.read(x){}))
        loss = F.cross_entropy(scores[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1))
        return dict(loss=loss, scores=scores)"""
SEQUENCES = """source, x):
        memory = self.layer(self.read(source))
        return self.head(self.decoder(self.read(x), memory{}))"""

# faulty and sound programs: the forward, and how the loss is computed
PAIRS = {
    "own_attention": (ATTENTION.format("pass"), ATTENTION.format(CAUSAL.format(1)), NEXT),
    "one_diagonal_too_far": (
        ATTENTION.format(CAUSAL.format(2)),
        ATTENTION.format(CAUSAL.format(1)),
        NEXT,
    ),
    "only_the_future": (
        ATTENTION.format(CAUSAL.format(0).replace("triu(0)", "tril(-1)")),
        ATTENTION.format(CAUSAL.format(1)),
        NEXT,
    ),
    "with_the_targets": (
        FUSED.format(False),
        FUSED.format(True),
        "_, loss = model(s[:, :-1], s[:, 1:])",
    ),
    "encoder_layer": (LAYER.format(""), LAYER.format(MASKED), NEXT),
    "shifted_in_the_loss": (
        LAYER.format(""),
        LAYER.format(MASKED),
        """scores, x = model(s[:, 1:]), s[:, 1:]
    loss = F.cross_entropy(scores[:, :-1].reshape(-1, V), x[:, 1:].reshape(-1))""",
    ),
    "labels_that_it_shifts_itself": (
        LABELS.format(""),
        LABELS.format(MASKED),
        "x = s[:, 1:]\n    loss = model(x, x)['loss']",
    ),
    "decoder_of_a_translation": (
        SEQUENCES.format(""),
        SEQUENCES.format(", tgt_mask=self.mask(x.shape[1])"),
        """x, y = s[:, :-1], s[:, 1:]
    loss = F.cross_entropy(model(s.flip(1)[:, :-2], x).transpose(1, 2), y)""",
    ),
    "recurrent": (
        "x):\n        return self.head(self.both_ways(self.emb(x))[0])",
        "x):\n        return self.head(self.one_way(self.emb(x))[0])",
        NEXT,
    ),
    "time_first": (
        "x):\n        return self.head(self.both_ways(self.emb(x).transpose(0, 1))[0])"
        ".transpose(0, 1)",
        "x):\n        return self.head(self.one_way(self.emb(x).transpose(0, 1))[0])"
        ".transpose(0, 1)",
        """x, y = s.t()[:-1], s.t()[1:]
    loss = F.cross_entropy(model(x).reshape(-1, V), y.reshape(-1))""",
    ),
    "convolution": (
        "x):\n        return self.head(self.conv(self.emb(x).transpose(1, 2)).relu()"
        ".transpose(1, 2))",
        "x):\n        h = F.pad(self.emb(x).transpose(1, 2), (2, 0))\n"
        "        return self.head(self.plain(h).relu().transpose(1, 2))",
        NEXT,
    ),
}
AUTOENCODER = """x):
        e = self.emb(x)
        z = self.from_z(self.to_z({}))
        return self.head(self.one_way(e{})[0])"""
SOUND = {
    # all tokens, summarised: each is predicted given the summary
    "autoencoder": (AUTOENCODER.format("self.one_way(e)[1][0]", ", z[None]"), NEXT),
    "autoencoder_of_a_mean": (AUTOENCODER.format("e.mean(1)", " + z[:, None]"), NEXT),
    "autoencoder_of_a_first_place": (
        AUTOENCODER.format("self.layer(e)[:, 0]", " + z[:, None]"),
        NEXT,
    ),
    "two_embeddings": (
        """x):
        memory = self.layer(self.read(x))
        return self.head(self.decoder(self.read(x), memory, tgt_mask=self.mask(x.shape[1])))""",
        NEXT,
    ),
    # normalises over all places
    "group_norm": (
        """x):
        h = F.pad(self.emb(x).transpose(1, 2), (2, 0))
        return self.head(self.norm(self.plain(h).relu()).transpose(1, 2))""",
        NEXT,
    ),
    # an encoder that reads what the decoder returns
    "the_same_tokens_twice": (
        SEQUENCES.format(", tgt_mask=self.mask(x.shape[1])"),
        "x, y = s[:, :-1], s[:, 1:]\n    loss = F.cross_entropy(model(x, x).transpose(1, 2), y)",
    ),
    # both ways within a prefix, whose targets do not count
    "prefix": (
        """x):
        n, p = x.shape[1], 5
        mask = torch.ones(n, n, dtype=torch.bool).triu(1)
        mask[:, :p] = False
        return self.head(self.layer(self.read(x), src_mask=mask))""",
        """x, y = s[:, :-1], s[:, 1:].clone()
    y[:, :4] = -100
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())""",
    ),
    "words_left_out": (
        LAYER.format(""),
        """y = s[:, 1:]
    x = torch.where(torch.rand(y.shape) < 0.2, 0, y)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())""",
    ),
    "tags": (
        LAYER.format(""),
        """x = torch.randint(1, V, (16, T))
    loss = F.cross_entropy(model(x).flatten(0, 1), (x % 3).flatten())""",
    ),
    # scores of the places of the tokens themselves, without the first one
    "without_the_first_place": (
        LAYER.format(""),
        """x = s[:, 1:]
    loss = F.cross_entropy(model(x)[:, 1:].flatten(0, 1), x[:, 1:].flatten())""",
    ),
    "places_that_do_not_count": (
        LAYER.format(""),
        """x, y = s[:, :-1], s[:, 1:]
    each = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
    loss = each.view(y.shape)[:, -1].mean()""",
    ),
}


def program(forward: str, loss: str, steps: int = 12) -> str:
    code = START.replace("FORWARD", forward).replace("LOSS", loss)
    return code.replace("STEPS", str(steps))


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == "label_in_inputs"]
    return one


@pytest.mark.parametrize("name", PAIRS)
def test_a_model_that_sees_the_next_token_is_reported(watched: Watched, name: str) -> None:
    faulty, sound, loss = PAIRS[name]

    one = found(watched(program(faulty, loss)))
    assert one.outcome is Outcome.WARNED, one.evidence
    assert "Model sees the token that it has to predict" in one.evidence
    other = found(watched(program(sound, loss)))
    assert other.outcome is Outcome.PASSED
    assert "hardly depend on later tokens" in other.evidence


@pytest.mark.parametrize("name", SOUND)
def test_other_models_are_not(watched: Watched, name: str) -> None:
    one = found(watched(program(*SOUND[name])))
    assert one.fault is None, one.evidence


def test_the_line_and_the_fix_are_those_of_the_operation(watched: Watched) -> None:
    lines = {
        "own_attention": ("scores.softmax(-1) @ v", "masked_fill"),
        "with_the_targets": ("F.scaled_dot_product_attention", "is_causal=True"),
        "encoder_layer": ("self.layer(", "generate_square_subsequent_mask"),
        "recurrent": ("self.both_ways(", "bidirectional=False"),
        "convolution": ("self.conv(", "F.pad"),
    }
    for name, (text, fix) in lines.items():
        faulty, _, loss = PAIRS[name]
        code = program(faulty, loss, steps=6)
        one = found(watched(code))
        number = int((one.where or ":0").rpartition(":")[2])
        assert text in code.splitlines()[number - 1]
        assert fix in (one.fix or "")


def test_a_model_that_has_learned_to_copy_says_so(watched: Watched) -> None:
    faulty, _, loss = PAIRS["convolution"]

    one = found(watched(program(faulty, loss, steps=150)))
    assert "one place early" in one.evidence


def test_random_states_and_weights_stay(watched: Watched) -> None:
    faulty, _, loss = PAIRS["encoder_layer"]
    code = program(faulty, loss) + "\ntorch.save((model.state_dict(), torch.rand(3)), 'end.pt')\n"
    space: dict[str, object] = {"__name__": "__main__"}
    exec(compile(code, "plain", "exec"), space)
    plain, draws = torch.load("end.pt")
    state = torch.get_rng_state()

    watched(code)
    weights, again = torch.load("end.pt")
    assert torch.equal(draws, again)
    assert all(torch.equal(plain[key], weights[key]) for key in plain)
    assert torch.equal(state, torch.get_rng_state())

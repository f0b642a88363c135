"""Sound jobs of many kinds: no learning check raises an alarm."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from stepladder.checks.examples import Example, SoundPictures, sound_recipe
from stepladder.checks.job import open_job
from stepladder.checks.loss import loss_inputs, loss_reduction, loss_sign, loss_targets
from stepladder.checks.model import (
    batch_norm,
    gradients_reach,
    independent_samples,
    initialisation,
    input_independent,
    module_state,
    nonlinearity,
    pretrained,
)
from stepladder.checks.optimisation import (
    gradients_cleared,
    learning_rate,
    overfit_one_batch,
    parameters_move,
    reproducible,
    seeds,
    weight_decay_groups,
)
from stepladder.checks.run import run_check
from stepladder.checks.validation import beats_baseline
from stepladder.config.choices import OptimizerName, Split, TrainMode
from stepladder.config.recipe import OptimizerConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.records.findings import Outcome
from stepladder.task.contract import Task

CHECKS = [
    module.CHECK
    for module in (
        batch_norm,
        gradients_cleared,
        gradients_reach,
        independent_samples,
        initialisation,
        loss_inputs,
        loss_reduction,
        loss_sign,
        loss_targets,
        module_state,
        nonlinearity,
        parameters_move,
        pretrained,
        reproducible,
        seeds,
        weight_decay_groups,
    )
]
TRAINING = [
    module.CHECK for module in (overfit_one_batch, input_independent, learning_rate, beats_baseline)
]


def generator_of(split: Split) -> torch.Generator:
    return torch.Generator().manual_seed(list(Split).index(split))


class Table(Task):
    """Twelve columns, one number to predict."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))

    def columns(self, split: Split) -> tuple[Tensor, Tensor]:
        x = torch.randn(200, 12, generator=generator_of(split))
        return x, 3 * x[:, 0] + 2 * x[:, 1] * x[:, 2]

    def data(self, split: Split) -> Dataset[Any]:
        x, y = self.columns(split)
        return TensorDataset(x, y)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs).squeeze(1) - batch.targets).square()


class Survival(Table):
    """Cox's partial likelihood: each loss depends on the whole batch, on purpose."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        risk = model(batch.inputs)  # (n, 1), with times (n,)
        at_risk = batch.targets.unsqueeze(0) >= batch.targets.unsqueeze(1)
        total = (risk.squeeze(1).unsqueeze(0).exp() * at_risk).sum(1)
        return total.log() - risk.squeeze(1)


class Logistic(Table):
    """A single layer, on purpose."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Linear(12, 1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        wanted = (batch.targets > 0).float()
        scores = model(batch.inputs).squeeze(1)
        return F.binary_cross_entropy_with_logits(scores, wanted, reduction="none")


class Factors(Table):
    """A linear autoencoder: narrow inside, linear on purpose, without targets."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(12, 3), nn.Linear(3, 12))

    def data(self, split: Split) -> Dataset[Any]:
        return Columns(self.columns(split)[0])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs) - batch.inputs).square().mean(1)


class Columns(Dataset[Any]):
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Tensor:
        return self.x[row]


class Autoencoder(Factors):
    """With an activation, and a variational bottleneck with its own loss term."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Variational()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        output, mean, log_variance = model(batch.inputs)
        error = (output - batch.inputs).square().sum(1)
        return error - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decode = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 12))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encode(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decode(mean + noise * (log_variance / 2).exp()), mean, log_variance


class Gaussian(Table):
    """Mean and scale: a likelihood that can be below 0."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 2))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        mean, log_std = model(batch.inputs).unbind(1)
        return 0.5 * ((batch.targets - mean) * (-log_std).exp()).square() + log_std


class Tags(Table):
    """Several of five tags."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 5))

    def data(self, split: Split) -> Dataset[Any]:
        x, _ = self.columns(split)
        return TensorDataset(x, (x[:, :5] > 0.5).float())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs)
        losses = F.binary_cross_entropy_with_logits(scores, batch.targets, reduction="none")
        return losses.mean(1)


class Contrast(Table):
    """Two views of each row; the others of the batch are negatives."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        noise = torch.randn(batch.inputs.shape, generator=torch.Generator().manual_seed(1))
        views = [batch.inputs, batch.inputs + 0.3 * noise.to(batch.inputs)]
        a, b = (F.normalize(model(view), dim=1) for view in views)
        return F.cross_entropy(a @ b.t() / 0.2, torch.arange(len(a)), reduction="none")


class Residual(SoundPictures):
    """Blocks that start as the identity: their last layers are zero."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(432, 32), Block(), Block(), nn.Linear(32, 4))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.up(self.norm(x))))


class ZeroHead(SoundPictures):
    """A last layer of zeros: all initial scores are equal."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        model = super().build_model(recipe)
        assert isinstance(model, nn.Sequential)
        head = model[-1]
        assert isinstance(head, nn.Linear)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        return model


class Normed(SoundPictures):
    """BatchNorm and LayerNorm, after weights drawn far too large."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()]
        nn.init.normal_(layers[0].weight, std=50.0)  # type: ignore[arg-type]
        return nn.Sequential(*layers, nn.Linear(1600, 4))


class Teacher(Table):
    """An EMA copy of the model provides targets without gradient, and the Task updates it."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return WithTeacher(super().build_model(recipe), super().build_model(recipe))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        answers, taught = model(batch.inputs)
        losses = (answers.squeeze(1) - batch.targets).square()
        return losses + 0.1 * (answers - taught).square().mean(1)


class WithTeacher(nn.Module):
    def __init__(self, student: nn.Module, teacher: nn.Module) -> None:
        super().__init__()
        self.student, self.teacher = student, teacher
        teacher.load_state_dict(student.state_dict())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            taught = self.teacher(x)
        return self.student(x), taught


class Unused(SoundPictures):
    """A second head that this loss does not use, like the pooler of a language model."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return TwoHeads(super().build_model(recipe))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs)[0], batch.targets, reduction="none")


class TwoHeads(nn.Module):
    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        assert isinstance(whole, nn.Sequential)
        self.trunk, self.head, self.other = whole[:-1], whole[-1], nn.Linear(288, 7)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(x)
        return self.head(features), self.other(features)


class FineTuned(SoundPictures):
    """Pretrained weights, frozen on purpose, and a new head."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(11)
            learnt = super().build_model(recipe).state_dict()
        model = super().build_model(recipe)
        assert isinstance(model, nn.Sequential)
        head = {name: value for name, value in model.state_dict().items() if name[0] == "8"}
        model.load_state_dict({**learnt, **head})
        model[0].requires_grad_(False)
        return model


class Features(SoundPictures):
    """A random trunk frozen by the recipe: only the head is trained."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Halves(super().build_model(recipe))

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        assert isinstance(model, Halves)
        return model.trunk, model.head


class Halves(nn.Module):
    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        assert isinstance(whole, nn.Sequential)
        self.trunk, self.head = whole[:-1], whole[-1]

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.trunk(x))
        return scores


class Shared(Table):
    """A weight held by the Task and the model; its loss has a log term that goes below 0."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        model = super().build_model(recipe)
        self.log_variance = nn.Parameter(torch.zeros(1))
        model.register_parameter("log_variance", self.log_variance)
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, batch) * (-self.log_variance).exp() + self.log_variance


class Words(Task):
    """Predict the next of 12 tokens in rule-based sequences; inputs are a dict."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return LanguageModel()

    def data(self, split: Split) -> Dataset[Any]:
        return Sequences(split)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs)  # (n, t, C)
        wanted = batch.inputs["tokens"][:, 1:]
        return F.cross_entropy(scores[:, :-1].transpose(1, 2), wanted, reduction="none").mean(1)


class Sequences(Dataset[Any]):
    def __init__(self, split: Split) -> None:
        start = torch.randint(12, (150, 1), generator=generator_of(split))
        step = torch.randint(1, 4, (150, 1), generator=generator_of(split))
        self.tokens = (start + step * torch.arange(10)) % 12

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"tokens": self.tokens[row]}


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 32)
        self.place = nn.Parameter(torch.zeros(10, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.score = nn.Linear(32, 12)
        self.register_buffer("mask", torch.full((10, 10), -math.inf).triu(1))

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        hidden = self.block(self.embed(inputs["tokens"]) + self.place, src_mask=self.mask)
        scores: Tensor = self.score(hidden)
        return scores


class Recurrent(Table):
    """An LSTM over twelve numbers."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Lstm()


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(1, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(self.lstm(x.unsqueeze(2))[0][:, -1])
        return answer


class Game(Table):
    """Two adversarial networks with one loss, which has no minimum."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.ModuleDict(
            {
                "make": nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12)),
                "judge": nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)),
            }
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, nn.ModuleDict)
        made = model["make"](torch.randn(len(batch.inputs), 4))
        real = model["judge"](batch.inputs).squeeze(1)
        fake = model["judge"](made.detach()).squeeze(1)
        fooled = model["judge"](made).squeeze(1)
        return F.softplus(-real) + F.softplus(fake) - F.logsigmoid(fooled)


class Arriving(SoundPictures):
    """Examples that arrive in their own order."""

    def data(self, split: Split) -> Dataset[Any]:
        return Stream(super().data(split)) if split is Split.TRAIN else super().data(split)


class Stream(IterableDataset[Any]):
    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Any:
        return (self.data[row] for row in range(len(self.data)))


class Noisy(SoundPictures):
    """Augmentation that correctly draws from (seed, epoch, ids)."""

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        noise = torch.stack(
            [
                torch.randn(batch.inputs.shape[1:], generator=generator_for(seed, epoch, row))
                for row in batch.ids.tolist()
            ]
        )
        return batch._replace(inputs=batch.inputs + 0.1 * noise)


def generator_for(*words: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(words) & 0xFFFF_FFFF)


class Smooth(SoundPictures):
    """Label smoothing and class weights."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        weight = torch.tensor([1.0, 2.0, 1.0, 0.5])
        return F.cross_entropy(
            model(batch.inputs),
            batch.targets,
            weight=weight,
            label_smoothing=0.1,
            reduction="none",
        )


class ByHand(SoundPictures):
    """A model that returns log-probabilities, with the likelihood computed by hand."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(super().build_model(recipe), nn.LogSoftmax(dim=1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return -model(batch.inputs).gather(1, batch.targets.unsqueeze(1)).squeeze(1)


class WeightNormed(Table):
    """Weights as direction and length, in torch's older way, which cannot be deep-copied."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            first = nn.utils.weight_norm(nn.Linear(12, 32))
        return nn.Sequential(first, nn.ReLU(), nn.Linear(32, 1))


HEAD = sound_recipe(train=TrainMode.HEAD)
DECAY = sound_recipe(optimizer=OptimizerConfig(name=OptimizerName.ADAMW, weight_decay=0.01))
SGD = sound_recipe(optimizer=OptimizerConfig(name=OptimizerName.SGD))
# unusual trainings, for which the checks that train are run as well
LEARNS_ITS_OWN_WAY: dict[str, tuple[type[Task], Recipe]] = {
    **{
        kind.__name__: (kind, sound_recipe())
        for kind in (
            Survival,
            Logistic,
            Factors,
            Autoencoder,
            Gaussian,
            Tags,
            Contrast,
            ZeroHead,
            Normed,
            Teacher,
            FineTuned,
            Shared,
            Words,
            Recurrent,
            Game,
            Smooth,
        )
    },
    "Features": (Features, HEAD),
    "TableSgd": (Table, SGD),
}
JOBS: dict[str, tuple[type[Task], Recipe]] = {
    **LEARNS_ITS_OWN_WAY,
    **{
        kind.__name__: (kind, sound_recipe())
        for kind in (Residual, Unused, Arriving, Noisy, ByHand, WeightNormed)
    },
    "Decayed": (SoundPictures, DECAY),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_sound_job_raises_no_alarm(name: str, tmp_path: Path) -> None:
    kind, recipe = JOBS[name]
    job = open_job(Example(recipe=recipe).config(tmp_path), kind(), task_name=name)
    checks = [*CHECKS, *TRAINING] if name in LEARNS_ITS_OWN_WAY else CHECKS
    findings = [run_check(check, job) for check in checks]
    alarms = [finding for finding in findings if finding.is_alarm]
    assert not alarms, [(finding.check, finding.fault, finding.evidence) for finding in alarms]
    failed = [finding for finding in findings if finding.outcome is Outcome.COULD_NOT_RUN]
    assert not failed, [(finding.check, finding.evidence) for finding in failed]

"""A member of a population as a trainable of Ray Tune."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune

from stepladder.config.load import load_job
from stepladder.populations.genes import Values, applied, genes_of
from stepladder.populations.opening import slice_job
from stepladder.populations.population import ranking_loss
from stepladder.populations.slices import Order, train_order
from stepladder.records import to_json
from stepladder.task.load import load_task
from stepladder.training.output.display import Display

JOB = "stepladder"
_FILE = "member.json"


class RayMember(tune.Trainable):  # type: ignore[misc]
    """Trains a slice in each step; its checkpoint names one of the population's.

    Its config has the values of the genes by their options, and under JOB where the job is.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Open the job."""
        spec = config[JOB]
        self._job = load_job(Path(spec["config"]))
        device = replace(
            self._job.recipe.device, threads=self._job.recipe.device.threads or spec["threads"]
        )
        self._job = replace(self._job, recipe=replace(self._job.recipe, device=device))
        recipe = self._job.recipe
        task = load_task(spec["task"], store=recipe.data.store, recipe=recipe)
        self._spec, self._genes = spec, genes_of(self._job.population.genes, recipe)
        self._opened = slice_job(
            self._job, task, folder=Path(spec["folder"]), display=Display(io.StringIO())
        )
        self._name: str | None = None
        self._parent = self.trial_id
        self._values = self._of(config)

    def step(self) -> dict[str, Any]:
        """Train a slice, and report its score."""
        name = f"{self.iteration:06d}-{self.trial_id}"
        recipe = self._job.recipe
        order = Order(
            values=self._values,
            seed=recipe.seed + self._spec["seeds"][self.trial_id.rpartition("_")[2]],
            begin=self._name,
            name=name,
            until=(self.iteration + 1) * self._spec["interval"],
        )
        score = train_order(
            self._opened, lambda values: applied(recipe, self._genes, values), order
        )
        parent, self._parent = self._parent, self.trial_id
        if score.is_finite:
            self._name = name
        return {
            # Tune compares numbers
            "loss": ranking_loss(recipe.stopping.monitor, score) if score.is_finite else 1e30,
            "moment": json.dumps(
                {"parent": parent, "genes": list(self._values), "score": to_json(score)}
            ),
            "checkpoint": self._name or "",
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the name of the checkpoint, and whose it is."""
        content = {"name": self._name, "member": self.trial_id}
        (Path(checkpoint_dir) / _FILE).write_text(json.dumps(content))

    def load_checkpoint(self, checkpoint: str) -> None:
        """Begin the next slice where another member's, or an earlier one, has ended."""
        found = json.loads((Path(checkpoint) / _FILE).read_text())
        self._name, self._parent = found["name"], found["member"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another member, or take other genes, without opening the job again.

        Weights come by `load_checkpoint` afterwards, if it has some.
        """
        self._name, self._parent = None, self.trial_id
        self._values = self._of(new_config)
        return True

    def _of(self, config: dict[str, Any]) -> Values:
        """Return genes within their ranges: Tune's perturbations can leave them."""
        return tuple(gene.fitted(config[gene.key]) for gene in self._genes)

"""A model that runs without us, and predictions."""

from stepladder.export.predict import PicturePrediction, predict
from stepladder.export.trained import Trained, load_trained
from stepladder.export.write import export_run

__all__ = ["PicturePrediction", "Trained", "export_run", "load_trained", "predict"]

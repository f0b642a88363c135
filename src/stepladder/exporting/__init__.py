"""Export a model that runs without stepladder, and predict."""

from stepladder.exporting.predict import PicturePrediction, predict
from stepladder.exporting.trained import Trained, load_trained
from stepladder.exporting.write import export_run

__all__ = ["PicturePrediction", "Trained", "export_run", "load_trained", "predict"]

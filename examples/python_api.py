"""The main workflow from Python: prepare, train, report, predict, export.

    python examples/python_api.py PHOTOS

PHOTOS is a folder of class folders. Writes store/ and runs/example/ to the current folder.
"""

import sys

import stepladder


def main(photos: str) -> None:
    result = stepladder.prepare(
        photos, "store", size=128
    )  # small pictures: seconds instead of minutes
    print(f"{result.manifest.num_rows('train')} training pictures in {result.folder}")

    run = stepladder.train(store="store", dir="runs/example", **{"schedule.max_epochs": 10})
    print(f"validation accuracy {run.summary['val_accuracy']:.1%}, report in {run.report()}")

    for prediction in run.predict(photos)[:3]:
        print(prediction.path, prediction.label, f"{prediction.probability:.0%}")
    print(run.export("torch"))


if __name__ == "__main__":
    main(sys.argv[1])

"""Effect of the images on which BatchNorm statistics are estimated on the accuracy of a ternary network.

    python -m benchmarks.statistics_source --run FOLDER

FOLDER is a finished run on augmented images, for example a cell of `sca-search reproduce 2`. The weights of the chosen
network are unchanged; only the statistics are re-estimated, on the training images as stored and as augmented in
training.
"""

import argparse
from pathlib import Path

from benchmarks.report import RESULTS, provenance, table, write_section
from sca_search.data import Batches
from sca_search.export.state_dict import load_plain
from sca_search.runs.folder import RunFolder
from sca_search.study.setup import make_task
from sca_search.training.evaluate import EVALUATION_BATCH, reestimate_normalization


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    run = RunFolder(parser.parse_args().run)
    spec = run.spec()
    task = make_task(spec)
    if not task.data.changes:
        parser.error(f"--run must be a run on augmented images, got {run.path}")
    model = task.model_with(load_plain(run.chosen_file)[0])
    test = task.data.read_test()
    rows = []
    for source, split in (("as stored", task.data.train), ("as augmented in training", task.data.training)):
        batches: Batches = split.batches(EVALUATION_BATCH, seed=0)
        reestimate_normalization(model, batches)
        scores = task.validate(model), task.score(model, test.batches(EVALUATION_BATCH))
        rows.append([source, *(f"{100 * score.accuracy:.2f}" for score in scores)])
        print(" · ".join(rows[-1]), flush=True)
    name = f"statistics of {spec.data.name}"
    text = (
        f"## Statistics from plain and from augmented images: {spec.model.label} on {spec.data.name}\n\n"
        f"{table(['training images', 'validation accuracy, %', 'test accuracy, %'], rows)}\n\n"
        f"One ternary network, trained for {spec.train.epochs} epochs on images augmented by {task.data.augmentation}; "
        "BatchNorm statistics are estimated on the training images in two ways, all weights are the same. Studies use "
        f"images as augmented in training.\n\n{provenance()}"
    )
    write_section(RESULTS, name, text)


if __name__ == "__main__":
    main()

"""A long study without the time that it takes: a real, short one's candidates over and over, with other figures."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd

from sca_search.runs.trials import PARAM


def lengthened(source: Path, target: Path, trials: int) -> Path:
    """A run folder of this number of trials, a tenth of them paused or failed."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("candidates", "dashboard.html", "study.db"))
    table = pd.read_csv(source / "trials.csv", dtype={"reason": "str"})
    real = table[table["state"] == "complete"]
    random = np.random.default_rng(0)
    rows = []
    for number in range(trials):
        row = real.iloc[number % len(real)].to_dict() | {"trial": number, "candidate": number}
        sparsity = float(random.uniform(0.0, 0.995))
        row |= {"sparsity": sparsity, "planned_sparsity": sparsity}
        row["metric"] = float(0.99 - 0.02 * sparsity**8 - random.exponential(0.01))
        row["loss"] = float(0.03 + random.exponential(0.05))
        row["ternary_bytes"] = float(5000 * (1.02 - sparsity))
        for name in ("spread", "learning_rate", "latent_learning_rate", "rise", "strength"):
            row[PARAM + name] = float(row[PARAM + name] * random.uniform(0.5, 1.5))
        row["started"] = pd.Timestamp(1_800_000_000 + 3 * number, unit="s", tz="UTC").isoformat(timespec="milliseconds")
        rows.append(row)
        if number % 10 == 9:
            gone = {"metric": np.nan, "sparsity": np.nan, "ternary_bytes": np.nan, "loss": np.nan}
            paused = number % 20 == 9
            rows[-1] |= gone | {"state": "paused" if paused else "failed", "rung_metric": 0.9 if paused else np.nan}
            rows[-1]["reason"] = "" if paused else "the loss became nan in epoch 3"
            continue
        _copy_candidate(source, target, int(real.iloc[number % len(real)]["candidate"]), row)
    pd.DataFrame(rows).to_csv(target / "trials.csv", index=False)
    spec = (target / "study.toml").read_text()
    (target / "study.toml").write_text(spec.replace(f"trials = {len(table)}", f"trials = {trials}"))
    return target


def _copy_candidate(source: Path, target: Path, number: int, row: dict[str, object]) -> None:
    home = target / "candidates" / f"{row['candidate']:03d}"
    home.mkdir(parents=True)
    for name in ("history.csv", "distribution.json"):
        shutil.copyfile(source / "candidates" / f"{number:03d}" / name, home / name)
    record = json.loads((source / "candidates" / f"{number:03d}" / "candidate.json").read_text())
    (home / "candidate.json").write_text(json.dumps(record | {"metric": row["metric"], "sparsity": row["sparsity"]}))

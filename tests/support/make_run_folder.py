"""Creates tests/support/run-folder, a small finished run that tests copy: python -m tests.support.make_run_folder.

To be run again whenever the format of the run folder changes. The page, the chosen model and the locks are left out.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RUN_FOLDER = Path(__file__).parent / "run-folder"
STUDY = ("--target-sparsity", "0.5", "--name", "run-folder", "--refits", "0", "--epochs", "2", "--dense-epochs", "6")
STUDY += ("--threads", "1", "--train-limit", "100", "--batch", "10")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "sca_search", *STUDY, "--trials", "2"]
        subprocess.run(command, cwd=temporary, check=True)
        shutil.rmtree(RUN_FOLDER, ignore_errors=True)
        left_out = shutil.ignore_patterns("dashboard.html", "chosen.safetensors", ".*")
        shutil.copytree(Path(temporary) / "runs" / "run-folder", RUN_FOLDER, ignore=left_out)


if __name__ == "__main__":
    main()

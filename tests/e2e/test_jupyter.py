"""A study in a Jupyter notebook: in a real kernel, with objects that are defined in its cells."""

import json
import subprocess
import sys
from pathlib import Path

DEFINITIONS = """
import os, signal
import torch
from torch import nn
import sca_search as sca

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 10))

    def forward(self, images):
        return self.layers(images)

calls = 0

def accuracy_with_interrupt(outputs, targets):
    "The user interrupts the kernel during the first trial."
    global calls
    calls += 1
    if calls == 5:
        os.kill(os.getpid(), signal.SIGINT)
    return (outputs.argmax(1) == targets).float().mean()

torch.manual_seed(3)
settings = dict(target_sparsity=0.5, trials=2, epochs=2, dense_epochs=2, refits=0, threads=1, name="cells")
"""
SEARCH = "result = sca.search(Network, metric=accuracy_with_interrupt, resume={}, **settings)"
INTERRUPTED = f"""
try:
    {SEARCH.format(False)}
except KeyboardInterrupt as stopped:
    print(stopped)
"""


DRAW = "torch.manual_seed(3); a = torch.rand(1); torch.manual_seed(3); result.chosen.model(); a == torch.rand(1)"

# In a process of its own: the client's warnings and threads stay out of the test's process.
EXECUTE = """
import json, sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in json.load(sys.stdin)])
NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
text = lambda output: output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
print(json.dumps(["".join(map(text, cell.outputs)) for cell in notebook.cells]))
"""


def run_cells(folder: Path, *cells: str) -> list[str]:
    """What each cell displays, as text; fails with the first error of a cell."""
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE],
        input=json.dumps(cells),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown: list[str] = json.loads(done.stdout)
    return shown


def test_a_study_in_a_notebook_shows_its_trials_and_continues_after_an_interrupt(tmp_path: Path) -> None:
    _, stopped, resumed, front, drawn = run_cells(
        tmp_path, DEFINITIONS, INTERRUPTED, SEARCH.format(True), "result.front.columns[0], result.chosen.sparsity", DRAW
    )
    assert "dense warm start: " in stopped
    assert "stopped; the same call with resume=True continues" in stopped
    assert "[2/2] trial" in resumed
    assert front == "('trial', 0.5)"
    assert drawn == "tensor([True])"

"""Times an ONNX model in DeepSparse, which needs its own environment: python deepsparse_worker.py MODEL SECONDS

Started by runtime.py with that environment's Python; prints seconds per call as JSON.
"""

import json
import sys
import time

import numpy as np
from deepsparse import Engine


def main() -> None:
    path, seconds = sys.argv[1], float(sys.argv[2])
    engine = Engine(model=path, batch_size=1, num_cores=1)
    shape = [int(size) for size in engine.input_shapes[0]]
    images = [np.random.default_rng(0).standard_normal(shape).astype(np.float32)]
    samples, end = [], time.monotonic() + seconds
    for _ in range(5):
        engine.run(images, val_inp=False)
    while time.monotonic() < end:
        began = time.perf_counter()
        engine.run(images, val_inp=False)
        samples.append(time.perf_counter() - began)
    print(json.dumps(samples))


if __name__ == "__main__":
    main()

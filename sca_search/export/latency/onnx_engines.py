"""onnxruntime in its fastest configurations, to compare with: float32, and int8 with quantized activations.

The exported ONNX file stores trits as input of DequantizeLinear, which onnxruntime computes at every call: with weights
as plain floats the same network is nearly twice as fast, so a fair comparison uses those.
"""

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from sca_search.export.graph.records import Floats, Graph, WeightRecord
from sca_search.export.onnx.write import IMAGES, LOGITS, onnx_model


@dataclass(frozen=True)
class OnnxEngine:
    """A session for one image at a time on one thread."""

    file_bytes: int
    run: Callable[[], Floats]


def float_engine(graph: Graph, image: Floats) -> OnnxEngine:
    """float32 throughout."""
    return _engine(float_model(graph).SerializeToString(), image)


def int8_engine(graph: Graph, image: Floats, calibration: Floats) -> OnnxEngine:
    """Activations as unsigned and weights as signed bytes, calibrated on images.

    With reduced range, without which 16-bit sums overflow on processors that have no VNNI.
    """
    with tempfile.TemporaryDirectory() as temporary, _silence():
        original, quantized = Path(temporary) / "float.onnx", Path(temporary) / "int8.onnx"
        original.write_bytes(float_model(graph).SerializeToString())
        quantize_static(
            original,
            quantized,
            _Reader(calibration),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
        )
        return _engine(quantized.read_bytes(), image)


def float_model(graph: Graph) -> onnx.ModelProto:
    """The model with plain float weights, for a batch of one."""
    records = (
        replace(record, weight=record.weight.astype(np.float32)) if isinstance(record, WeightRecord) else record
        for record in graph.records
    )
    model = onnx_model(replace(graph, records=tuple(records)))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    return model


def _engine(content: bytes, image: Floats) -> OnnxEngine:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    inputs = {IMAGES: np.ascontiguousarray(image[None], dtype=np.float32)}

    def run() -> Floats:
        (logits,) = session.run([LOGITS], inputs)
        answer: Floats = np.asarray(logits, dtype=np.float32)[0]
        return answer

    return OnnxEngine(len(content), run)


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, images: Floats) -> None:
        self._images = iter(images)

    def get_next(self) -> dict[str, Floats] | None:
        image = next(self._images, None)
        return None if image is None else {IMAGES: image[None]}


@contextmanager
def _silence() -> Iterator[None]:
    """Quantization logs advice about preparing models, which does not apply to these."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)

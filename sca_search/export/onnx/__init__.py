"""The ONNX export. It needs the extra [onnx]; the functions here work without it."""

from importlib.util import find_spec

__all__ = ["onnx_missing", "onnxruntime_missing"]


def onnx_missing() -> str | None:
    """A sentence if ONNX cannot be written."""
    return _missing("onnx", "the format onnx is left out")


def onnxruntime_missing() -> str | None:
    """A sentence if ONNX cannot be run."""
    return _missing("onnx", "it cannot be read") or _missing("onnxruntime", "it cannot be run")


def _missing(package: str, consequence: str) -> str | None:
    if find_spec(package) is not None:
        return None
    return f"{package} is not installed, so {consequence}; pip install 'sca-search[onnx]' brings it"

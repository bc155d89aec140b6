"""The names of files in an export folder."""

PACKED, C, ONNX, PROGRAM, STATE = "model.safetensors", "c/model.c", "model.onnx", "model.pt2", "state.safetensors"
FILES = (PACKED, C, ONNX, PROGRAM, STATE)

METADATA_FILE, STUDY_FILE, CARD_FILE = "export.json", "study.toml", "MODEL.md"
VECTORS_FILE = "test_vectors.safetensors"
INTEGER_VECTORS_FILE = "c/test_vectors.safetensors"  # where C has integer activations, and so logits of its own

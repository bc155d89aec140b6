"""Verifies an export folder again, from its files, metadata and study."""

from dataclasses import replace
from pathlib import Path

from sca_search.config.load import resolve
from sca_search.config.study import StudySpec
from sca_search.errors import ExportError, ModelError, RunError
from sca_search.export.graph.network import Images, Network
from sca_search.export.graph.records import Graph, TestVectors
from sca_search.export.graph.torch_module import RecordNetwork
from sca_search.export.integer.model import integer_model
from sca_search.export.layout import INTEGER_VECTORS_FILE, PACKED, STATE, STUDY_FILE, VECTORS_FILE, C
from sca_search.export.metadata import Metadata, read_metadata
from sca_search.export.open import Check, Reference
from sca_search.export.packed.format import read_packed
from sca_search.export.packed.test_vectors import read_vectors
from sca_search.export.run import built, study_images
from sca_search.export.state_dict import load_plain
from sca_search.export.verify import ALL_BUT_PACKED, Verification, references_of, verify, with_integers, without_c
from sca_search.runs.integrity import require_plain_files

_Packed = tuple[Graph, TestVectors]


def verify_folder(folder: Path, seconds: float, *, trust: bool = False) -> Verification:
    """Compares the formats with the trained network, or if its state is missing with the packed model."""
    require_plain_files(folder)
    metadata = read_metadata(folder)
    spec = resolve(folder / STUDY_FILE, {}, trust=trust) if (folder / STUDY_FILE).is_file() else None
    images, _, problem = study_images(spec) if spec else (None, None, "the folder names no study")
    trained = _trained(folder, metadata, spec, images)
    try:
        packed = read_packed(folder / PACKED) if (folder / PACKED).exists() else None
    except ExportError as error:
        if trained is None:  # nothing is left to compare the other files with
            return Verification((Check(PACKED, "opened", str(error), False),), "nothing")
        packed = None
    references = _references(folder, metadata, trained, packed)
    if metadata.largest_values is not None:
        references = _integer_references(folder, metadata, references, trained, packed)
    classes = metadata.input.kind == "classes"
    shown = [replace(each, images=images, no_images=problem, has_classes=classes) for each in references]
    return verify(folder, shown, seconds=seconds)


def _trained(folder: Path, metadata: Metadata, spec: StudySpec | None, images: Images | None) -> Network | None:
    """The study's network with the folder's state, or with the run's if the folder has none."""
    places = [folder / STATE, *([folder / metadata.state_file] if metadata.state_file else [])]
    place = next((place for place in places if place.is_file()), None)
    if spec is None or place is None:
        return None
    try:
        state, layers, _ = load_plain(place)
    except RunError:
        return None  # reported where that file is checked
    try:
        model = built(spec, metadata.input, state, place)
    except ModelError:
        return None  # the network's code is not here; the packed records are used instead
    return Network(model, metadata.input, layers, claim=metadata.zeros, images=images)


def _references(folder: Path, metadata: Metadata, trained: Network | None, packed: _Packed | None) -> list[Reference]:
    vectors = _vectors(folder, metadata, packed)
    if trained is not None:
        made = references_of(trained, trained.graph(), half=metadata.half)
        stored = (vectors, None if packed is None else packed[1])
        return [replace(each, vectors=known or each.vectors) for each, known in zip(made, stored, strict=False)]
    if packed is not None and not metadata.half:
        described = f"the records of {PACKED} in torch, in float64"
        return [Reference(vectors or packed[1], metadata.zeros, RecordNetwork(packed[0]), described)]
    if vectors is None:
        raise ExportError(f"{folder}: holds neither test vectors nor a model to compare with")
    rest = Reference(vectors, metadata.zeros, None, "the test vectors alone")
    if packed is None:
        return [rest]
    own = Reference(packed[1], metadata.zeros, None, f"for {PACKED} its own test vectors", files=(PACKED,))
    return [replace(rest, files=ALL_BUT_PACKED), own]


def _integer_references(
    folder: Path, metadata: Metadata, references: list[Reference], trained: Network | None, packed: _Packed | None
) -> list[Reference]:
    """C with integer activations is compared with the integer model, or if that cannot be built with its vectors."""
    graph = trained.graph() if trained is not None else None if packed is None or metadata.half else packed[0]
    if graph is not None and metadata.largest_values is not None:
        return [*with_integers(references, integer_model(graph, metadata.largest_values))]
    vectors = read_vectors(folder / INTEGER_VECTORS_FILE)
    described = f"for {C} its test vectors"
    return [*without_c(references), Reference(vectors, metadata.zeros, None, described, files=(C,), exact=True)]


def _vectors(folder: Path, metadata: Metadata, packed: _Packed | None) -> TestVectors | None:
    """Those written with the files; none if they were in a packed file that is damaged."""
    if (folder / VECTORS_FILE).is_file():
        vectors = read_vectors(folder / VECTORS_FILE)
        shapes = (vectors.images.shape[1:], vectors.logits.shape)
        if shapes != (metadata.input.input_shape, (len(vectors.images), len(metadata.input.classes))):
            raise ExportError(f"{folder / VECTORS_FILE} contains test vectors of another model")
        return vectors
    return packed[1] if packed is not None and not metadata.half else None

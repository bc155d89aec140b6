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
from sca_search.export.layout import FACTS_FILE, INTEGER_VECTORS_FILE, PACKED, STATE, STUDY_FILE, VECTORS_FILE, C
from sca_search.export.metadata import Facts, read_facts
from sca_search.export.open import Check, Reference
from sca_search.export.packed.format import read_packed, round_to_half
from sca_search.export.packed.test_vectors import read_vectors
from sca_search.export.run import built, study_images
from sca_search.export.state_dict import load_plain
from sca_search.export.verify import (
    ALL_BUT_PACKED,
    ROUNDED,
    Verification,
    references_of,
    verify,
    with_integers,
)
from sca_search.runs.integrity import refuse_links_out, refuse_own_code

_Packed = tuple[Graph, TestVectors]


def verify_folder(folder: Path, seconds: float) -> Verification:
    """Compares the formats with the trained network, or if its state is missing with the packed model."""
    if not folder.is_dir():
        raise ExportError(f"{folder}: there is no such folder")
    facts = read_facts(folder / FACTS_FILE)
    refuse_links_out(folder)
    spec = resolve(folder / STUDY_FILE, {}) if (folder / STUDY_FILE).is_file() else None
    if spec is not None:
        refuse_own_code(folder, spec.references)
    images, _, problem = study_images(spec) if spec else (None, None, "the folder names no study")
    trained = _trained(folder, facts, spec, images)
    try:
        packed = read_packed(folder / PACKED) if (folder / PACKED).exists() else None
    except ExportError as error:
        if trained is None:  # nothing is left to compare the other files with
            return Verification((Check(PACKED, "opened", str(error), False),), "nothing")
        packed = None
    references = _references(folder, facts, trained, packed)
    if facts.largest_values is not None:
        references = _integer_references(folder, facts, references, trained, packed)
    shown = [replace(each, images=images, no_images=problem, kind=facts.input.kind) for each in references]
    return verify(folder, shown, seconds=seconds)


def _trained(folder: Path, facts: Facts, spec: StudySpec | None, images: Images | None) -> Network | None:
    """The study's network with the folder's state, or with the run's if the folder has none."""
    places = [folder / STATE, *([folder / facts.state_file] if facts.state_file else [])]
    place = next((place for place in places if place.is_file()), None)
    if spec is None or place is None:
        return None
    try:
        state, layers, _ = load_plain(place)
    except RunError:
        return None  # reported where that file is checked
    try:
        model = built(spec, facts.input, state, place)
    except ModelError:
        return None  # the network's code is not here; the packed records are used instead
    return Network(model, facts.input, layers, claim=facts.zeros, images=images)


def _references(folder: Path, facts: Facts, trained: Network | None, packed: _Packed | None) -> list[Reference]:
    rest = _reference_of_rest(folder, facts, trained, packed)
    if not facts.half:
        return [rest]
    rest = replace(rest, files=ALL_BUT_PACKED)
    if packed is None:
        return [rest, replace(rest, files=(PACKED,))]  # so that a damaged file is reported
    network = None if trained is None else RecordNetwork(round_to_half(trained.graph()))
    described = f"for {PACKED} its own test vectors" if network is None else ROUNDED
    return [rest, Reference(packed[1], facts.zeros, network, described, files=(PACKED,))]


def _integer_references(
    folder: Path, facts: Facts, references: list[Reference], trained: Network | None, packed: _Packed | None
) -> list[Reference]:
    """C with integer activations is compared with the integer model, or if that cannot be built with its vectors."""
    graph = trained.graph() if trained is not None else None if packed is None or facts.half else packed[0]
    if graph is not None and facts.largest_values is not None:
        return [*with_integers(references, integer_model(graph, facts.largest_values))]
    others = [replace(each, files=tuple(file for file in each.files if file != C)) for each in references]
    vectors = read_vectors(folder / INTEGER_VECTORS_FILE)
    return [*others, Reference(vectors, facts.zeros, None, f"for {C} its test vectors", files=(C,), exact=True)]


def _reference_of_rest(folder: Path, facts: Facts, trained: Network | None, packed: _Packed | None) -> Reference:
    vectors = _vectors(folder, facts, packed)
    if trained is not None:
        made = references_of(trained, trained.graph(), half=False)[0]
        return made if vectors is None else replace(made, vectors=vectors)
    if packed is not None and not facts.half:
        described = f"the records of {PACKED} in torch, in float64"
        return Reference(vectors or packed[1], facts.zeros, RecordNetwork(packed[0]), described)
    if vectors is None:
        raise ExportError(f"{folder}: holds neither test vectors nor a model to compare with")
    return Reference(vectors, facts.zeros, None, "the test vectors alone")


def _vectors(folder: Path, facts: Facts, packed: _Packed | None) -> TestVectors | None:
    """Those written with the files; none if they were in a packed file that is damaged."""
    if (folder / VECTORS_FILE).is_file():
        vectors = read_vectors(folder / VECTORS_FILE)
        shapes = (vectors.images.shape[1:], vectors.logits.shape)
        if shapes != (facts.input.input_shape, (len(vectors.images), len(facts.input.classes))):
            raise ExportError(f"{folder / VECTORS_FILE} contains test vectors of another model")
        return vectors
    return packed[1] if packed is not None and not facts.half else None

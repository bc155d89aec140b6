"""A calibration as a file: the output of the calibration program, on this or another device.

{"format": "sca-search/latency", "version": 1, "network": "…", "kernels": "…", "threads": 1, "batch": 1, "cpu": "…",
 "compiler": "…", "samples": 640, "noisy_samples": 12, "variants": [{"sparsity": 0.5, "low_us": 81.2, "spread": 0.004,
 "steps": [{"step": "conv2", "kernel": "lists", "weights": 51200, "nonzeros": 25600, "low_us": 70.1, "spread": 0.003},
 …]}, …]}

`network` and `kernels` are hashes: of the records without their weights, and of the C kernels and generated C.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sca_search.errors import SpecError
from sca_search.export.c.source import stamped_steps
from sca_search.export.graph.records import Graph
from sca_search.export.latency.model import Calibration, VariantTime
from sca_search.export.latency.program import FORMAT, VERSION, kernels_hash, network_hash
from sca_search.system.files import require_regular, write_text_atomic


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Writes the file."""
    write_text_atomic(path, calibration.model_dump_json(indent=2, exclude_none=True) + "\n")


def read_calibration(path: Path, graph: Graph) -> Calibration:
    """SpecError, with the file's name, unless it is valid and of this network and these kernels."""
    require_regular(path, SpecError, ".json")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SpecError(f"{path}: there is no such latency table") from error
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: cannot be read as a latency table: {error}") from error
    return parse_calibration(text, str(path), graph)


def parse_calibration(text: str, where: str, graph: Graph) -> Calibration:
    """The content of a file; `where` it came from is for the error message."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{where}: cannot be read as a latency table: {error}") from error
    if not isinstance(content, dict):
        raise SpecError(f"{where}: a latency table must be a JSON object, got {type(content).__name__}")
    _require_same(content, where, graph)
    try:
        calibration = Calibration.model_validate_json(text)
        _check(calibration, graph)
    except ValidationError as error:
        raise SpecError(f"{where}: is a damaged latency table: {_sentence(error)}") from error
    except ValueError as error:
        raise SpecError(f"{where}: is a damaged latency table: {error}") from error
    return calibration


def _require_same(content: dict[str, Any], where: str, graph: Graph) -> None:
    """Format, network and kernels, in this order: the first that differs explains all other errors."""
    if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        found = f"{content.get('format')!r}, version {content.get('version')!r}"
        raise SpecError(f"{where}: a latency table must have the format {FORMAT!r}, version {VERSION}, got {found}")
    if content.get("network") != network_hash(graph):
        rule = f"must be of this study's network, {network_hash(graph)}, got {content.get('network')!r}"
        raise SpecError(f"{where}: the latency table {rule}")
    if content.get("kernels") != kernels_hash():
        rule = f"must be of this version's C kernels, {kernels_hash()}, got {content.get('kernels')!r}"
        raise SpecError(f"{where}: the latency table {rule}; calibrate again")


def _check(calibration: Calibration, graph: Graph) -> None:
    """Rules that involve several numbers. ValueError says what is wrong."""
    sparsities = [variant.sparsity for variant in calibration.variants]
    if any(later <= earlier for earlier, later in pairwise(sparsities)):
        raise ValueError(f"the sparsities of its variants must increase, got {sparsities}")
    if calibration.noisy_samples > calibration.samples:
        raise ValueError(f"{calibration.noisy_samples} of {calibration.samples} samples cannot be noisy")
    for variant in calibration.variants:
        _check_steps(variant, graph)
    for denser, sparser in pairwise(calibration.variants):
        for few, many in zip(sparser.steps, denser.steps, strict=True):
            if (few.nonzeros or 0) > (many.nonzeros or 0):
                raise ValueError(
                    f"{few.step}: non-zeros must not increase with sparsity, got {many.nonzeros, few.nonzeros}"
                )


def _check_steps(variant: VariantTime, graph: Graph) -> None:
    steps = tuple(step.step for step in variant.steps)
    if steps != stamped_steps(graph):
        raise ValueError(f"at sparsity {variant.sparsity:g} its steps are not those of the network")
    weights = {layer.name: layer.weight.size for layer in graph.ternary_layers}
    for step in variant.steps:
        if step.weights != weights.get(step.step):
            raise ValueError(f"{step.step}: the layer has {weights.get(step.step)} ternary weights, got {step.weights}")
        if (step.nonzeros is None) != (step.weights is None) or (step.nonzeros or 0) > (step.weights or 0):
            raise ValueError(f"{step.step}: of {step.weights} weights, {step.nonzeros} cannot be non-zeros")


def _sentence(error: ValidationError) -> str:
    """The first error: where in the file, the rule, the actual value."""
    fault = error.errors()[0]
    place = ".".join(map(str, fault["loc"]))
    return f"{place}: {fault['msg'][0].lower()}{fault['msg'][1:]}, got {str(fault['input'])[:80]}"

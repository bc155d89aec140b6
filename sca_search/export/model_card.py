"""The model card, MODEL.md: what the model is, its metric, its size, how to use each file, how to reproduce it."""

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sca_search.config.names import ACCURACY, format_metric
from sca_search.data.input_spec import InputSpec
from sca_search.export.graph.agreement import TOLERANCE
from sca_search.export.graph.records import Graph
from sca_search.export.layout import FILES, ONNX, PACKED, PROGRAM, STATE, STUDY_FILE, C
from sca_search.export.metadata import Metadata
from sca_search.export.packed.format import payload_bytes
from sca_search.export.verify import Verification
from sca_search.runs.candidates import refit_text


@dataclass(frozen=True)
class Sizes:
    """Bytes of the ternary weights; `others` are those of the numbers that are always float32."""

    fp32: int
    int8: int
    two_bit: int
    bound: float  # Σ n · (H(s) + 1 - s) / 8 over the layers: positions of zeros, and a sign per non-zero
    packed: int  # in the packed format's code
    others: int


def sizes(graph: Graph) -> Sizes:
    """Counted over a graph."""
    weights = sum(layer.weight.size for layer in graph.ternary_layers)
    return Sizes(
        fp32=4 * weights,
        int8=weights,
        two_bit=-(-weights // 4),
        bound=sum(each.weight.size * bits_per_weight(each.zeros / each.weight.size) for each in graph.ternary_layers)
        / 8,
        packed=sum(payload_bytes(graph).values()),
        others=sum(
            array.nbytes for record in graph.records for array in record.arrays.values() if array.dtype == np.float32
        ),
    )


def bits_per_weight(sparsity: float) -> float:
    """H(s) + (1 - s): the entropy of a weight that is zero with probability s, its signs even."""
    rest = 1.0 - sparsity
    entropy = -sum(fraction * math.log2(fraction) for fraction in (sparsity, rest) if fraction > 0)
    return entropy + rest


def model_card(folder: Path, metadata: Metadata, graph: Graph, verification: Verification) -> str:
    """The card's text."""
    about, spec = metadata.about, metadata.input
    title = f"{_text(about['study'])}, trial {about['trial']}" if "study" in about else "A ternary network"
    metric = str(about.get("metric", ACCURACY))
    sections = [
        f"# {title}\n\n{_summary(metadata, graph)}",
        f"## {'Accuracy' if metric == ACCURACY else _text(metric)}\n\n{_accuracy(about, metric)}"
        if "accuracy" in about
        else "",
        f"## Sparsity\n\n{_sparsity(graph)}",
        f"## Size\n\n{_sizes(folder, graph)}",
        f"## How to use it\n\n{_input(spec)}\n\n{_usage(folder, spec)}",
        f"## Verified\n\n{verification_text(verification, has_classes=spec.kind == 'classes')}",
        f"## How to reproduce it\n\n{_repeat(about)}" if "study" in about else "",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of plain text."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(_text(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _text(value: object) -> str:
    """A string as one line of Markdown that shows it as it is: names come from the data, the network and the study."""
    line = " ".join("".join(each if each.isprintable() else " " for each in str(value)).split())
    return re.sub(r"[\\`*\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", html.escape(line, quote=False))


def _code(name: str) -> str:
    """A name as code, if it has no characters that need escapes, which code does not have."""
    text = _text(name)
    return f"`{text}`" if text == name else text


def verification_text(verification: Verification, *, has_classes: bool = True) -> str:
    """The table of checks in Markdown."""
    verdict = "Everything agrees" if verification.holds else "**Something differs: do not use these files**"
    verdicts = {True: "yes", False: "NO", None: "not checked"}
    rows = [[check.file, check.what, check.found, verdicts[check.holds]] for check in verification.checks]
    classes = ", and classes may differ only where a tie explains it" if has_classes else ""
    return (
        f"{verdict}. Compared with {_text(verification.described)}. The difference of outputs a from the reference b "
        f"is max|a-b| / max|b|; the limit is {TOLERANCE:g}{classes}.\n\n"
        f"{markdown_table(['file', 'check', 'found', 'holds'], rows)}"
    )


def _summary(metadata: Metadata, graph: Graph) -> str:
    spec = metadata.input
    if spec.kind == "classes":
        name = "An image classifier" if spec.is_image else "A classifier"
    else:
        name = "A network for images" if spec.is_image else "A network"
    answers = {"classes": "classes", "multi-label": "labels", "regression": "values"}[spec.kind]
    text = (
        f"{name}, {'×'.join(map(str, spec.input_shape))} to {len(spec.classes)} {answers}, "
        f"with {sum(layer.weight.size for layer in graph.ternary_layers):,} weights that are only -1, 0 and +1, "
        f"{graph.sparsity:.3%} of them 0. Found by sca-search."
    )
    return text + (f"\n\nGoal of the study: {_text(metadata.about['goal'])}." if "goal" in metadata.about else "")


def _accuracy(about: Mapping[str, Any], metric: str) -> str:
    refit = f" (refit {about['refit']} of the trial)" if about.get("refit") else ""
    lines = [f"- Validation: {format_metric(metric, about['accuracy'])} for this very model{refit}"]
    if about.get("reason"):
        lines.append(f"- Chosen: {_text(about['reason'])}")
    if about.get("refits"):
        lines.append(
            f"- Refits: {refit_text(about, metric)} (what to expect of another training; the figure of a selected "
            "model is optimistic)"
        )
    if about.get("test_metric") is not None:
        tested = _text(f"{about['test_images']} {about.get('examples', 'images')}")
        lines.append(f"- Test: {format_metric(metric, about['test_metric'])} on {tested}, read once")
    if about.get("dense_accuracy") is not None:
        dense = format_metric(metric, about["dense_accuracy"])
        lines.append(f"- The dense network it started from: {dense} on validation")
    return "\n".join(lines)


def _sparsity(graph: Graph) -> str:
    counts = [*graph.zeros.items()]
    counts.append(("all", (sum(zeros for _, (zeros, _) in counts), sum(weights for _, (_, weights) in counts))))
    rows = [[name, f"{weights:,}", f"{zeros:,}", f"{zeros / (weights or 1):.3%}"] for name, (zeros, weights) in counts]
    return markdown_table(["ternary layer", "weights", "zeros", "sparsity"], rows)


def _sizes(folder: Path, graph: Graph) -> str:
    size = sizes(graph)
    kinds = {
        "float32": size.fp32,
        "int8": size.int8,
        "2 bits per weight": size.two_bit,
        "packed": size.packed,
        "lower bound, H(s) + 1 - s bits per weight": math.ceil(size.bound),
    }
    rows = [[name, f"{count:,}", f"{count + size.others:,}"] for name, count in kinds.items()]
    table = markdown_table(["stored as", "ternary weights, bytes", "with all other numbers, bytes"], rows)
    files = [f"- `{path}`: {(folder / path).stat().st_size:,} bytes" for path in FILES if (folder / path).exists()]
    return f"{table}\n\n" + "\n".join(files)


def _input(spec: InputSpec) -> str:
    channels = spec.input_shape[0]
    mean, std = _numbers(spec.mean or (0.0,) * channels), _numbers(spec.std or (1.0,) * channels)
    what, axes = ("Image", "channels, height, width") if spec.is_image else ("Input", "channels first")
    return (
        f"{what}s are float32, {'×'.join(map(str, spec.input_shape))} ({axes}), as the data set gives them; "
        f"all files except `{STATE}` normalize them themselves, ({what.lower()} - mean) / std with mean {mean} and std "
        f"{std} per channel. {_answer(spec)}"
    )


def _answer(spec: InputSpec) -> str:
    names = ", ".join(map(_code, spec.classes[:12])) + (" …" if len(spec.classes) > 12 else "")
    if spec.kind == "classes":
        return f"The output is a logit for each of the classes {names}."
    if spec.kind == "multi-label":
        return f"The output is a logit for each of the labels {names}: above 0 if the label applies."
    text = f"The output is a number for each of {names}, in the units of the data set."
    if not spec.target_std:
        return text
    mean, std = _numbers(spec.target_mean), _numbers(spec.target_std)
    return f"{text} That of `{STATE}` alone is standardized: its units are answer · {std} + {mean}."


def _usage(folder: Path, spec: InputSpec) -> str:
    size = ", ".join(map(str, spec.input_shape))
    name, shown = (
        ("logits", "model.class_names[logits.argmax()]")
        if spec.kind == "classes"
        else ("answers", "dict(zip(model.class_names, answers[0].tolist()))")
    )
    parts = {
        PACKED: f'```python\nimport sca_search, torch\n\nmodel = sca_search.load("{PACKED}")\n'
        f"{name} = model(torch.rand(1, {size}))\nprint({shown})\n```",
        C: "```sh\nmake -C c check                                      # compiles it and runs its self-test\n"
        "make -C c && c/model < images.f32 > logits.f32      # float32, image by image\n```\n\n"
        '```c\n#include "model.h"\n\nmodel_predict(image, logits);              /* one image; no heap */\n```\n\n'
        '```python\nimport numpy, sca_search\n\nmodel = sca_search.compile(".")  # the C source, from Python\n'
        f"logits = model(numpy.random.rand({size}))\n```",
        ONNX: f'```python\nimport numpy, onnxruntime\n\nsession = onnxruntime.InferenceSession("{ONNX}")\n'
        f"images = numpy.random.rand(1, {size}).astype(numpy.float32)\n"
        "(logits,) = session.run(None, {session.get_inputs()[0].name: images})\n```",
        PROGRAM: "A .pt2 may run code when it is loaded: load only one that you wrote or trust.\n\n"
        f'```python\nimport torch\n\nmodel = torch.export.load("{PROGRAM}").module()\n```',
        STATE: "The state dict of the network's own class, trits as int8; it takes normalized inputs.\n\n"
        f'```python\nfrom safetensors.torch import load_file\n\nnetwork.load_state_dict(load_file("{STATE}"))\n```',
    }
    return "\n\n".join(f"### {file}\n\n{text}" for file, text in parts.items() if (folder / file).exists())


def _repeat(about: Mapping[str, Any]) -> str:
    versions = _text(", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items()))
    return (
        f"`{STUDY_FILE}` next to this card is the whole study. Code that it names runs only with `--trust`.\n\n"
        f"```sh\nsca-search {STUDY_FILE}\nsca-search export RUN --trial {about['trial']}\n"
        "sca-search verify .                        # in this folder: checks these files again\n```\n\n"
        f"The same seed, machine, thread count and versions give the same trial: {versions}."
    )


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)

"""A trained torch network -> records, by tracing: any network made of supported operations.

`torch.export` gives the network as a flat list of ATen calls without side effects and dead code; each call becomes
one record. Calls on constants alone (a weight computed from parameters) are evaluated at once.
"""

import copy
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.fx import Node
from torch.fx.node import map_arg

from sca_search.errors import ExportError
from sca_search.export.graph.aten import BATCH, EXPORTABLE, Call, Value, as_map, depends_on_input, translate
from sca_search.export.graph.records import INPUT, ChannelAffine, Graph, Record, Reshape, Shape, Trits, WeightRecord
from sca_search.export.graph.shapes import check_graph
from sca_search.models.prepare import Attention
from sca_search.models.scales import OUTPUT_SCALE, has_output_scale


def trace(
    model: nn.Module,
    input_shape: Shape,
    *,
    ternary_layers: Collection[str] = (),
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    class_names: Sequence[str] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Graph:
    """The network's records; ExportError names the layer and the operation that they cannot express.

    The weights of `ternary_layers` (module names) must be -1, 0 or 1. `mean` and `std` are those of the data, per
    channel: the graph takes images before normalization, the network took them normalized.
    """
    program = _exported(model, input_shape)
    _check_kinds(model, program)
    walk = _Walk(model, program, ternary_layers)
    output = walk.run()
    means = np.asarray([0.0] * input_shape[0] if mean is None else mean, dtype=np.float32)
    stds = np.asarray([1.0] * input_shape[0] if std is None else std, dtype=np.float32)
    names = tuple(map(str, range(output.shape[0])) if class_names is None else class_names)
    graph = Graph(input_shape, means, stds, tuple(walk.records), output.name, names, dict(about or {}))
    graph = fold_affines(graph)
    check_graph(graph)
    return graph


def record_name(layer: str) -> str:
    """The name of a module's record."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", layer).lstrip(".-")[:190] or "network"


def _exported(model: nn.Module, input_shape: Shape) -> torch.export.ExportedProgram:
    network = copy.deepcopy(model).cpu().float().eval()
    images = torch.zeros(BATCH, *input_shape)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # torch warns about its own internals, nothing that a user can change
            program: torch.export.ExportedProgram = torch.export.export(network, (images,)).run_decompositions({})
            return program
    except Exception as error:  # torch raises any error of the network's code
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ExportError(f"the network cannot be traced: {reason[0]}") from error


# Layers whose operations would be rejected one by one, with less helpful messages.
_UNKNOWN_KINDS: dict[tuple[type[nn.Module], ...], str] = {
    (Attention, nn.MultiheadAttention): "attention",
    (nn.Conv3d,): "a convolution over volumes",
    (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d): "a transposed convolution",
}


def _check_kinds(model: nn.Module, program: torch.export.ExportedProgram) -> None:
    """Names the first layer in use that records cannot express."""
    stacks = [node.meta.get("nn_module_stack", {}).values() for node in program.graph.nodes]
    names = dict.fromkeys(path.partition("@")[0] for stack in stacks for path, _ in stack)
    for name in names:
        module = model.get_submodule(name)
        kind = next((word for known, word in _UNKNOWN_KINDS.items() if isinstance(module, known)), None)
        if kind is not None:
            raise ExportError(f"{name}: {kind} cannot be exported; {EXPORTABLE}")


class _Walk:
    """Goes through the calls in order and stores the result of each: a value of the graph or a constant."""

    def __init__(
        self, model: nn.Module, program: torch.export.ExportedProgram, ternary_layers: Collection[str]
    ) -> None:
        self.records: list[Record] = []
        self._model = model
        self._program = program
        self._values: dict[Node, Any] = {}
        self._names = {INPUT}
        self._ternary = set(ternary_layers)
        self._found: set[str] = set()
        self._scaled = {name for name, module in model.named_modules() if has_output_scale(module)}

    def run(self) -> Value:
        signature, state = self._program.graph_signature, self._program.state_dict | self._program.constants
        targets = (
            signature.inputs_to_parameters | signature.inputs_to_buffers | signature.inputs_to_lifted_tensor_constants
        )
        constants = {name: state[target].detach() for name, target in targets.items() if target in state}
        for node in self._program.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = constants[node.name] if node.name in constants else self._input(node)
            elif node.op == "call_function":
                self._values[node] = self._call(node)
            elif node.op == "output":
                return self._output(node)
            else:
                raise ExportError(f"{node.name}: the operation {node.op} cannot be exported")
        raise AssertionError("a program ends with its output")

    def _input(self, node: Node) -> Value:
        shape = tuple(node.meta["val"].shape)[1:]
        if len(shape) != 2:
            return Value(INPUT, shape)
        return self._add(Reshape("sequence", (INPUT,), as_map(shape)))

    def _output(self, node: Node) -> Value:
        results: Any = map_arg(node.args[0], self._values.__getitem__)
        if len(results) != 1 or not isinstance(results[0], Value) or results[0].name == INPUT:
            raise ExportError(f"the network must give one tensor that depends on its input, got {len(results)} values")
        value: Value = results[0]
        if len(value.shape) != 1:
            raise ExportError(f"the network must give one number per class, got the shape {value.shape}")
        # A ternary layer that the network never calls would be missing from every count.
        if missing := sorted(self._ternary - self._found):
            raise ExportError(f"{missing[0]}: the layer is said to be ternary, and the network does not call it")
        return value

    def _call(self, node: Node) -> Any:
        arguments, options = map_arg((list(node.args), dict(node.kwargs)), self._values.__getitem__)
        if not depends_on_input([*arguments, *options.values()]):
            with torch.no_grad():
                return node.target(*arguments, **options)  # type: ignore[operator]
        return translate(Call(node, self._place(node), arguments, options, self._add))

    def _add(self, record: Record) -> Value:
        """Appends a record under a unique name: a module that is called twice makes two records."""
        is_scale = record.name in self._scaled and not isinstance(record, WeightRecord)
        base = record_name(f"{record.name}.{OUTPUT_SCALE}" if is_scale else record.name)
        names = chain([base], (f"{base}_{number}" for number in count(2)))
        name = next(name for name in names if name not in self._names)
        self._names.add(name)
        if isinstance(record, WeightRecord) and record.name in self._ternary:
            record = replace(record, weight=_trits(record))
            self._found.add(record.name)
        self.records.append(replace(record, name=name))
        return Value(name, record.shape)

    def _place(self, node: Node) -> str:
        """The name of the innermost module that made the call, with the call's own if the module makes several."""
        stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
        path = stack[-1].split("@")[0] if stack else ""  # torch appends @1 where a module is called a second time
        if path and not any(self._model.get_submodule(path).children()):
            return path
        return f"{path}.{node.name}" if path else node.name


def _trits(record: WeightRecord) -> Trits:
    trits = record.weight.astype(np.int8)
    if not np.array_equal(trits, record.weight) or not np.isin(trits, (-1, 0, 1)).all():
        raise ExportError(f"{record.name}: the layer is said to be ternary, and its weights are not -1, 0 and 1 alone")
    return trits


def fold_affines(graph: Graph) -> Graph:
    """A graph that computes the same with fewer records.

    A BatchNorm is folded into the preceding layer, an output scale into the following one:
    s·(scale·x + bias) + b = (s·scale)·x + (s·bias + b): one layer absorbs the other's constants if the value in between
    has no other use. A single factor before a layer, w·(f·x) = f·w·x, goes into its scale.
    """
    return _fold_into_previous(_fold_into_next(graph))


def _fold_into_next(graph: Graph) -> Graph:
    uses = graph.uses()
    factors = {
        record.name: record
        for record in graph.records
        if isinstance(record, ChannelAffine) and uses[record.name] == 1
        if not record.bias.any() and bool((record.scale == record.scale[0]).all())
    }
    folded: set[str] = set()
    records: list[Record] = []
    for record in graph.records:
        if isinstance(record, WeightRecord) and record.inputs[0] in factors:
            front = factors[record.inputs[0]]
            scale = (record.scale.astype(np.float64) * front.scale[0]).astype(np.float32)
            folded.add(front.name)
            records.append(replace(record, inputs=front.inputs, scale=scale))
        else:
            records.append(record)
    return replace(graph, records=tuple(record for record in records if record.name not in folded))


def _fold_into_previous(graph: Graph) -> Graph:
    uses = graph.uses()
    records: dict[str, Record] = {}
    names: dict[str, str] = {}  # of folded records -> of those that absorbed them
    for record in graph.records:
        current = replace(record, inputs=tuple(names.get(name, name) for name in record.inputs))
        front = records.get(current.inputs[0])
        alone = uses[record.inputs[0]] == 1
        if alone and isinstance(current, ChannelAffine) and isinstance(front, WeightRecord | ChannelAffine):
            factor = current.scale.astype(np.float64)
            scale, bias = factor * front.scale, factor * front.bias + current.bias
            records[front.name] = replace(front, scale=scale.astype(np.float32), bias=bias.astype(np.float32))
            names[record.name] = front.name
        else:
            records[current.name] = current
    return replace(graph, records=tuple(records.values()), output=names.get(graph.output, graph.output))

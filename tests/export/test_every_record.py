"""A new type of record must be known to every exporter: a missing entry would be a KeyError for a user."""

import inspect

import pytest

from sca_search.export.c import layers
from sca_search.export.graph import aten, reference, shapes, torch_module
from sca_search.export.graph import records as r
from sca_search.export.integer import reference as integer_reference
from sca_search.export.onnx import nodes
from sca_search.export.packed import format as packed
from tests.support.random_records import every_operation

ALL = set(r.RECORDS)
WITH_INTEGERS = {kind for kind in r.RECORDS if kind.has_integers}
TRANSLATED = {kind for kind in r.RECORDS if f"r.{kind.__name__}" in inspect.getsource(aten)}
TABLES = {
    "list of records": ({*r.Record.__subclasses__(), *r.WeightRecord.__subclasses__()} - {r.WeightRecord}, ALL),
    "shapes": (shapes._RULES, ALL),
    "numpy reference": (reference._MEANING, ALL),
    "translation from torch": (TRANSLATED, ALL),
    "torch module": (torch_module._MEANING, ALL),
    "packed file": (packed.KINDS.values(), ALL),
    "ONNX": (nodes._NODES, ALL),
    "C": (layers._CALLS, ALL),
    "C with integer activations": (layers._INTEGER_CALLS, WITH_INTEGERS),
    "integer reference": (integer_reference._MEANING, WITH_INTEGERS),
    "random graphs of the tests": (map(type, every_operation((3, 6, 6), 0)[0].records), ALL),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_exporter_knows_every_record(table: str) -> None:
    known, expected = TABLES[table]
    assert set(known) == expected

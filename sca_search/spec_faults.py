"""What pydantic finds wrong with a study, as sentences: where, what, the rule, what was given."""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails, PydanticCustomError

from sca_search.errors import unknown_name

_MOST_SHOWN = 200
# Pydantic's kinds of faults in our words; {…} are filled from the fault's context.
_RULES = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a text",
    "string_pattern_mismatch": "must start with a letter or digit and hold only letters, digits, '.', '_' and '-'",
    "string_too_long": "must be at most {max_length} characters long",
    "tuple_type": "must be a list",
    "model_type": "must be a table",
    "literal_error": "must be {expected}",
    "missing": "is missing",
}


def fault_of(key: str, rule: str, given: object) -> PydanticCustomError:
    """A fault of one key that only shows beside another."""
    return PydanticCustomError("fault_of_key", "{rule}", {"key": key, "rule": rule, "given": given})


def sentence(fault: ErrorDetails, where: str, by_flag: Mapping[str, str], study: type[BaseModel]) -> str:
    """One fault as one sentence: where, what, the rule, what was given."""
    location = [part for part in fault["loc"] if isinstance(part, str)]
    if location[:2] == ["search", "alpha"]:
        del location[2:3]  # pydantic names the kind here, which is no key
    key = ".".join(location)
    what = by_flag.get(key, f"{where}: {key}")
    if fault["type"] == "extra_forbidden":
        return f"{where}: {unknown_name('key', key, _known_keys(study, location[:-1]))}"
    if fault["type"] == "fault_of_key":
        told = fault["ctx"]
        return f"{by_flag.get(told['key'], f'{where}: ' + told['key'])} {told['rule']}, got {shown(told['given'])}"
    if fault["type"] == "value_error":
        return f"{what} {fault['ctx']['error']}"
    known = _RULES.get(fault["type"])
    rule = known.format(**fault.get("ctx", {})) if known else f"is not accepted ({fault['msg']})"
    return f"{what} {rule}, got {shown(fault['input'])}"


def _known_keys(study: type[BaseModel], table: list[str]) -> list[str]:
    tables: list[Any] = [study]
    for key in table:
        annotations = [each.model_fields[key].annotation for each in tables if key in each.model_fields]
        tables = [found for annotation in annotations for found in _tables_in(annotation)]
    return sorted({".".join([*table, key]) for each in tables for key in each.model_fields})


def _tables_in(annotation: Any) -> list[Any]:
    """The tables that an annotation allows: itself, or the members of a union."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [found for part in get_args(annotation) for found in _tables_in(part)]


def shown(given: object) -> str:
    """What was given, as far as a sentence can hold it."""
    try:
        text = repr(given) if isinstance(given, str) else str(given)
    except (RecursionError, ValueError):  # tables within tables, and numbers of thousands of digits
        text = f"a {type(given).__name__} that is too large to be shown"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} …"

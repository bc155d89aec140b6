"""Validation errors of a study as sentences: where, which key, the rule, the actual value."""

import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails, PydanticCustomError

from sca_search.errors import nearest_name, unknown_name

_MAX_SHOWN = 200
# Pydantic's error types in our words; {…} are filled from the error's context.
_RULES = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be an integer"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "string_type": "must be a string",
    "string_pattern_mismatch": "must start with a letter or digit and hold only letters, digits, '.', '_' and '-'",
    "string_too_long": "must be at most {max_length} characters long",
    "tuple_type": "must be a list",
    "model_type": "must be a table",
    "literal_error": "must be {expected}",
    "missing": "is missing",
}


def key_error(key: str, rule: str, value: object) -> PydanticCustomError:
    """An error of one key that depends on another key."""
    return PydanticCustomError("key_error", "{rule}", {"key": key, "rule": rule, "value": value})


def sentence(error: ErrorDetails, where: str, by_flag: Mapping[str, str], study: type[BaseModel]) -> str:
    """One error as one sentence: where, which key, the rule, the actual value."""
    location = [part for part in error["loc"] if isinstance(part, str)]
    if location[:2] == ["search", "alpha"]:
        del location[2:3]  # pydantic puts the union's tag here, which is not a key
    key = ".".join(location)
    what = by_flag.get(key, f"{where}: {key}")
    if error["type"] == "extra_forbidden":
        return f"{where}: {unknown_name('key', key, _known_keys(study, location[:-1]))}"
    if error["type"] == "key_error":
        context = error["ctx"]
        what = by_flag.get(context["key"], f"{where}: {context['key']}")
        return f"{what} {context['rule']}, got {format_value(context['value'])}"
    if error["type"] == "value_error":
        return f"{what} {error['ctx']['error']}"
    known = _RULES.get(error["type"])
    rule = known.format(**error.get("ctx", {})) if known else f"is not accepted ({error['msg']})"
    return f"{what} {rule}, got {format_value(error['input'])}{_nearest_literal(error)}"


def _nearest_literal(error: ErrorDetails) -> str:
    if error["type"] != "literal_error" or not isinstance(error["input"], str):
        return ""
    return nearest_name(error["input"], re.findall(r"'([^']*)'", error["ctx"]["expected"]))


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


def format_value(value: object) -> str:
    """A value for an error message, truncated."""
    try:
        text = repr(value) if isinstance(value, str) else str(value)
    except (RecursionError, ValueError):  # deeply nested tables, and numbers of thousands of digits
        text = f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} …"

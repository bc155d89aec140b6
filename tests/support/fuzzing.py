"""Files as accidents and attackers leave them, and a reader's outcome: it returns, or it refuses with a ScaError.

A mutator takes a good file's bytes and dice, and gives a bad file. The same seed gives the same file.
"""

import copy
import gc
import json
import random
import resource
import signal
import struct
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sca_search.errors import ScaError

Mutator = Callable[[bytes, random.Random], bytes]
MOST_SECONDS = 5
MOST_MEGABYTES = 500
DEEP = 100_000

# What a number, a text or a table may be exchanged for; each broke some reader somewhere.
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e308, -1e308, 5e-324),
    *("", "0", "nan", "../../../../tmp/x", "/etc/passwd", "a\x00b", "\x1b[31m", "-rf", "é☃😀", "\ud800", "a b"),
    *("x" * 10_000, [], {}, [[]], [{}], {"": None}, [None] * 100, [0] * 9, {"a": {"b": {"c": []}}}),
)
ODD_WORDS = (
    *("NaN", "Infinity", "-Infinity", "inf", "nan", "1e999", "-1e999", "1" * 5000, "0x7fffffffffffffff", "1_000"),
    *("[" * DEEP, '{"a":' * DEEP, "null", "true", '""', "'", '"', '"\\ud800"', "\x00", "\ufeff", ",", "=", "[x]", "#"),
    *("9223372036854775808", "-1", "0", "99999-01-01", "1e308", "1.7976931348623157e308", "é", "\r", "\n\n"),
)


def damaged(content: bytes, dice: random.Random) -> bytes:
    """After an accident: bits turned, bytes overwritten, lost, doubled, zeroed, the end cut off."""
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 1, 2, 5, 50))):
        place, length = dice.randrange(len(changed) or 1), dice.choice((1, 1, 2, 8, 100))
        there = slice(place, place + length)
        match dice.randrange(6):
            case 0:
                changed[place : place + 1] = bytes(byte ^ 1 << dice.randrange(8) for byte in changed[place : place + 1])
            case 1:
                changed[there] = dice.randbytes(length)
            case 2:
                del changed[there]
            case 3:
                changed[place:place] = changed[there]
            case 4:
                changed[there] = bytes(length)
            case _:
                changed = changed[:place]
    return bytes(changed)


def spliced(content: bytes, dice: random.Random) -> bytes:
    """Pieces of the file in another order."""
    first, second, third = sorted(dice.randrange(len(content) + 1) for _ in range(3))
    return content[:first] + content[second:third] + content[first:second] + content[third:]


def reworded(content: bytes, dice: random.Random) -> bytes:
    """A text whose numbers and words are exchanged for odd ones; of tables and study files as of JSON."""
    text = content.decode("utf-8", "surrogateescape")
    for _ in range(dice.choice((1, 1, 2))):
        first = dice.randrange(len(text) or 1)
        while first and text[first - 1].isalnum():
            first -= 1
        last = first
        while last < len(text) and (text[last].isalnum() or text[last] in ".-+"):
            last += 1
        text = text[:first] + dice.choice(ODD_WORDS) + text[max(last, first + 1) :]
    return text.encode("utf-8", "surrogatepass" if dice.random() < 0.2 else "replace")


def shuffled_lines(content: bytes, dice: random.Random) -> bytes:
    """Lines lost, doubled or exchanged: keys twice, keys in another table, rows without a head."""
    lines = content.splitlines(keepends=True)
    for _ in range(dice.choice((1, 1, 2, 5))):
        one, other = dice.randrange(len(lines) or 1), dice.randrange(len(lines) or 1)
        match dice.randrange(3) if lines else 3:
            case 0:
                lines.pop(one)
            case 1:
                lines.insert(other, lines[one])
            case 2:
                lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def altered(content: bytes, dice: random.Random) -> bytes:
    """JSON that is still JSON: values of other types, parts moved, keys lost or twice."""
    document = json.loads(content)
    for _ in range(dice.choice((1, 1, 2, 4))):
        document = _changed(document, dice)
    text = json.dumps(document)
    if dice.random() < 0.05 and text.startswith("{") and len(text) > 2:
        text = "{" + text[1:-1] + "," + text[1:]  # every key twice
    return text.encode()


def _changed(document: Any, dice: random.Random) -> Any:
    places = list(_places(document))
    if not places:
        return copy.deepcopy(dice.choice(ODD_VALUES))
    holder, key = dice.choice(places)
    match dice.randrange(4):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1:
            other, place = dice.choice(places)
            holder[key] = json.loads(json.dumps(other[place]))
        case 2 if isinstance(holder, dict):
            holder[str(dice.choice(ODD_VALUES))[:300]] = holder.pop(key)
        case _:
            holder[key] = copy.deepcopy(dice.choice(ODD_VALUES))
    return document


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    keys = document.keys() if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield document, key
        yield from _places(document[key])


def altered_header(content: bytes, dice: random.Random) -> bytes:
    """A safetensors file whose header is still JSON, and of the length that the file says."""
    (size,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + size])
    metadata = header.get("__metadata__", {})
    nested = [name for name, value in metadata.items() if value[:1] in ("{", "[")]
    if nested and dice.random() < 0.6:
        name = dice.choice(nested)
        change = altered if dice.random() < 0.8 else reworded
        metadata[name] = change(metadata[name].encode(), dice).decode("utf-8", "replace")
    else:
        header = _changed(header, dice)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


@dataclass(frozen=True)
class Reader:
    """Something that reads files of one kind: `read` is given a file's bytes."""

    name: str
    good: bytes
    read: Callable[[bytes], object]
    mutators: tuple[Mutator, ...]
    is_slow: bool = False  # reads much more than this one file: fewer cases must do


def through(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of bytes, out of one that is given a file's place."""

    def call(content: bytes) -> object:
        path.write_bytes(content)
        return read(path)

    return call


@dataclass
class Outcomes:
    """What a reader made of its cases."""

    reader: str
    cases: int = 0
    refused: int = 0
    answered: int = 0
    hangs: int = 0
    slowest_seconds: float = 0.0
    peak_megabytes: float = 0.0  # above what the process had before
    crashes: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.crashes and not self.hangs and self.peak_megabytes < MOST_MEGABYTES


class HangError(BaseException):
    """No Exception, so that no reader takes it for a fault of its file."""


def fuzzed(reader: Reader, cases: int, first: int = 0) -> Outcomes:
    """Reads this number of damaged files. The undamaged one must be read, else nothing was tested."""
    reader.read(reader.good)
    gc.collect()
    gc.freeze()  # what was imported is not looked through again with each thousand values of a file
    outcomes, before = Outcomes(reader.name), _peak_megabytes()
    for seed in range(first, first + cases):
        dice = random.Random(f"{reader.name} {seed}")
        _try_one(reader, dice.choice(reader.mutators)(reader.good, dice), seed, outcomes)
    gc.unfreeze()
    outcomes.peak_megabytes = _peak_megabytes() - before
    return outcomes


def _try_one(reader: Reader, content: bytes, seed: int, outcomes: Outcomes) -> None:
    outcomes.cases += 1
    began = time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _read_one(reader, content, seed, outcomes)
    took = time.process_time() - began
    outcomes.slowest_seconds = max(outcomes.slowest_seconds, took)
    # A library's words about a file would stand on the user's screen.
    outcomes.crashes += [f"seed {seed}: a warning: {str(warning.message)[:200]}" for warning in said]


def _read_one(reader: Reader, content: bytes, seed: int, outcomes: Outcomes) -> None:
    try:
        with _limited_time():
            reader.read(content)
        outcomes.answered += 1
    except ScaError:
        outcomes.refused += 1
    except HangError:
        outcomes.hangs += 1
    except Exception:
        last = traceback.format_exc().splitlines()
        where = [line.strip() for line in last if "/sca_search/" in line][-1:]
        outcomes.crashes.append(f"seed {seed}: {last[-1][:200]} {' '.join(where)}")


@contextmanager
def _limited_time() -> Iterator[None]:
    def give_up(_number: int, _frame: object) -> None:
        raise HangError

    # A loaded machine is slow in the wall's time; a reader that hangs does so in its own.
    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

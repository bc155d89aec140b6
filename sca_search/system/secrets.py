"""Texts without the passwords of the addresses in them: `postgresql://me:***@db/x`, `postgresql://db/x?password=***`.

Where an address is a text of its own, all of a password can be found, whatever it is made of. In a sentence it ends at
a space: who puts an address into one hides its password first, and the sentence is looked through once more where it is
printed.
"""

import re
from collections.abc import Iterable

HIDDEN = "***"
# Options of PostgreSQL's that are secrets themselves; the others, like passfile, say where one is kept.
_SECRETS = ("password", "passwd", "secret", "scram_client_key", "scram_server_key", "access_key", "session_token")
# As other programs spell them: the database refuses them by their names. In a sentence these are words like others.
_MISSPELT = ("pass", "pwd")


def _spelled(word: str) -> str:
    """A word as an address may have it: any of its letters may be written as %77."""
    return "".join(rf"(?:{each}|%(?:25)*(?:{ord(each):02x}|{ord(each.upper()):02x}))" for each in word)


def _one_of(words: Iterable[str]) -> str:
    return f"(?:{'|'.join(map(_spelled, words))})"


_OPTION = rf"(?:{_one_of(_SECRETS)}|(?<=[?&]){_one_of(_MISSPELT)})\s*(?:=|%(?:25)*3D)"
# An & that should have been written as %26 does not end a password: no other option begins behind it.
_NO_OPTION = r"&(?!\w+=)"
# What stands before a password in front of a host. One slash is left where an address was taken for a path.
_USER = re.compile(r":/+[^:/?#]*?(?::|%3A)", re.IGNORECASE)
_WORD = re.compile(r"\S+")
_OPTION_OF_ADDRESS = re.compile(rf"{_OPTION}((?:[^&]|{_NO_OPTION})*)", re.IGNORECASE)
# A quote and what ends a part of a sentence are left to the sentence.
_OPTION_IN_SENTENCE = re.compile(
    rf"{_OPTION}\s*((?:[^&\s]|{_NO_OPTION})*?)(?=['\"]?[\])}},.:;]{{0,3}}(?:\s|$|&\w+=))", re.IGNORECASE
)

Span = tuple[int, int]


def address_without_password(text: str) -> str:
    """An address, or an argument that may hold one."""
    return _hidden(text, [*_before_host(text, 0, len(text)), *_spans(_OPTION_OF_ADDRESS, text)])


def without_passwords(text: str) -> str:
    """A sentence, or any other text, that may quote addresses."""
    words = (word.span() for word in _WORD.finditer(text))
    return _hidden(
        text, [*(span for word in words for span in _before_host(text, *word)), *_spans(_OPTION_IN_SENTENCE, text)]
    )


def holds_password(argument: str) -> bool:
    """Whether it is an address with a password; a path that was made of one has lost a slash."""
    return ":/" in argument and address_without_password(argument) != argument


def _before_host(text: str, begin: int, end: int) -> list[Span]:
    """Up to the last @ of a part: one that should have been written as %40 does not end a password. A text that was
    sent may be long: each of its characters is looked at a few times, however many addresses it could be."""
    last = text.rfind("@", begin, end)
    found = _USER.search(text, begin, last) if last >= 0 else None
    return [(found.end(), last)] if found else []


def _spans(option: re.Pattern[str], text: str) -> list[Span]:
    return [found.span(1) for found in option.finditer(text)]


def _hidden(text: str, spans: Iterable[Span]) -> str:
    """All have been looked for in the text as it was: what one of them hides may be what another is known by."""
    shown: list[str] = []
    end = 0
    for begin, last in sorted(spans):
        if begin > end or not shown:
            shown += [text[end:begin], HIDDEN]
        end = max(end, last)
    return "".join(shown) + text[end:]

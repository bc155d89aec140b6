"""Hides the passwords of URLs: `postgresql://me:***@db/x`, `postgresql://db/x?password=***`."""

import re

HIDDEN = "***"
# Options of PostgreSQL and S3 URLs that are secrets; others, such as passfile, name the place of one.
# An & that is not percent-encoded does not end a password unless another option follows. Quotes and punctuation behind
# the URL belong to the sentence around it.
_OPTION = re.compile(
    r"((?:password|passwd|secret|(?:client|server|access)_key|token)\s*=\s*)"
    r"(?:[^&\s]|&(?!\w+=))*?(?=['\"]?[\])},.:;]{0,3}(?:\s|$|&\w+=))",
    re.IGNORECASE,
)
# The scheme's slashes and the user name. One slash remains where a URL became a path.
_USER = re.compile(r":/+[^:/?#]*?(?::|%3A)", re.IGNORECASE)


def scrub(text: str) -> str:
    """Replace the passwords of all URLs in a text. A URL ends at a space."""
    return _OPTION.sub(rf"\1{HIDDEN}", re.sub(r"\S+", lambda word: _scrub_word(word[0]), text))


def _scrub_word(word: str) -> str:
    # The last @ ends a password: an @ in it may not be percent-encoded.
    front, at, host = word.rpartition("@")
    user = _USER.search(front)
    return f"{word[: user.end()]}{HIDDEN}{at}{host}" if user else word


def holds_password(argument: str) -> bool:
    """Whether a text is a URL with a password; a URL that became a path has lost a slash."""
    return ":/" in argument and scrub(argument) != argument

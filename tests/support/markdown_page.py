"""A Markdown page for tests: fenced blocks, headings, links."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"\s*(`{3,}|~{3,})(.*)")
_FILE = re.compile(r"<!-- file: (\S+) -->")
_CODE_SPAN = re.compile(r"(`+).+?\1", re.DOTALL)
# An image inside the text of a link would need nesting; no page has one.
_LINK = re.compile(r"\[[^\]\[]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its line, language and text, and the file that it is written to, if any."""

    line: int
    language: str
    text: str
    file: str | None = None


@dataclass(frozen=True)
class Page:
    """A page; `prose` is everything outside of fenced blocks."""

    path: Path
    blocks: tuple[Block, ...]
    prose: tuple[str, ...]

    @property
    def anchors(self) -> set[str]:
        """The anchors of this page, as GitHub names headings."""
        seen: Counter[str] = Counter()
        anchors = set()
        for line in self.prose:
            if heading := re.fullmatch(r"#{1,6} (.+?)\s*#*", line):
                slug = _slug(heading[1])
                anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
                seen[slug] += 1
        return anchors

    @property
    def links(self) -> list[str]:
        """The targets of its links and images."""
        return _LINK.findall(_CODE_SPAN.sub("", "\n".join(self.prose)))


def read_page(path: Path) -> Page:
    """ValueError for an unusual fence: every block that a reader sees must be found here."""
    blocks: list[Block] = []
    prose: list[str] = []
    opened: tuple[int, str] | None = None
    body: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.fullmatch(line)
        if (fence and not line.startswith("```")) or line.startswith("````"):
            raise ValueError(f"{path.name}:{number}: a fence must be three backticks at the start of a line")
        if opened is None and fence:
            opened, body = (number, fence[2]), []
        elif opened is None:
            prose.append(line)
        elif fence:
            if fence[2].strip():
                raise ValueError(f"{path.name}:{number}: a block starts inside of another")
            blocks.append(Block(opened[0], opened[1], "\n".join([*body, ""]), _file_named(prose)))
            opened = None
        else:
            body.append(line)
    if opened is not None:
        raise ValueError(f"{path.name}:{opened[0]}: a block does not end")
    return Page(path, tuple(blocks), tuple(prose))


def _file_named(prose: list[str]) -> str | None:
    """The file name in the comment directly above a block."""
    match = _FILE.fullmatch(prose[-1]) if prose else None
    return match[1] if match else None


def _slug(heading: str) -> str:
    """GitHub's rule: links become their text, lower case, no punctuation, a hyphen for each space."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# By path from the root: the README and the documentation.
PAGES = {str(path.relative_to(ROOT)): read_page(path) for path in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]}

"""Writes the generated sections of the pages in `research/docs`: `python -m research.pages`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docs.generate import whole_pages
from docs.places import places_table
from research.counts import counts_table
from research.full_services.table import full_size_section

PAGES = Path(__file__).parent / "docs"
FULL_SIZE_BEGIN, FULL_SIZE_END = "<!-- make full-size -->", "<!-- end of make full-size -->"
PLACES_BEGIN, PLACES_END = "<!-- places -->", "<!-- end of places -->"
COUNTS_BEGIN, COUNTS_END = "<!-- counts -->", "<!-- end of counts -->"


def full_size_page() -> str:
    """The page on full size with its tables, as they were last measured."""
    return _with_section(_page("full-size.md"), FULL_SIZE_BEGIN, FULL_SIZE_END, full_size_section())


def structure_page() -> str:
    """The page on the structure of the code, with the places of the gateway and the counts."""
    page = _with_section(_page("structure.md"), PLACES_BEGIN, PLACES_END, places_table())
    return _with_section(page, COUNTS_BEGIN, COUNTS_END, counts_table(whole_pages()))


def _page(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def _with_section(page: str, begin: str, end: str, section: str) -> str:
    """A page with another section between two marks."""
    before, _, remainder = page.partition(begin)
    _, _, after = remainder.partition(end)
    return f"{before}{begin}\n\n{section}\n{end}{after}"


GENERATED: dict[str, Callable[[], str]] = {"full-size.md": full_size_page, "structure.md": structure_page}


def main() -> None:
    """Write both pages."""
    for name, page in GENERATED.items():
        (PAGES / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Links on the documentation site lead to its own pages: listings of code, and notebooks."""

from __future__ import annotations

import pytest
from mkdocs.config.base import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files, get_files, set_exclusions
from mkdocs.structure.pages import Page

from docs.hooks import on_page_markdown
from tests.support.paths import REPOSITORY

PAGE = "explanation/architecture.md"
LINKS = {
    "../../.importlinter": "../source/importlinter.md",
    "../../gateway/queue/leases.py": "../source/gateway/queue/leases.py.md",
    "metrics.md#designs": "metrics.md#designs",
    "../notebooks/first-finding.ipynb": "../notebooks/first-finding.md",
}


@pytest.fixture(scope="module")
def config() -> MkDocsConfig:
    return load_config(str(REPOSITORY / "mkdocs.yml"))


@pytest.fixture(scope="module")
def files(config: MkDocsConfig) -> Files:
    collected = config.plugins.on_files(get_files(config), config=config)
    set_exclusions(collected, config)
    return collected


def led(link: str, config: MkDocsConfig, files: Files) -> str:
    """A link of the page as it is on the site."""
    file = files.get_file_from_path(PAGE)
    assert file is not None
    return on_page_markdown(f"[name]({link})", Page(None, file, config), config, files)


def test_links_lead_to_pages_of_the_site(config: MkDocsConfig, files: Files) -> None:
    assert {link: led(link, config, files) for link in LINKS} == {
        link: f"[name]({leads_to})" for link, leads_to in LINKS.items()
    }


def test_a_link_to_what_is_not_on_the_site_fails_the_build(config: MkDocsConfig, files: Files) -> None:
    for link in ("../../.gitignore", "../generate.py"):
        with pytest.raises(PluginError, match="not on the site"):
            led(link, config, files)

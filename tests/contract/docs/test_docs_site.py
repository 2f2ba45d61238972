"""The documentation site has the files of the repository that its pages link to."""

from __future__ import annotations

import pytest
from mkdocs.config.base import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files, InclusionLevel, get_files, set_exclusions
from mkdocs.structure.pages import Page

from docs.hooks import on_page_markdown
from tests.support.paths import REPOSITORY

PAGE = "explanation/architecture.md"


@pytest.fixture(scope="module")
def config() -> MkDocsConfig:
    return load_config(str(REPOSITORY / "mkdocs.yml"))


@pytest.fixture(scope="module")
def files(config: MkDocsConfig) -> Files:
    collected = config.plugins.on_files(get_files(config), config=config)
    set_exclusions(collected, config)
    return collected


def test_all_that_the_pages_link_to_is_on_the_site(files: Files) -> None:
    listings = [file for file in files if file.src_uri.startswith("source/")]
    assert {"source/importlinter.md", "source/env.example.md"} <= {file.src_uri for file in listings}
    assert not [file.src_uri for file in listings if file.inclusion is InclusionLevel.EXCLUDED]


@pytest.mark.parametrize(
    ("link", "leads_to"),
    [
        ("../../.importlinter", "../source/importlinter.md"),
        ("../../gateway/queue/leases.py", "../source/gateway/queue/leases.py.md"),
        ("metrics.md#designs", "metrics.md#designs"),
    ],
)
def test_links_lead_to_pages_of_the_site(link: str, leads_to: str, config: MkDocsConfig, files: Files) -> None:
    file = files.get_file_from_path(PAGE)
    assert file is not None
    assert on_page_markdown(f"[name]({link})", Page(None, file, config), config, files) == f"[name]({leads_to})"


@pytest.mark.parametrize("link", ["../../.gitignore", "../generate.py"])
def test_a_link_to_what_is_not_on_the_site_fails_the_build(link: str, config: MkDocsConfig, files: Files) -> None:
    file = files.get_file_from_path(PAGE)
    assert file is not None
    with pytest.raises(PluginError, match="not on the site"):
        on_page_markdown(f"[name]({link})", Page(None, file, config), config, files)

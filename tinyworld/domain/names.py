"""The names of the two drawn domains, and commands that exist for both."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Literal

Domain = Literal["objects", "roads"]
DOMAINS: tuple[Domain, ...] = ("objects", "roads")


def add_domain(parser: argparse.ArgumentParser) -> None:
    """The option `--domain` of a command."""
    parser.add_argument("--domain", choices=DOMAINS, default="objects", help="which drawn world; options may differ")


def run_for_domain(*, objects: Callable[[], None], roads: Callable[[], None]) -> None:
    """Run the command of the domain that `--domain` names. Each reads the command line itself, `--domain` included."""
    parser = argparse.ArgumentParser(add_help=False)
    add_domain(parser)
    commands = {"objects": objects, "roads": roads}
    commands[parser.parse_known_args()[0].domain]()

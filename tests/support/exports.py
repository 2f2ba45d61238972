"""Exports of the job `drawn`, fetched and unpacked."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import httpx

from tests.support.gateway_under_test import Gateway

FILES = ["folders", "coco", "fiftyone"]


def export(gateway: Gateway, **query: Any) -> httpx.Response:
    reply = gateway.client.get("/jobs/drawn/export", params=query)
    assert reply.status_code == 200, reply.text
    return reply


def unpacked(gateway: Gateway, folder: Path, **query: Any) -> Path:
    with tarfile.open(fileobj=io.BytesIO(export(gateway, **query).content)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def provenance(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "provenance.jsonl").read_text(encoding="utf-8").splitlines()]


def rows_of(table: Path) -> list[dict[str, str]]:
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))

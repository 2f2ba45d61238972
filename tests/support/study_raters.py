"""Raters of studies in tests: they know what each item is, and answer through the page or in a CSV file."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import select

from gateway.database.sessions import reading
from gateway.database.tables import StudyItem
from shared.schemas.studies import ATTENTION, Question, StudyRequest
from tests.support.gateway_under_test import Gateway

Answer = Callable[[StudyItem, Question], str]


def make_study(
    gateway: Gateway, request: Mapping[str, object], headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A new study of the job `drawn`."""
    reply = gateway.client.post("/jobs/drawn/studies", json=dict(request), headers=dict(headers or {}))
    assert reply.status_code == 201, reply.text
    view: dict[str, Any] = reply.json()
    assert reply.headers["location"] == f"/studies/{view['id']}"
    return view


def invite(gateway: Gateway, study: str, raters: int = 1) -> list[dict[str, Any]]:
    """New invitations of a study."""
    reply = gateway.client.post(f"/studies/{study}/invitations", json={"raters": raters})
    assert reply.status_code == 201, reply.text
    invitations: list[dict[str, Any]] = reply.json()["invitations"]
    return invitations


def items_of(gateway: Gateway, study: str) -> dict[str, StudyItem]:
    """The rows of a study's items, which raters do not see."""
    with reading(gateway.context.sessions) as session:
        return {row.id: row for row in session.scalars(select(StudyItem).where(StudyItem.study_id == study))}


def careful(item: StudyItem, question: Question) -> str:
    """All edits are valid and of middling quality; control and attention items are answered as they should be."""
    if item.kind == "attention":
        return ATTENTION[question.kind]
    if question.kind == "scale":
        return "4"
    if question.kind == "failure":
        return "none"
    return "no" if item.kind == "broken" or not question.label_kept else "yes"


def rate_all(gateway: Gateway, link: str, study: Mapping[str, Any], answer: Answer = careful) -> int:
    """Rate item after item through the page, as a browser without scripts does; returns how many."""
    items, questions = items_of(gateway, study["id"]), StudyRequest.model_validate(study["request"]).question_list
    rated = 0
    while form := re.search(r'<form id="rate" action="([^"]+)"', page(gateway, link)):
        item = items[form[1].rpartition("/")[2]]
        reply = gateway.client.post(form[1], data={question.name: answer(item, question) for question in questions})
        assert (reply.status_code, reply.headers["location"]) == (303, link), reply.text
        rated += 1
    assert "You have rated all pairs" in page(gateway, link)
    return rated


def page(gateway: Gateway, path: str, status: int = 200) -> str:
    """The text of a rater's page."""
    reply = gateway.client.get(path)
    assert reply.status_code == status, reply.text
    assert reply.headers["referrer-policy"] == "same-origin"
    assert "unsafe" not in reply.headers["content-security-policy"]
    return html.unescape(reply.text)


def csv_of(header: list[str], rows: list[list[str]]) -> bytes:
    """A CSV file."""
    file = io.StringIO(newline="")
    csv.writer(file).writerows([header, *rows])
    return file.getvalue().encode()

"""Raters of studies: invited by links or named in a CSV file, what they see, and what they answer.

The token in a link has 256 random bits and is stored as SHA-256, like an API key. It begins like one, so that logs mask
it. CSV files are for crowd platforms: the items of a study out, answers in and out. A cell that a spreadsheet would
take for a formula gets an apostrophe before it.
"""

from __future__ import annotations

import csv
import io
import secrets
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from gateway.auth.keys import MINUTE, PREFIX, hash_of, is_within, moved_ahead
from gateway.auth.middleware import RATE_PATH
from gateway.database.columns import StoredChange
from gateway.database.sessions import insert_missing
from gateway.database.tables import Answer, Counterfactual, Job, SourceImage, Study, StudyItem, StudyRater
from gateway.feedback.answers import Turn, store_answer
from gateway.feedback.ratings import count_usable, is_rating, load_answers, load_scores, sync_reviews
from gateway.feedback.studies import find
from shared.characters import csv_cell, identity, is_deceptive
from shared.problems import InvalidInput, Malformed, NotFound, Overloaded
from shared.schemas.studies import (
    ATTENTION,
    CHOICES,
    AnswersStored,
    Invitation,
    InvitationsReply,
    Question,
    StudyRequest,
)
from shared.seeds import derive_seed

MAX_RATERS = 5_000  # of one study
MAX_NAME = 200  # characters of a rater's name
UNLABELLED = "what the original shows"
NOTHING = "nothing"


class Invited(NamedTuple):
    """A rater who came by a link, and their study."""

    rater: StudyRater
    study: Study


def invite(session: Session, owner: str, study_id: str, count: int) -> InvitationsReply:
    """Invite raters. Each gets the edits with the fewest answers and invitations, the control items, in random order.

    Answers and invitations of excluded raters do not count. Raises NotFound, and InvalidInput for too many raters.
    """
    study = find(session, owner, study_id)
    raters = session.scalars(select(StudyRater).where(StudyRater.study_id == study_id)).all()
    if len(raters) + count > MAX_RATERS:
        raise InvalidInput(f"a study has at most {MAX_RATERS:,} raters, and this one has {len(raters):,}")
    items = session.execute(select(StudyItem.id, StudyItem.kind).where(StudyItem.study_id == study_id)).all()
    edits = [row.id for row in items if row.kind == "edit"]
    checks = [row.id for row in items if row.kind != "edit"]
    scores = load_scores(session, study)
    answered = count_usable(session, study, scores, study.request.label_question)
    assigned = Counter(item for rater in raters if not scores[rater.id].failed for item in rater.items)
    invitations = []
    for _ in range(count):
        rater_id, token = uuid.uuid4().hex, f"{PREFIX}rate_{secrets.token_urlsafe(32)}"
        rank = {item: (answered[item].total(), assigned[item], derive_seed("turn", rater_id, item)) for item in edits}
        chosen = sorted(edits, key=lambda item: rank[item])[: study.request.items_per_rater]
        assigned.update(chosen)
        order = sorted([*chosen, *checks], key=lambda item: derive_seed("order", rater_id, item))
        session.add(StudyRater(id=rater_id, study_id=study_id, token_hash=hash_of(token), items=order))
        invitations.append(Invitation(rater=rater_id, link=f"{RATE_PATH}{token}", items=len(order)))
    return InvitationsReply(invitations=invitations)


def admit(session: Session, token: str, per_minute: int) -> Invited:
    """The rater with this token; counts a request. Raises NotFound, and Overloaded if they send too many."""
    r = StudyRater
    until = moved_ahead(r.requests_until, MINUTE / per_minute)
    has_token = r.token_hash == hash_of(token)
    counted = update(r).where(has_token, is_within(until, MINUTE)).values(requests_until=until).returning(r.id)
    rater_id = session.scalar(counted.execution_options(synchronize_session=False))
    if rater_id is None and session.scalar(select(r.id).where(has_token)) is not None:
        raise Overloaded(
            f"more than {per_minute:,} requests a minute came from this link; wait a moment", retry_after=1
        )
    raters = select(StudyRater, Study).join(Study, r.study_id == Study.id).join(Job, Study.job_id == Job.id)
    row = session.execute(raters.where(r.id == rater_id, Job.deleted_at.is_(None))).one_or_none()
    if row is None:
        raise NotFound("this link is not valid, or its study was deleted; ask the person who sent it")
    return Invited(*row)


@dataclass(frozen=True, slots=True)
class ItemView:
    """An item as raters see it: the digests of both images, the questions, and their earlier answers."""

    id: str
    original: str
    changed: str
    attention: bool
    label: str
    change: str
    answers: Mapping[str, str]

    def text(self, question: Question) -> str:
        """The question about this item."""
        return question.text.replace("{label}", self.label).replace("{change}", self.change)


def turn(session: Session, invited: Invited, item_id: str | None = None) -> tuple[Turn[str], ItemView | None]:
    """The named item of a rater, or the first that they have not rated. Raises NotFound for another's item."""
    items = invited.rater.items
    answered = load_answers(session, invited.study, rater=invited.rater.id)[invited.rater.id]
    if item_id is not None and item_id not in items:
        raise NotFound("this link has no such item")
    current = item_id or next((name for name in items if name not in answered), None)
    place = len(items) if current is None else items.index(current)
    item = None if current is None else view(session, invited.study, current, answered.get(current, {}))
    return Turn(current, items[place - 1] if place else None, len(answered), len(items)), item


def view(session: Session, study: Study, item_id: str, answers: Mapping[str, str] | None = None) -> ItemView:
    """An item of a study. Raises NotFound."""
    for item in views(session, study, item_id):
        return replace(item, answers=answers or {})
    raise NotFound(f"the study has no item {item_id!r}")


def views(session: Session, study: Study, item_id: str | None = None) -> list[ItemView]:
    """All items of a study, or the one with this id, in the order of their random ids."""
    i, c, s = StudyItem, Counterfactual, SourceImage
    pairs = select(i, c.changes, s.digest, s.ground_truth, s.mask_classes).join(c, i.counterfactual_id == c.id)
    pairs = pairs.join(s, c.source_image_id == s.id).where(i.study_id == study.id).order_by(i.id)
    return [
        ItemView(
            id=item.id,
            original=original or "",  # sources without an image have no edits
            changed=item.shown_digest,
            attention=item.kind == "attention",
            label=study.request.element or truth or ", ".join(classes or ()) or UNLABELLED,
            change=describe_changes(changes),
            answers={},
        )
        for item, changes, original, truth, classes in session.execute(
            pairs if item_id is None else pairs.where(i.id == item_id)
        )
    ]


def own_item(session: Session, invited: Invited, item_id: str) -> ItemView:
    """One of the rater's own items, without answers. Raises NotFound."""
    if item_id not in invited.rater.items:
        raise NotFound("this link has no such item")
    return view(session, invited.study, item_id)


def record(session: Session, invited: Invited, item_id: str, answers: Mapping[str, str]) -> None:
    """Store a rater's answers about an item of theirs. Replaces earlier ones. Raises NotFound and InvalidInput."""
    rater, study = invited
    if item_id not in rater.items:
        raise NotFound("this link has no such item")
    store_answer(session, study.job_id, "rating", item_id, rater.id, {**checked(study.request, answers)}, study.id)
    rated = session.scalar(select(func.count()).where(is_rating(study), Answer.author == rater.id))
    if rated == len(rater.items):
        sync_reviews(session, study)


def checked(request: StudyRequest, form: Mapping[str, str]) -> dict[str, str]:
    """One allowed answer to every question. Raises InvalidInput."""
    answers = {}
    for question in request.question_list:
        answer = form.get(question.name, "").strip().lower()
        choices = CHOICES[question.kind]
        if answer not in choices:
            problem = f"it is {answer[:50]!r}" if answer else "there is no answer"
            raise InvalidInput(f"answer {question.name!r} with {', '.join(choices[:-1])} or {choices[-1]}; {problem}")
        answers[question.name] = answer
    return answers


def describe_changes(changes: list[StoredChange]) -> str:
    """The description of an edit for raters: "day → night", "→ rain" for an added phrase."""
    pairs = [
        (change["from_value"] or change["from_phrase"], change["to_value"] or change["to_phrase"]) for change in changes
    ]
    return "; ".join(f"{old} → {new}".strip() if new else f"without {old}" for old, new in pairs) or NOTHING


def items_csv(session: Session, owner: str, study_id: str) -> str:
    """One line per item, in the order of their random ids: the paths of its images, and the questions about it."""
    study = find(session, owner, study_id)
    questions = study.request.question_list
    header = ["item", "original_image", "changed_image", "instruction", *(question.name for question in questions)]
    expected = "; ".join(f"{question.name}: {ATTENTION[question.kind]}" for question in questions)
    rows = []
    for item in views(session, study):
        images = [f"/studies/{study_id}/items/{item.id}/{side}" for side in ("original", "changed")]
        instruction = f"This checks attention. Answer {expected}" if item.attention else ""
        rows.append([item.id, *images, instruction, *(item.text(question) for question in questions)])
    return _write([header, *rows])


def answers_csv(session: Session, owner: str, study_id: str) -> str:
    """One line per rating; `upload_answers` reads it again."""
    study = find(session, owner, study_id)
    names = [question.name for question in study.request.question_list]
    answers = load_answers(session, study)
    raters = session.scalars(select(StudyRater).where(StudyRater.study_id == study_id).order_by(StudyRater.id))
    ratings = [
        [rater.name or rater.id, item, *(given.get(name, "") for name in names)]
        for rater in raters
        for item, given in sorted(answers[rater.id].items())
    ]
    return _write([["rater", "item", *names], *ratings])


def upload_answers(session: Session, owner: str, study_id: str, data: bytes) -> AnswersStored:
    """Store the ratings of a CSV file, all or none; a rater's earlier rating of an item is replaced.

    `rater` is any name; names that differ only in case, spaces or invisible marks are one rater's. The id of an
    invited rater adds to their ratings. Raises NotFound, Malformed and InvalidInput.
    """
    study = find(session, owner, study_id)
    rows = list(_read(study, data))
    items = set(session.scalars(select(StudyItem.id).where(StudyItem.study_id == study_id)))
    ratings: dict[tuple[str, str], dict[str, str]] = {}
    names: dict[str, str] = {}
    for line, name, item, answers in rows:
        if item not in items:
            raise InvalidInput(f"line {line}: the study has no item {item[:50]!r}; take the ids from items.csv")
        rater = names.setdefault(identity(name), name)
        if (rater, item) in ratings:
            raise InvalidInput(f"line {line}: rater {rater[:50]!r} has rated item {item} before; keep one line")
        try:
            ratings[rater, item] = checked(study.request, answers)
        except InvalidInput as problem:
            raise InvalidInput(f"line {line}: {problem.detail}") from problem
    ids = _rater_ids(session, study, dict.fromkeys(rater for rater, _ in ratings))
    _replace(session, study, {(ids[rater], item): answers for (rater, item), answers in ratings.items()})
    sync_reviews(session, study)
    scores = load_scores(session, study)
    unchecked = sum(scores[rater].unchecked for rater in ids.values())
    return AnswersStored(answers=len(ratings), raters=len(ids), unchecked_raters=unchecked)


def _replace(session: Session, study: Study, ratings: Mapping[tuple[str, str], dict[str, str]]) -> None:
    """Write ratings, by rater and item, over earlier ones."""
    items: defaultdict[str, list[str]] = defaultdict(list)
    for rater, item in ratings:
        items[rater].append(item)
    a = Answer
    for rater, rated in items.items():
        session.execute(delete(a).where(is_rating(study), a.author == rater, a.item.in_(rated)))
    if ratings:
        key = {"job_id": study.job_id, "kind": "rating", "study_id": study.id}
        rows = [
            {**key, "author": rater, "item": item, "content": answers} for (rater, item), answers in ratings.items()
        ]
        session.execute(insert(a), rows)


def _rater_ids(session: Session, study: Study, names: Iterable[str]) -> dict[str, str]:
    """The ids of raters by name, or by id. Adds those that are new."""
    names = list(names)
    r = StudyRater
    known = {row.name or row.id: row.id for row in session.scalars(select(r).where(r.study_id == study.id))}
    alike = {identity(name): id for name, id in known.items()}
    known |= {name: alike[identity(name)] for name in names if name not in known and identity(name) in alike}
    new = {name: uuid.uuid4().hex for name in names if name not in known}
    count = len(set(known.values())) + len(new)
    if count > MAX_RATERS:
        raise InvalidInput(f"a study has at most {MAX_RATERS:,} raters; this file makes them {count:,}")
    rows: list[Mapping[str, object]] = [{"id": id, "study_id": study.id, "name": name} for name, id in new.items()]
    if rows:
        insert_missing(session, StudyRater, rows)
    stored = session.execute(select(r.name, r.id).where(r.study_id == study.id, r.name.in_(list(new))))
    known |= {name: rater for name, rater in stored if name is not None}
    return {name: known[name] for name in names}


def _read(study: Study, data: bytes) -> Iterable[tuple[int, str, str, dict[str, str]]]:
    """The lines of a file of answers: line number, rater, item, and the answers by question."""
    names = [question.name for question in study.request.question_list]
    reader = csv.reader(io.StringIO(_decode(data), newline=""), strict=True)
    try:
        header = [column.strip().lower() for column in next(reader, [])]
        if missing := [name for name in ("rater", "item", *names) if header.count(name) != 1]:
            raise InvalidInput(f"the first line needs each of rater, item, {', '.join(names)} once; see {missing[0]}")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise InvalidInput(f"line {reader.line_num} has {len(cells)} columns, not {len(header)}")
            values = dict(zip(header, cells, strict=True))
            rater = values["rater"].strip().removeprefix("'")
            if not identity(rater) or len(rater) > MAX_NAME or any(map(is_deceptive, rater)):
                raise InvalidInput(
                    f"line {reader.line_num}: a rater has 1 to {MAX_NAME} characters and no control characters"
                )
            yield reader.line_num, rater, values["item"].strip(), values
    except csv.Error as error:
        raise Malformed(f"line {reader.line_num} is not CSV: {error}") from error


def _decode(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Malformed("the file is not UTF-8; save it as CSV UTF-8") from error
    if "\0" in text:
        raise Malformed("the file contains U+0000; remove it")
    return text


def _write(rows: Iterable[Iterable[str]]) -> str:
    file = io.StringIO(newline="")
    csv.writer(file).writerows(map(csv_cell, row) for row in rows)
    return file.getvalue()

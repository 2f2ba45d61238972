"""CSV for crowd platforms: the items of a study out, answers in and out.

A cell that a spreadsheet would take for a formula gets an apostrophe before it.
"""

from __future__ import annotations

import csv
import io
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from gateway.database.sessions import insert_missing
from gateway.database.tables import Study, StudyAnswer, StudyItem, StudyRater
from gateway.studies.answers import checked, views
from gateway.studies.raters import MAX_RATERS
from gateway.studies.ratings import load_scores
from gateway.studies.results import sync_reviews
from gateway.studies.studies import find
from shared.characters import csv_cell, identity, is_deceptive
from shared.problems import InvalidInput, Malformed
from shared.schemas.studies import ATTENTION, AnswersStored

MAX_NAME = 200  # characters of a rater's name


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
    a, r = StudyAnswer, StudyRater
    answered = select(a.item_id, r.id, r.name, a.answers).join(r, a.rater_id == r.id).where(r.study_id == study_id)
    rows = session.execute(answered.order_by(r.id, a.item_id))
    ratings = [
        [name or rater, item, *(answers.get(question, "") for question in names)] for item, rater, name, answers in rows
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
    _replace(session, {(ids[rater], item): answers for (rater, item), answers in ratings.items()})
    sync_reviews(session, study)
    scores = load_scores(session, study)
    unchecked = sum(scores[rater].unchecked for rater in ids.values())
    return AnswersStored(answers=len(ratings), raters=len(ids), unchecked_raters=unchecked)


def _replace(session: Session, ratings: Mapping[tuple[str, str], dict[str, str]]) -> None:
    """Write ratings, by rater and item, over earlier ones."""
    items: defaultdict[str, list[str]] = defaultdict(list)
    for rater, item in ratings:
        items[rater].append(item)
    a = StudyAnswer
    for rater, rated in items.items():
        session.execute(delete(a).where(a.rater_id == rater, a.item_id.in_(rated)))
    if ratings:
        rows = [{"rater_id": rater, "item_id": item, "answers": answers} for (rater, item), answers in ratings.items()]
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

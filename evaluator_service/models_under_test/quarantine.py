"""Uploaded models that may not run, by digest: files in a folder, which a restart of the service keeps.

A model that ended its process or broke a limit is quarantined at once, with the reason. If the process is killed from
outside, or the whole service ends, the cause is unknown, so marks are counted: every load and batch sets a mark, and
`MAX_MARKS` marks quarantine the model. A batch that ends removes all marks, a load that ends only its own. Otherwise a
model that loads, and ends the service with its first batch, would never be quarantined.
An examination (the same files uploaded again) lifts the quarantine.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from shared.problems import ModelStopped
from shared.schemas.evaluation import QuarantinedModel

MAX_MARKS = 3
MAX_FILES = 1_000  # the oldest are deleted
LIFT = "upload the same files again to lift the quarantine"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    marks: int = 0
    reason: str = ""


class Quarantine:
    """The folder of quarantined digests."""

    def __init__(self, folder: str = "") -> None:
        """`folder` is created; if empty, it is this user's folder in the system's temporary directory."""
        self._folder = Path(folder or Path(tempfile.gettempdir(), f"contrafact-quarantine-{os.getuid()}"))
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def refuse(self, digest: str) -> None:
        """Raise ModelStopped for a quarantined model."""
        if reason := self._reason(digest):
            raise ModelStopped(f"the model is quarantined: {reason}; {LIFT}", members={"quarantined": True})

    def mark(self, digest: str) -> None:
        """Add a mark; call it before a load or a batch."""
        entry = self._read(digest)
        self._write(digest, entry.model_copy(update={"marks": entry.marks + 1}))

    def unmark(self, digest: str) -> None:
        """Remove one mark; call it after a load that the service survived. Earlier marks stay."""
        entry = self._read(digest)
        if entry.marks > 1:
            self._write(digest, entry.model_copy(update={"marks": entry.marks - 1}))
        else:
            self.clear(digest)

    def clear(self, digest: str) -> None:
        """Remove all marks; call it after a batch that the service survived, and before an examination."""
        self._path(digest).unlink(missing_ok=True)

    def record(self, digest: str, reason: str) -> None:
        """Quarantine a model."""
        self._write(digest, _Entry(reason=reason))
        for path in self._files()[MAX_FILES:]:
            path.unlink(missing_ok=True)

    def entries(self) -> list[QuarantinedModel]:
        """All quarantined models, the latest first."""
        reasons = {path.name: self._reason(path.name) for path in self._files()}
        return [QuarantinedModel(digest=digest, reason=reason) for digest, reason in reasons.items() if reason]

    def _reason(self, digest: str) -> str:
        entry = self._read(digest)
        if entry.marks >= MAX_MARKS and not entry.reason:
            return (
                f"its process was killed from outside, or the service ended, {entry.marks} times in a row while this "
                "model was loaded or run"
            )
        return entry.reason

    def _files(self) -> list[Path]:
        paths = [(path.stat().st_mtime, path) for path in self._folder.iterdir() if len(path.name) == 64]
        return [path for _, path in sorted(paths, reverse=True)]

    def _read(self, digest: str) -> _Entry:
        try:
            return _Entry.model_validate_json(self._path(digest).read_bytes())
        except (FileNotFoundError, ValidationError):  # the machine may have stopped while the file was written
            return _Entry()

    def _write(self, digest: str, entry: _Entry) -> None:
        self._path(digest).write_text(entry.model_dump_json(), encoding="utf-8")

    def _path(self, digest: str) -> Path:
        return self._folder / digest

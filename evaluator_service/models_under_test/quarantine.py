"""Uploaded models that may not run, by digest: files in a folder, so that they outlive the service.

A model that ended its process or broke a limit is quarantined at once, with the reason. A model during which its
process was killed from outside, or the whole service ended, is counted: every load and batch leaves a mark that its
end removes, and `MAX_MARKS` are quarantine. A batch that ends removes all marks, a load only its own: otherwise a
model that loads, and ends the service with its first batch, would never be quarantined.
An examination (the same files uploaded again) lifts it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from shared.problems import ModelStopped
from shared.schemas.evaluation import QuarantinedModel

MAX_MARKS = 3
MAX_FILES = 1_000  # the oldest are forgotten
LIFT = "upload the same files again to lift the quarantine"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    marks: int = 0
    reason: str = ""


class Quarantine:
    """The folder of quarantined digests."""

    def __init__(self, folder: str = "") -> None:
        """`folder` is created; empty: one of this user in the system's folder for temporary files."""
        self._folder = Path(folder or Path(tempfile.gettempdir(), f"contrafact-quarantine-{os.getuid()}"))
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def refuse(self, digest: str) -> None:
        """Raise ModelStopped for a quarantined model."""
        if reason := self._reason(digest):
            raise ModelStopped(f"the model is quarantined: {reason}; {LIFT}", members={"quarantined": True})

    def mark(self, digest: str) -> None:
        """Before a load or a batch."""
        entry = self._read(digest)
        self._write(digest, entry.model_copy(update={"marks": entry.marks + 1}))

    def unmark(self, digest: str) -> None:
        """After a load that the service survived: earlier marks stay."""
        entry = self._read(digest)
        if entry.marks > 1:
            self._write(digest, entry.model_copy(update={"marks": entry.marks - 1}))
        else:
            self.clear(digest)

    def clear(self, digest: str) -> None:
        """After a batch that the service survived, and before an examination."""
        self._path(digest).unlink(missing_ok=True)

    def record(self, digest: str, reason: str) -> None:
        """Quarantine a model."""
        self._write(digest, _Entry(reason=reason))
        for path in self._files()[MAX_FILES:]:
            path.unlink(missing_ok=True)

    def listed(self) -> list[QuarantinedModel]:
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
        except (FileNotFoundError, ValidationError):  # a file that was being written when the machine stopped
            return _Entry()

    def _write(self, digest: str, entry: _Entry) -> None:
        self._path(digest).write_text(entry.model_dump_json(), encoding="utf-8")

    def _path(self, digest: str) -> Path:
        return self._folder / digest

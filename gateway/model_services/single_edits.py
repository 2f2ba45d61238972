"""Splits a request for several images into one request per image, and joins the replies.

So each edit, null arm and sham arm is a recorded call with a deadline of its own: one that comes too late does not lose
the images that are finished. The requests are sent together, and the service's batcher merges them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from shared.endpoints import Reply, Request
from shared.problems import NotFinite, UnusableReply
from shared.schemas.base import Contract
from shared.schemas.diffusion import EditReply, EditRequest, RenderReply, RenderRequest
from shared.schemas.instructions import InstructReply, InstructRequest

# The fields with an entry per image. Corruptions and compositions take the CPU milliseconds, so they stay together.
_EDITS: Mapping[type[Contract], str] = {RenderRequest: "renderings", EditRequest: "edits", InstructRequest: "edits"}


def split(request: Request) -> list[Request]:
    """One request per image, in order; the request itself if it is for one image, or for none."""
    name = _EDITS.get(type(request), "")
    edits: Sequence[Contract] = getattr(request, name) if name else ()
    return [request.model_copy(update={name: [edit]}) for edit in edits] if len(edits) > 1 else [request]


def join(replies: Sequence[Reply | None]) -> Reply:
    """The reply to the whole request. None stands for an image that is not finite; not all may be None."""
    first = next(reply for reply in replies if reply is not None)
    if len(replies) == 1:
        return first
    joined: Contract
    match first:
        case RenderReply():
            joined = _join_renderings(first, cast(Sequence[RenderReply | None], replies))
        case EditReply():
            joined = _join_edits(first, cast(Sequence[EditReply | None], replies))
        case InstructReply():
            joined = _join_instructed(first, cast(Sequence[InstructReply | None], replies))
        case _:
            raise TypeError(f"a {type(first).__name__} is not joined")
    return cast(Reply, joined)


def refuse_unusable(replies: list[Reply | NotFinite | None], problems: dict[int, Exception]) -> None:
    """Turn an editor's unusable replies into refusals of these edits, if another edit of the image has a picture."""
    usable = next((one for one in replies if isinstance(one, InstructReply) and one.images[0] is not None), None)
    if usable is None:
        return
    for index, problem in list(problems.items()):
        if isinstance(problem, UnusableReply):
            del problems[index]
            refused = {"images": [None], "refusals": [problem.detail], "evaluations": 0}
            replies[index] = cast(Reply, usable.model_copy(update=refused))


def _join_renderings(first: RenderReply, replies: Sequence[RenderReply | None]) -> RenderReply:
    finite = [reply for reply in replies if reply is not None]
    protection = first.protection
    if protection is not None:
        outcomes = [reply.protection.outcomes[0] if reply and reply.protection else [] for reply in replies]
        protection = protection.model_copy(update={"outcomes": outcomes})
    return first.model_copy(
        update={
            "images": [image for reply in replies for image in (reply.images if reply else [None])],
            "controls": {region: image for reply in finite for region, image in reply.controls.items()},
            "prompts": [prompt for reply in replies for prompt in (reply.prompts if reply else [""])],
            "further_controls": {
                kind: {region: image for reply in finite for region, image in reply.further_controls[kind].items()}
                for kind in first.further_controls
            },
            "protection": protection,
        }
    )


def _join_edits(first: EditReply, replies: Sequence[EditReply | None]) -> EditReply:
    not_finite = [None] * len(first.images[0])
    refusals = [reason for reply in replies for reason in ((reply and reply.refusals) or [None])]
    costs = [reply.evaluations for reply in replies if reply is not None]
    dearest = {name: max(getattr(cost, name) for cost in costs) for name in ("source", "edit")}
    return first.model_copy(
        update={
            "images": [row for reply in replies for row in (reply.images if reply else [not_finite])],
            "evaluations": first.evaluations.model_copy(update=dearest),
            "prompts": [prompt for reply in replies for prompt in (reply.prompts if reply else [""])],
            "refusals": refusals if any(refusals) else [],
        }
    )


def _join_instructed(first: InstructReply, replies: Sequence[InstructReply | None]) -> InstructReply:
    return first.model_copy(
        update={
            "images": [image for reply in replies for image in (reply.images if reply else [None])],
            "refusals": [reason for reply in replies for reason in (reply.refusals if reply else [""])],
            "evaluations": max(reply.evaluations for reply in replies if reply is not None),
        }
    )

"""What a trial says of replies, right and wrong ones."""

import numpy as np
import pytest

from gateway.trial.steps import describe, generated_pictures
from shared.media.images import encode
from shared.schemas.base import Contract, ImagePayload
from shared.schemas.caption import CaptionReply
from shared.schemas.diffusion import InstructReply, RenderReply
from shared.schemas.evaluation import PredictReply, SegmentReply, StructureReply
from shared.schemas.language import GenerateReply

FLAT = ImagePayload(png=encode(np.zeros((16, 16, 3), np.uint8)))
NOISE = ImagePayload(png=encode(np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)))


def rendered(*images: ImagePayload | None) -> RenderReply:
    """A reply of the generator whose control image is black, as the edges of a plain picture are."""
    return RenderReply(images=list(images), controls={"full": FLAT}, keep_mask=None, evaluations=8)


@pytest.mark.parametrize(
    ("reply", "word", "faulty"),
    [
        (CaptionReply(captions=["A red bus on a street."]), "red bus", False),
        (CaptionReply(captions=["bus"]), "bus", True),
        (GenerateReply(value={}, text='{"a": 1}', attempts=1, prompt_tokens=1, completion_tokens=1), '"a"', False),
        (GenerateReply(value={}, text="{}", attempts=2, prompt_tokens=1, completion_tokens=1), "{}", True),
        (rendered(NOISE), "1 rendered", False),
        (rendered(NOISE, None), "1 rendered", True),
        (rendered(FLAT), "1 rendered", True),
        (PredictReply(classes=["bus", "car"], probabilities=[[0.2, 0.8]]), "car (80%)", False),
        (
            SegmentReply(classes=["sky", "road"], maps=[ImagePayload(png=encode(np.eye(4, dtype=np.uint8)))]),
            "sky 75%",
            False,
        ),
        (StructureReply(agreements=[0.62, 0.7]), "0.62, 0.70", False),
        (InstructReply(images=[NOISE], refusals=[""], keep_mask=None, evaluations=4), "1 edited", False),
        (InstructReply(images=[None], refusals=[""], keep_mask=None, evaluations=4), "0 edited", True),
        (InstructReply(images=[None], refusals=["too long"], keep_mask=None, evaluations=4), "refused", True),
        (
            InstructReply(images=[NOISE, None], refusals=["", "too long"], keep_mask=None, evaluations=4),
            "too long",
            False,
        ),
    ],
)
def test_a_reply_is_described_with_its_fault(reply: Contract, word: str, faulty: bool) -> None:
    outcome, fault = describe(reply)
    assert word in outcome
    assert bool(fault) == faulty


def test_missing_pictures_are_not_saved() -> None:
    assert generated_pictures(rendered(NOISE, None)) == [NOISE]

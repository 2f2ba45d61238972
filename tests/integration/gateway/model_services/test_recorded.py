"""Recorded calls: one per owner, request and weights, and consistent after a crash."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Picture
from sqlalchemy import select

from gateway.database.sessions import Sessions
from gateway.database.tables import Image, OwnedImage, Owner, RecordedCall
from gateway.model_services import clients
from gateway.model_services.breaker import Breaker, Subject
from gateway.model_services.clients import BrokenOff, ModelServices
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.model_services.recurring import RecurringReplies
from shared.media.images import encode
from shared.media.storage import DirectoryStore, call_key, image_key
from shared.problems import (
    DeadlineExceeded,
    DependencyFailed,
    GenerationFailed,
    InvalidInput,
    NotFinite,
    NotReady,
    Overloaded,
    UnusableReply,
)
from shared.profiles.weights import FROM_SERVER
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionRequest
from shared.schemas.diffusion import (
    EditRequest,
    InstructedEdit,
    InstructRequest,
    PromptEdit,
    Protection,
    Rendering,
    RenderReply,
    RenderRequest,
)
from shared.schemas.evaluation import EmbedReply, EmbedRequest, PredictRequest
from shared.schemas.language import GenerateRequest, Message
from shared.schemas.service import SERVICES, WeightsInfo
from shared.service.endpoints import Endpoint, Services
from tests.support.small_services import SmallServices, serve
from tests.support.threads import background

SOURCE = ImagePayload(png=encode(np.random.default_rng(0).integers(0, 255, (16, 16, 3)).astype(np.uint8)))
NOISE = InstructRequest(
    source=SOURCE,
    mask=SOURCE,
    edits=[InstructedEdit(instruction=text, seed=1) for text in ("Let it snow.", "Refuse.", "Let it rain.")],
)
EDITS = EditRequest(
    source=SOURCE,
    caption="a car",
    edits=[PromptEdit(prompt=prompt) for prompt in ("a car at night", "a car in fog", "a car")],
    self_fractions=[0.4, 0.8],
)
ARMS = RenderRequest(
    source=SOURCE,
    renderings=[
        Rendering(prompt="a car at night", seed=1),
        Rendering(prompt="a car in fog", region="structure", seed=1),
        Rendering(prompt="a car", seed=1),
    ],
    protection=Protection(classes=("car",)),
)
RENDER = RenderRequest(source=SOURCE, renderings=[Rendering(prompt="a car at night", seed=1)])


class Bench:
    """Recorded clients of owners over small services, a store and a database."""

    def __init__(self, sessions: Sessions, store: DirectoryStore, small: SmallServices, url: str) -> None:
        self.sessions, self.store, self.small = sessions, store, small
        self.plain = ModelServices(dict.fromkeys(SERVICES, url), deadline=20, wait=6)
        with sessions.begin() as session:
            session.add_all([Owner(id="ann", name="Ann"), Owner(id="bob", name="Bob")])

    def services(
        self, owner: str = "ann", source: str | None = None, recurring: RecurringReplies | None = None, **options: Any
    ) -> RecordedServices:
        shelf = ImageShelf(self.store, self.sessions, owner)
        return RecordedServices(
            self.plain, self.sessions, shelf, owner, source_digest=source, recurring=recurring, **options
        )

    def calls(self) -> list[RecordedCall]:
        with self.sessions() as session:
            return list(session.scalars(select(RecordedCall)))


@contextmanager
def open_bench(sessions: Sessions, directory: Path, small: SmallServices) -> Iterator[Bench]:
    with serve(small) as url:
        bench = Bench(sessions, DirectoryStore(directory), small, url)
        yield bench
        bench.plain.close()


@pytest.fixture
def bench(sessions: Sessions, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(sessions, tmp_path / "objects", SmallServices()) as bench:
        yield bench


def test_a_call_is_made_once_and_its_images_come_back_bit_for_bit(bench: Bench) -> None:
    first = bench.services().render(RENDER)
    second = bench.services().render(RENDER)
    assert first == second
    assert isinstance(second, RenderReply)
    assert bench.small.calls["render"] == 1
    (row,) = bench.calls()
    assert row.seconds > 0
    assert "png" not in str(row.reply)
    with bench.sessions() as session:
        digests = set(session.scalars(select(Image.digest)))
        assert digests == set(session.scalars(select(OwnedImage.digest).where(OwnedImage.owner_id == "ann")))
    assert all(bench.store.exists(image_key(digest)) for digest in digests)


class WideServices(SmallServices):
    """Embeddings as wide as those of full size, in float32."""

    def _embeddings(self, request: EmbedRequest) -> EmbedReply:
        self._called("embed")
        rows = [np.random.default_rng(len(text)).standard_normal(768, np.float32).tolist() for text in request.texts]
        return EmbedReply(images=[], texts=rows, logit_scale=10.0)


@pytest.fixture
def wide(sessions: Sessions, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(sessions, tmp_path / "objects", WideServices()) as bench:
        yield bench


def test_vectors_are_float32_in_the_object_store_and_come_back_bit_for_bit(wide: Bench) -> None:
    prompts = EmbedRequest(texts=["a" * number for number in range(200)])
    first = wide.services().embed(prompts)
    assert wide.services().embed(prompts) == first
    assert wide.small.calls["embed"] == 1
    (row,) = wide.calls()
    assert len(str(row.reply)) < 200
    assert len(wide.store.get(call_key(row.key))) < 200 * 768 * 4 + 1_000
    wide.store.delete(call_key(row.key))
    assert wide.services().embed(prompts) == first
    assert wide.small.calls["embed"] == 2
    assert wide.store.exists(call_key(row.key))


def test_what_another_image_has_recorded_is_read_once(wide: Bench) -> None:
    prompts = EmbedRequest(texts=["a" * number for number in range(10)])
    recurring = RecurringReplies()
    replies = [wide.services(source=source, recurring=recurring).embed(prompts) for source in ("1" * 64, "2" * 64)]
    (row,) = wide.calls()
    wide.store.delete(call_key(row.key))
    replies.append(wide.services(source="3" * 64, recurring=recurring).embed(prompts))
    assert replies == replies[:1] * 3
    assert wide.small.calls["embed"] == 1


@pytest.mark.parametrize(
    ("endpoint", "request_"), [(Services.render, ARMS), (Services.edit, EDITS), (Services.instruct, NOISE)]
)
def test_each_edit_is_a_call_of_its_own_and_the_reply_is_that_to_the_whole_request(
    bench: Bench, endpoint: Endpoint[Any, Any], request_: Any
) -> None:
    whole = bench.plain.call(endpoint, request_)
    assert bench.services().call(endpoint, request_) == whole
    assert len(bench.calls()) == 3
    assert bench.services().call(endpoint, request_) == whole
    assert bench.services().agrees(endpoint, request_, whole)
    assert sum(bench.small.calls.values()) == 1 + 3


def test_edits_that_are_finished_are_kept_when_others_fail(bench: Bench) -> None:
    bench.small.troubles = [DeadlineExceeded("the deadline passed in the queue")]
    with pytest.raises(DeadlineExceeded):
        bench.services().render(ARMS)
    assert len(bench.calls()) == 2
    assert bench.services().render(ARMS) == bench.plain.render(ARMS)
    assert bench.small.calls["render"] == 3 + 1


def test_an_edit_that_is_not_finite_is_null_unless_all_are(bench: Bench) -> None:
    bench.small.troubles = [NotFinite("NaN"), NotFinite("NaN")]
    reply = bench.services().render(ARMS)
    assert sum(image is None for image in reply.images) == 2
    bench.small.troubles = [NotFinite("NaN")] * 3
    with pytest.raises(NotFinite):
        bench.services("bob").render(ARMS)


def test_a_service_that_gives_no_image_is_failing_even_if_one_was_not_finite(bench: Bench) -> None:
    breaker = Breaker(pause=60.0, longest=3600.0)
    seen: list[BaseException] = []

    @contextmanager
    def guard(name: str) -> Iterator[None]:
        try:
            with breaker.call(name, Subject("one", 256)):
                yield
        except DeadlineExceeded as problem:
            seen.append(problem)
            raise

    bench.small.troubles = [NotFinite("NaN"), NotFinite("NaN"), DeadlineExceeded("late")]
    with pytest.raises(DeadlineExceeded):
        bench.services(guard=guard).render(ARMS)
    assert len(seen) == 1


def test_an_unusable_reply_refuses_its_edit_only(bench: Bench) -> None:
    bench.small.troubles = [UnusableReply("the editor sent a poem")]
    reply = bench.services().instruct(NOISE.model_copy(update={"edits": [NOISE.edits[0], NOISE.edits[2]]}))
    assert sorted(reply.refusals) == ["", "the editor sent a poem"]
    assert sum(image is None for image in reply.images) == 1
    assert len(bench.calls()) == 1
    bench.small.troubles = [UnusableReply("a poem"), UnusableReply("a poem"), UnusableReply("a poem")]
    with pytest.raises(UnusableReply):
        bench.services("bob").instruct(NOISE)


def test_a_service_that_answers_some_edits_is_not_failing(bench: Bench) -> None:
    breaker = Breaker(pause=60.0, longest=3600.0)
    for number in range(4):
        arms = ARMS.model_copy(update={"negative_prompt": str(number)})
        services = bench.services(guard=partial(breaker.call, subject=Subject(str(number), 256)))
        bench.small.troubles = [DeadlineExceeded("late")]
        with pytest.raises(DeadlineExceeded):
            services.render(arms)
    assert len(bench.calls()) == 4 * 2


def test_another_seed_owner_or_weights_is_another_call(bench: Bench) -> None:
    bench.services().render(RENDER)
    other_seed = RENDER.model_copy(update={"renderings": [Rendering(prompt="a car at night", seed=2)]})
    bench.services().render(other_seed)
    bench.services("bob").render(RENDER)
    assert bench.small.calls["render"] == 3
    bench.small.revision = "2"
    bench.plain._descriptions.clear()  # a minute later
    bench.services().render(RENDER)
    assert bench.small.calls["render"] == 4
    assert len(bench.calls()) == 4


def test_predictions_of_the_same_pixels_are_found_whatever_their_compression(bench: Bench) -> None:
    buffer = io.BytesIO()
    Picture.open(io.BytesIO(SOURCE.png)).save(buffer, "PNG", compress_level=0)
    bench.services().predict(PredictRequest(model="m", images=[SOURCE]))
    bench.services().predict(PredictRequest(model="m", images=[ImagePayload(png=buffer.getvalue())]))
    assert bench.small.calls["predict"] == 1


def test_a_reply_whose_image_was_removed_is_made_again(bench: Bench) -> None:
    image = bench.services().render(RENDER).images[0]
    assert image is not None
    digest = ImageShelf(bench.store, bench.sessions, "ann").keep(image.png)
    bench.store.delete(image_key(digest))
    assert bench.services().render(RENDER).images[0] == image
    assert bench.small.calls["render"] == 2
    assert bench.services().render(RENDER).images[0] == image
    assert bench.small.calls["render"] == 2


def test_a_busy_service_is_asked_again_and_a_refusal_is_not(bench: Bench) -> None:
    request = CaptionRequest(images=[SOURCE])
    bench.small.troubles = [Overloaded("full", retry_after=0.1), NotReady("loading", retry_after=0.1)]
    bench.services().caption(request)
    assert bench.small.calls["caption"] == 1
    bench.small.troubles = [InvalidInput("too strange"), InvalidInput("still too strange")]
    with pytest.raises(InvalidInput, match="too strange"):
        bench.services().caption(CaptionRequest(images=[SOURCE], prompt="strange"))
    assert len(bench.small.troubles) == 1
    assert len(bench.calls()) == 1


def test_an_absent_service_is_named_after_a_bounded_wait() -> None:
    services = ModelServices(dict.fromkeys(SERVICES, "http://127.0.0.1:9"), deadline=1, wait=0.3)
    with pytest.raises(NotReady, match="caption_service at http"):
        services.caption(CaptionRequest(images=[SOURCE]))
    services.close()


def test_weights_that_failed_to_load_are_not_waited_for(bench: Bench) -> None:
    bench.small.troubles = [NotReady("the weights failed to load: no file", members={"failed": True})] * 2
    with pytest.raises(NotReady, match="failed to load"):
        bench.services().caption(CaptionRequest(images=[SOURCE]))
    assert len(bench.small.troubles) == 1


def test_a_service_that_dies_during_a_call_has_its_own_error(bench: Bench) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def hang_up() -> None:
        connection, _ = listener.accept()
        connection.recv(1)
        connection.close()

    services = ModelServices(dict.fromkeys(SERVICES, f"http://127.0.0.1:{listener.getsockname()[1]}"), 5, 0.3)
    with closing(services), closing(listener), background(hang_up), pytest.raises(BrokenOff):
        services.caption(CaptionRequest(images=[SOURCE]))


def test_a_question_without_a_valid_reply_is_not_asked_again(bench: Bench) -> None:
    schema = {"type": "object", "properties": {"keywords": {"type": "array", "maxItems": 3}}}
    request = GenerateRequest(messages=[Message(role="user", content="A bus.")], json_schema=schema, seed=1)
    bench.small.troubles = [GenerationFailed("cut off after 512 tokens")]
    for _ in range(2):
        with pytest.raises(GenerationFailed, match="cut off after 512 tokens"):
            bench.services().generate(request)
    assert bench.small.calls["generate"] == 0
    assert bench.services().generate(request.model_copy(update={"seed": 2})).value


def test_a_server_without_a_valid_reply_is_asked_again(bench: Bench) -> None:
    """A job that was submitted again after the server's reasoning was off got the old failure."""
    schema = {"type": "object", "properties": {"keywords": {"type": "array", "maxItems": 3}}}
    request = GenerateRequest(messages=[Message(role="user", content="A bus.")], json_schema=schema, seed=1)
    bench.small.weights = [WeightsInfo(role="language", id="m", revision="1", dtype=FROM_SERVER, licence="none")]
    bench.small.troubles = [GenerationFailed("not JSON")]
    with pytest.raises(GenerationFailed, match="not JSON"):
        bench.services().generate(request)
    assert bench.services().generate(request).value


class FailingStore(DirectoryStore):
    """Has no room for the first `failures` objects."""

    failures = 0

    def put(self, key: str, data: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise DependencyFailed("no space left on device")
        super().put(key, data)


def test_a_reply_that_cannot_be_recorded_does_not_lose_its_siblings(bench: Bench, tmp_path: Path) -> None:
    bench.store = FailingStore(tmp_path / "small")
    bench.store.failures = 1
    with pytest.raises(DependencyFailed, match="no space left"):
        bench.services().render(ARMS)
    assert len(bench.calls()) == 2
    assert bench.services().render(ARMS) == bench.plain.render(ARMS)
    assert bench.small.calls["render"] == 3 + 1 + 1  # the plain one is of all three


def test_a_worker_holds_the_source_of_a_bounded_number_of_calls(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    together, most, changing = 0, 0, threading.Lock()
    render = SmallServices._renderings

    def count(small: SmallServices, request: RenderRequest) -> RenderReply:
        nonlocal together, most
        with changing:
            together, most = together + 1, max(most, together + 1)
        time.sleep(0.05)
        try:
            return render(small, request)
        finally:
            with changing:
                together -= 1

    monkeypatch.setattr(SmallServices, "_renderings", count)
    monkeypatch.setattr(clients, "BODY_BYTES", 2 * clients.COPIES * len(SOURCE.png))
    many = RENDER.model_copy(update={"renderings": [Rendering(prompt="a car", seed=seed) for seed in range(8)]})
    with serve(SmallServices()) as url, closing(ModelServices(dict.fromkeys(SERVICES, url))) as bench.plain:
        assert len(bench.services().render(many).images) == 8
    assert 0 < most <= 2


def test_edits_that_are_not_finite_are_rendered_once_unless_the_device_makes_nothing_else(bench: Bench) -> None:
    bench.small.troubles = [NotFinite("NaN")]
    reply = bench.services().render(ARMS)
    assert bench.services().render(ARMS) == reply
    assert bench.small.calls["render"] == 2
    assert bench.services().agrees(Services.render, ARMS, bench.plain.render(ARMS)) is False
    bench.small.troubles = [NotFinite("NaN")] * 3
    with pytest.raises(NotFinite):
        bench.services("bob").render(ARMS)
    assert None not in bench.services("bob").render(ARMS).images

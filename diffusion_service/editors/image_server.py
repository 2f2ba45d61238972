"""Edit an image by an instruction with a server's `/images/edits`, through OpenAI's client.

Import this module only if the profile names such a server: the client takes half a second to import.
"""

from __future__ import annotations

import base64
import binascii
import io
import re

import numpy as np
from openai import omit
from openai.types import ImagesResponse
from PIL import Image

from diffusion_service.geometry import fit_area, fit_by_stretching, to_model, to_source
from shared.media.images import Pixels, decode, encode
from shared.problems import Problem, UnusableReply
from shared.profiles.instruct import FormField, InstructServer
from shared.service.openai_connection import OpenAIConnection, as_sent
from shared.service.server_replies import count_unusable, unusable

MOST_BYTES = 256 * 1024**2  # of a reply: a PNG of 52 megapixels in base64, even of noise, and a margin
MULTIPLE = 32  # pixels; sizes of a `resolution`, which every supported model takes
_DATA_URL = re.compile(r"data:image/[\w+.-]+;base64,")  # before the image, from some servers
LEAST_SHAPE = 0.9  # of the server's aspect ratio to the source's, or the reverse; sizes are rounded to multiples


class ImageServer:
    """Sends edits to the profile's server, repeated as `OpenAIConnection` does."""

    def __init__(self, profile: InstructServer) -> None:
        self._connection = OpenAIConnection(profile.server, MOST_BYTES)
        self._profile = profile

    async def edit(
        self,
        source: Pixels,
        keep: Pixels | None,
        instruction: str,
        values: dict[FormField, int | float],
        deadline: float,
    ) -> Pixels:
        """The edited image at the source's size. `keep` (height × width) is not 0 where the source must stay.

        Both are sent at the profile's `resolution`, if it has one. Kept pixels are pasted back, because not every
        server honours the mask, and none keeps them exactly. Raises DeadlineExceeded, InvalidInput (the server refuses
        the content), DependencyFailed, also for a reply of more than `MOST_BYTES`, and UnusableReply for a reply
        without an image, or with one of another shape.
        """
        profile = self._profile
        form = {profile.fields[name]: value for name, value in values.items() if name in profile.fields}
        sent, kept = source, keep
        if profile.resolution is not None:
            geometry = fit_area(source.shape[1], source.shape[0], profile.resolution, MULTIPLE)
            sent, kept = to_model(source, geometry), None if keep is None else to_model(keep, geometry)
        async with self._connection.problems(deadline):
            reply = await self._connection.client.images.edit(
                image=("source.png", encode(sent), "image/png"),
                prompt=instruction,
                model=profile.server.model,
                n=1,
                extra_body={**profile.options, **form},
                extra_headers=self._connection.headers,
                mask=omit if kept is None else ("mask.png", _transparent_where_edited(sent, kept), "image/png"),
            )
        image = self._at_source_size(self._decode(reply), source)
        return image if keep is None else np.where(keep[..., None] > 0, source, image)

    def _decode(self, reply: ImagesResponse) -> Pixels:
        url = self._profile.server.url
        try:
            data = (reply.data or [])[0].b64_json
            assert data is not None
            encoded = _DATA_URL.sub("", data, count=1)
            return decode(base64.b64decode(encoded, validate=True))
        except (AttributeError, IndexError, TypeError, AssertionError) as error:
            sentence = "returned no `b64_json`; set `options` of [diffusion.instruct] so that it does"
            raise unusable(url, "no image", sentence, as_sent(reply)) from error
        except (binascii.Error, Problem) as error:
            raise unusable(url, "no image", f"returned no image that can be read: {error}", data or "") from error

    def _at_source_size(self, edited: Pixels, source: Pixels) -> Pixels:
        """The image at the source's size. Raises UnusableReply if its shape is another: it was cropped or padded."""
        (height, width), (edited_height, edited_width) = source.shape[:2], edited.shape[:2]
        shape = edited_width * height / (edited_height * width)
        if min(shape, 1 / shape) < LEAST_SHAPE:
            count_unusable(self._profile.server.url, "another shape")
            raise UnusableReply(
                f"{self._profile.server.url} returned {edited_width} × {edited_height} pixels for {width} × {height}; "
                "set the size in `options` of [diffusion.instruct], or use a server that keeps the shape"
            )
        return to_source(edited, fit_by_stretching((width, height), (edited_width, edited_height)))


def _transparent_where_edited(source: Pixels, keep: Pixels) -> bytes:
    """The protocol's mask as PNG: the source, transparent where it is edited."""
    alpha = np.where(keep > 0, np.uint8(255), np.uint8(0))
    buffer = io.BytesIO()
    Image.fromarray(np.dstack([source, alpha])).save(buffer, "PNG")
    return buffer.getvalue()

"""Convert pixels from the colour profile of their file (ICC) to sRGB, with littlecms through Pillow.

A profile is data of a stranger: its size is limited, and a profile that littlecms cannot read, or that belongs to other
pixels, is refused. Pixels with an sRGB profile, under any name, stay unchanged.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageCms

from shared.problems import InvalidInput, TooLarge

MAX_PROFILE_BYTES = 4 * 1024**2  # profiles of printing presses have up to 2.5 MB, those of cameras a few kB
_SRGB_TOLERANCE = 2  # levels of 255; the sRGB profiles in use round their curves differently
_MULTI_PROCESS = b"mpet"  # a list of arbitrarily many steps, which a small file can make arbitrarily slow
_ADVICE = "save the image in sRGB, or without the profile"
_CHANNELS = {"GRAY": "L", "RGB": "RGB", "CMYK": "CMYK"}  # colour space of a profile → Pillow's mode


def in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """The image (mode L, RGB or CMYK, 8 bits a channel) in sRGB, mode RGB.

    Relative colorimetric with black point compensation. Grey pixels may have a profile for RGB, and RGB pixels
    without colour one for grey. Raises TooLarge (bytes of the profile) and InvalidInput (not readable, or for other
    pixels).
    """
    if len(profile) > MAX_PROFILE_BYTES:
        raise TooLarge(f"the colour profile has more than {MAX_PROFILE_BYTES:,} bytes; {_ADVICE}")
    if _MULTI_PROCESS in profile:
        raise InvalidInput(f"the colour profile has multi-process elements, which are not supported; {_ADVICE}")
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        image = _for_profile(image, source.profile.xcolor_space.strip())
        transform = ImageCms.buildTransform(
            source,
            ImageCms.createProfile("sRGB"),
            image.mode,
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
        if image.mode != "CMYK" and _is_srgb(transform, image.mode):
            return image.convert("RGB")
        return _apply(transform, image)
    except (ImageCms.PyCMSError, OSError, ValueError) as error:
        raise InvalidInput(f"the colour profile cannot be read ({error}); {_ADVICE}") from error


def _for_profile(image: Image.Image, space: str) -> Image.Image:
    """The image in the mode that the profile is for. Raises InvalidInput if that would lose something."""
    mode = _CHANNELS.get(space)
    if mode == image.mode:
        return image
    if mode == "RGB" and image.mode == "L":
        return image.convert("RGB")
    if mode == "L" and image.mode == "RGB":
        red, green, blue = image.split()
        if red.tobytes() == green.tobytes() == blue.tobytes():
            return red
    raise InvalidInput(f"the colour profile is for {space} pixels, but the image has {image.mode} pixels; {_ADVICE}")


def _is_srgb(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    """Whether the transform leaves an even sample of all colours as they are."""
    if mode == "L":
        probe = Image.fromarray(np.arange(256, dtype=np.uint8)[None])
    else:
        levels = np.linspace(0, 255, 9).astype(np.uint8)
        probe = Image.fromarray(np.stack(np.meshgrid(levels, levels, levels), -1).reshape(27, 27, 3))
    before, after = (np.asarray(colours, np.int16) for colours in (probe.convert("RGB"), _apply(transform, probe)))
    return bool(np.abs(before - after).max() <= _SRGB_TOLERANCE)


def _apply(transform: ImageCms.ImageCmsTransform, image: Image.Image) -> Image.Image:
    converted = ImageCms.applyTransform(image, transform)
    if converted is None:  # only a transform in place returns None
        raise ValueError("littlecms returned no image")
    return converted

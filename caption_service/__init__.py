"""caption_service: images in, captions out, by whichever engine the profile names."""

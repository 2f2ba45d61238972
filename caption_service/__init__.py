"""caption_service: captions for images, by the engine that the profile names."""

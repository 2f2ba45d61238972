"""What both domains share in words and factors: scenes, phrases, captions, tasks of the language model."""

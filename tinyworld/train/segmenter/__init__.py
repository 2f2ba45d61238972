"""The segmenters of both domains: `python -m tinyworld.train.segmenter`."""

"""The segmenters of both domains: `python -m research.train.segmenter`."""

"""A trial on photographs: a pretrained ImageNet classifier, photographic cut-outs and backgrounds, all from packages."""

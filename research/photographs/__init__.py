"""A trial on photographs: a pretrained ImageNet classifier, cut-outs and backgrounds, all from packages."""

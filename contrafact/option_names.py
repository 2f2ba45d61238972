"""Refusals of the API in words of the command line, whose options are the API's fields."""

from __future__ import annotations

# `gateway.web.form_fields` does the same for the job form. Longer advice comes first.
_OPTIONS = {
    'send `"ground_truth": "none"`': "give `--no-labels`",
    "the spec does not say what they mean; give `masks` in it": "nothing says what they mean; give `--masks FILE`",
    "the spec does not say what the masks mean: give `masks`": "nothing says what the masks mean: give `--masks FILE`",
    "give `preprocessing` in the spec": "give `--preprocessing FILE`",
    "give `classes`, a list in their order": "give `--classes FILE`, a line for each in their order",
    "name `models`": "give `--model NAME`",
    "name `values`": "give `--value FACTOR=VALUE`",
    "send it as the part `manifest`": "give `--labels FILE`",
    "`label_map`": "`--label-map LABEL=CLASS`",
    "`masks.void`": "`void` of `--masks`",
    "`masks.classes`": "`classes` of `--masks`",
    "`object_masks`": "`--object-masks`",
    "`backgrounds`": "`--backgrounds`",
    "`calibration`": "`--calibration`",
}


def in_options(sentence: str) -> str:
    """The sentence with options of `contrafact` in place of the API's fields."""
    for field, option in _OPTIONS.items():
        sentence = sentence.replace(field, option)
    return sentence

"""What a method of your own needs: the registry `METHODS`, and the steps and types that the built-in methods use.

The notebook docs/notebooks/own-method.ipynb is an example, docs/how-to/add-a-method.md the guide. It
needs the system (`contrafact[embedded]`).
"""

from __future__ import annotations

try:
    from gateway.methods import METHODS, MethodSpec
    from gateway.methods.arms import RenderedArm, rows
    from gateway.methods.checks import check_images
    from gateway.methods.controlled import ControlledParameters, render_with_null_arms
    from gateway.methods.counterfactual import (
        Change,
        Edit,
        MethodCounterfactual,
        MethodImage,
        MethodParameters,
        TaskDescription,
        Verdict,
    )
    from gateway.methods.schedule import Inputs, Proposal
    from shared.service.endpoints import Services
except ModuleNotFoundError as error:
    message = f"{error}: methods are part of the system: install `contrafact[embedded]`"
    raise ImportError(message, name=error.name) from error

__all__ = [
    "METHODS",
    "Change",
    "ControlledParameters",
    "Edit",
    "Inputs",
    "MethodCounterfactual",
    "MethodImage",
    "MethodParameters",
    "MethodSpec",
    "Proposal",
    "RenderedArm",
    "Services",
    "TaskDescription",
    "Verdict",
    "check_images",
    "render_with_null_arms",
    "rows",
]

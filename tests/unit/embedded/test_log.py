"""What reaches the caller's terminal while the system runs in the caller's process."""

from __future__ import annotations

import logging
import warnings

import pytest
from transformers.utils.logging import get_logger

from embedded.run import quiet_libraries


def test_libraries_are_quiet_and_the_caller_is_not(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "contrafact")
    get_logger("transformers.models")  # its handler is there from now on
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shown, handlers = warnings.showwarning, logging.getLogger("transformers").handlers
        with quiet_libraries():
            logging.getLogger("transformers.models").warning("some weights are not used")
            warnings.warn_explicit("no feature names", UserWarning, "/x/site-packages/sklearn/base.py", 493)
            warnings.warn("the caller's", UserWarning, stacklevel=1)
        assert warnings.showwarning is shown
    assert [str(warning.message) for warning in caught] == ["the caller's"]
    assert capsys.readouterr().err == ""
    assert "some weights are not used" in caplog.text
    assert "no feature names" in caplog.text
    assert logging.getLogger("transformers").handlers is handlers

"""Editors: code that turns a source image and an edit into an image."""

"""Tests of caption_service."""

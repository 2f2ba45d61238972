"""Tests of llm_service."""

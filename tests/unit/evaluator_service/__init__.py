"""Tests of evaluator_service."""

"""Tests of evaluator_service.models_under_test."""

"""Repairs: retraining a model under test on accepted counterfactuals."""

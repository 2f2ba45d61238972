"""Programs of the evaluator_service with real brokers."""

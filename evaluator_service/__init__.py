"""evaluator_service: predictions of models under test, and the scores that the image and text checks need."""

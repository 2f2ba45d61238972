"""evaluator_service: predictions of models under test, embeddings of the scorer, structure agreement."""

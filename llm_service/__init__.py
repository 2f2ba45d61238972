"""llm_service: JSON values from messages under a schema, log-likelihoods of texts, and words for gaps."""

"""llm_service: messages and a JSON schema in, a value that satisfies the schema out; and log-likelihoods of texts."""

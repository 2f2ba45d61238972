"""People's reviews of counterfactuals."""

"""Human studies: a sample of counterfactuals, rated by people who see nothing that gives the answer away."""

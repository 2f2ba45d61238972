"""diffusion_service: source images and prompts in, rendered counterfactuals out."""

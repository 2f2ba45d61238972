"""diffusion_service: renders counterfactuals from source images and prompts."""

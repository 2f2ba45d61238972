"""Tests of diffusion_service."""

"""Tests of diffusion_service.editors."""

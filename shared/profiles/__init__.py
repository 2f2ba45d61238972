"""Profiles (TOML files): which weights a system loads, and the thresholds that belong to them."""

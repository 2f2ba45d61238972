"""Tests of promises that other parts rely on."""

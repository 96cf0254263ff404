"""Runs: one training each, as a folder that later commands read; its settings and the description of its data."""

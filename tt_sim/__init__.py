"""Simulated hardware: world, ball server, cameras, moteus boards, and the evaluations built on them."""

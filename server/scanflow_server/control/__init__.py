"""Controllers: each reconciles the observed state with the desired one.

They run in a loop, hold no state that matters, and may be killed at any instant.
"""

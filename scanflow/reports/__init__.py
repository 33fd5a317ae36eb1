"""The report of the closed loop: one HTML page without scripts, its plots drawn as SVG by pure functions."""

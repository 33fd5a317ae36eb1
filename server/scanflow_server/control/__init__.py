"""Controllers: each looks at what is wanted and what is so, and does what brings the second nearer to the first.

They look again and again, remember nothing that matters, and may be killed at any instant.
"""

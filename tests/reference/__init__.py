"""The reference (``docs/reference``), made from the code. ``make reference`` writes its pages again."""

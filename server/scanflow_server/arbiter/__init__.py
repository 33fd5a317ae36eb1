"""The arbiter: which of the things that agents want is done, and why. Pure, but for its engine, which does them."""

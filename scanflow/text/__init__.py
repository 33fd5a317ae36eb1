"""Text for people: made safe to print, secrets masked, tracebacks cut to the user's own frames, tables as HTML."""

"""Records as lines and tables for people. Pure: no terminal, no colours, no input or output."""

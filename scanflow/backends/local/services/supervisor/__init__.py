"""The process that keeps one service as it is wanted."""

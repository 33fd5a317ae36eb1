"""The process that reconciles one service with its desired state."""

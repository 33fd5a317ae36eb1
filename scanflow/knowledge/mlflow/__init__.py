"""The only package that imports MLflow, and only inside functions: the import takes seconds."""

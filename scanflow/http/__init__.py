"""HTTP beside any framework: errors as problem documents, which requests may be answered, the home's token."""

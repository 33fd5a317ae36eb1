"""HTTP without a framework: errors as problem documents, checks of requests, the home's token."""

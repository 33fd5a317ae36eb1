"""The application model, as users describe it. Frozen, validated on construction, without input or output."""

"""Which granularity and affinity a service does best with, found by measuring it: thesis 4.2 and 4.4."""

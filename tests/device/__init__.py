"""What needs a real GPU: checks (``make nightly STAGES=gpu``) and the table of docs/gpu.md (``make bench-gpu``)."""

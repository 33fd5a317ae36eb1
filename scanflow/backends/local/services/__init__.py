"""Online workflows on one machine: a supervisor for each, and the instances it keeps serving."""

"""How processes speak to a supervisor and to instances."""

"""The server's database: desired state, requests and events. The state of runs is the backend's."""

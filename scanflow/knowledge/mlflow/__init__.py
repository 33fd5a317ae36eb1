"""The one door to MLflow. Only this folder imports it, and only inside functions: it takes seconds to load."""

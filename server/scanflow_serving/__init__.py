"""The model server that runs inside an instance: an inference graph behind HTTP and gRPC."""

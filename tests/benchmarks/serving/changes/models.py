"""Registers two versions of a small ONNX model in the home folder that ``SCANFLOW_HOME`` names."""

import os
import tempfile
from pathlib import Path

import mlflow.onnx
import onnx
from onnx import TensorProto, helper

from scanflow.knowledge import open_knowledge


def model(added: float) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "added"], ["y"])],
        "add",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 4])],
        [helper.make_tensor("added", TensorProto.FLOAT, [1], [added])],
    )
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


if __name__ == "__main__":
    knowledge = open_knowledge(Path(os.environ["SCANFLOW_HOME"]))
    for version in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            mlflow.onnx.save_model(model(float(version)), f"{folder}/model", pip_requirements=["onnxruntime"])
            knowledge.register_model("changing", Path(folder) / "model", app="bench", team="bench")

"""The same for MLServer."""

from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class Noop(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        tensor = payload.inputs[0]
        output = ResponseOutput(name="output", shape=tensor.shape, datatype=tensor.datatype, data=tensor.data)
        return InferenceResponse(model_name=self.name, outputs=[output])

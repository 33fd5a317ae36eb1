"""The bare web application: Starlette, the Open Inference Protocol's JSON in and out, and nothing else."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


async def infer(request: Request) -> JSONResponse:
    asked = await request.json()
    tensor = asked["inputs"][0]
    output = {"name": "output", "shape": tensor["shape"], "datatype": tensor["datatype"], "data": tensor["data"]}
    return JSONResponse({"model_name": "noop", "outputs": [output]})


async def reverse(request: Request) -> Response:
    return Response((await request.body())[::-1], media_type="application/octet-stream")


app = Starlette(
    routes=[
        Route("/v2/models/noop/infer", infer, methods=["POST"]),
        Route("/v2/models/reverse/infer", reverse, methods=["POST"]),
    ]
)

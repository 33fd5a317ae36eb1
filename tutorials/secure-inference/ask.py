"""Asks the service over HTTP and gRPC with the certificate of a client, by plain libraries: ``python ask.py ada``."""

import http.client
import json
import os
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import numpy as np

import scanflow as sf
from scanflow.transport.tensors import INFER_METHOD, encode_grpc_request

pki = Path(os.environ.get("SCANFLOW_HOME", "~/.scanflow")).expanduser() / "pki"
picture = np.load("picture.npy")


def ask_over_http(url, certificate, key):
    context = ssl.create_default_context(cafile=pki / "authority.pem")
    if certificate.exists():
        context.load_cert_chain(certificate, key)
    connection = http.client.HTTPSConnection(urlsplit(url).netloc, context=context, timeout=60)
    tensor = {"name": "x", "shape": picture.shape, "datatype": "FP32", "data": picture.ravel().tolist()}
    connection.request("POST", "/v2/models/digits/infer", json.dumps({"inputs": [tensor]}))
    answer = connection.getresponse()
    body = json.loads(answer.read())
    return f"{answer.status}" if answer.status == 200 else f"{answer.status} {body['detail']}"


def ask_over_grpc(address, certificate, key):
    pair = (key.read_bytes(), certificate.read_bytes()) if certificate.exists() else (None, None)
    credentials = grpc.ssl_channel_credentials((pki / "authority.pem").read_bytes(), *pair)
    with grpc.secure_channel(address, credentials) as channel:
        try:
            channel.unary_unary(INFER_METHOD)(encode_grpc_request("digits", {"x": picture}), timeout=60)
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


name = sys.argv[1]
files = pki / "issued" / f"{name}.pem", pki / "issued" / f"{name}.key"
service = sf.Client().service("digits")
print(f"{name} over HTTP: {ask_over_http(service.url, *files)}")
print(f"{name} over gRPC: {ask_over_grpc(service.grpc, *files)}")

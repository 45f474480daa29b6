"""Tests the index of models of a server without a model folder."""

from __future__ import annotations

import tritonclient.grpc
import tritonclient.http

from tests.served import perceptron
from tvm_interop.serving import Server


def test_a_server_of_fixed_models_lists_them() -> None:
    with Server({"net": perceptron()}, http_port=0, grpc_port=0, policy="sequential") as server:
        with tritonclient.http.InferenceServerClient(server.http_url) as client:
            (row,) = client.get_model_repository_index()
        assert (row["name"], row["state"]) == ("net", "READY")
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            (told,) = client.get_model_repository_index().models
        assert (told.name, told.state) == ("net", "READY")

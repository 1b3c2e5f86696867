"""Run by the interpreter of tests/e2e/triton.py: what Triton's official client makes of a worker, as JSON on standard output."""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as triton  # type: ignore[import-not-found] # in the environment of the script only
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2


def describe(files: Iterable[descriptor_pb2.FileDescriptorProto]) -> dict[str, object]:
    """Messages, enums and calls of some files in a form that can be compared: what decides how they look on the wire."""
    found: dict[str, object] = {}

    def message(prefix: str, one: descriptor_pb2.DescriptorProto) -> None:
        name = f"{prefix}.{one.name}"
        for field in one.field:
            found[f"{name}.{field.name}"] = [field.number, field.type, field.label, field.type_name]
        for nested in one.nested_type:
            message(name, nested)
        for values in one.enum_type:
            enum(name, values)

    def enum(prefix: str, one: descriptor_pb2.EnumDescriptorProto) -> None:
        for value in one.value:
            found[f"{prefix}.{one.name}.{value.name}"] = value.number

    for file in files:
        for top in file.message_type:
            message(file.package, top)
        for values in file.enum_type:
            enum(file.package, values)
        for service in file.service:
            for call in service.method:
                streams = [call.client_streaming, call.server_streaming]
                found[f"{file.package}.{service.name}/{call.name}"] = [call.input_type, call.output_type, *streams]
    return found


def compare(ours_path: str) -> dict[str, object]:
    """Names in our files whose meaning on the wire is another than in the official ones, or that those lack."""
    ours = descriptor_pb2.FileDescriptorSet.FromString(Path(ours_path).read_bytes())
    official = []
    for module in (service_pb2, model_config_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        official.append(file)
    theirs = describe(official)
    own = describe(ours.file)
    return {"compared": len(own), "different": sorted(name for name, what in own.items() if theirs.get(name) != what)}


def tensor(name: str, array: npt.NDArray[Any], datatype: str) -> triton.InferInput:
    """An input with its values."""
    found = triton.InferInput(name, array.shape, datatype)
    found.set_data_from_numpy(array)
    return found


def session(address: str) -> dict[str, object]:
    """Every call that the client has for a worker like ours."""
    client = triton.InferenceServerClient(address)
    tokens = np.arange(3 * 17, dtype=np.int64).reshape(3, 17) % 1000
    encoded = client.infer("encoder", [tensor("tokens", tokens, "INT64")], request_id="one", client_timeout=60)
    step = [
        tensor(name, np.array(values, dtype=np.int64), "INT64")
        for name, values in (("tokens", [5, 6]), ("slots", [0, 1]), ("positions", [0, 0]))
    ]
    decoded = client.infer("decode", step, outputs=[triton.InferRequestedOutput("logits"), triton.InferRequestedOutput("next_token")])

    replies: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: replies.put((result, error)))
    for number in range(1, 9):
        client.async_stream_infer("encoder", [tensor("tokens", tokens[:1, :number], "INT64")], request_id=str(number))
    client.async_stream_infer("encoder", [tensor("nonsense", tokens, "INT64")], request_id="bad")
    streamed: dict[str, list[int]] = {}
    errors: list[str] = []
    for _ in range(9):
        result, error = replies.get(timeout=60)
        if error is not None:
            errors.append(str(error))
        else:
            streamed[result.get_response().id] = list(result.as_numpy("embedding").shape)
    client.stop_stream()

    pending: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.async_infer("encoder", [tensor("tokens", tokens, "INT64")], lambda result, error: pending.put((result, error)))
    later, error = pending.get(timeout=60)
    try:
        client.infer("nosuchmodel", [tensor("tokens", tokens, "INT64")])
        unknown = ""
    except triton.InferenceServerException as refused:  # what users of the client catch
        unknown = str(refused.status())
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready("encoder"),
        "server": client.get_server_metadata(as_json=True),
        "metadata": client.get_model_metadata("encoder", as_json=True),
        "config": client.get_model_config("encoder", as_json=True)["config"],
        "statistics": client.get_inference_statistics("encoder", as_json=True)["model_stats"][0],
        "index": client.get_model_repository_index(as_json=True)["models"],
        "embedding": encoded.as_numpy("embedding").tolist(),
        "id": encoded.get_response().id,
        "parameters": {name: value.string_param for name, value in encoded.get_response().parameters.items()},
        "async_equals_sync": error is None and bool(np.allclose(later.as_numpy("embedding"), encoded.as_numpy("embedding"), atol=1e-5)),
        "logits": list(decoded.as_numpy("logits").shape),
        "next_token": decoded.as_numpy("next_token").tolist(),
        "argmax": decoded.as_numpy("logits").argmax(axis=-1).tolist(),
        "streamed": streamed,
        "stream_errors": errors,
        "unknown_model": unknown,
    }


if __name__ == "__main__":
    what, argument = sys.argv[1:]
    json.dump({"compare": compare, "session": session}[what](argument), sys.stdout)

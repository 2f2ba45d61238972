"""What MLflow and an offline run of Weights & Biases have stored, as JSON; run as a program of its own."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

BLOCK = 32_768  # of a W&B log, which has the format of LevelDB's
HEADER = 7
ENDS = (1, 4)  # a whole record, the last part of one


def read_mlflow(uri: str, run_id: str) -> dict[str, object]:
    """A run of MLflow."""
    from mlflow.tracking import MlflowClient  # an extra

    client = MlflowClient(uri)
    run = client.get_run(run_id)
    (data,) = run.inputs.dataset_inputs
    return {
        "experiment": client.get_experiment(run.info.experiment_id).name,
        "status": run.info.status,
        "metrics": run.data.metrics,
        "parameters": run.data.params,
        "digest": data.dataset.digest,
        "files": [file.path for file in client.list_artifacts(run_id)],
        "page": Path(client.download_artifacts(run_id, "report.html", ".")).read_text(encoding="utf-8"),
    }


def read_wandb(log: Path) -> dict[str, object]:
    """The log of an offline run: metrics, exit code, and artifacts by type with metadata and file names."""
    from wandb.proto.wandb_internal_pb2 import Record  # an extra

    metrics, artifacts, code = {}, {}, None
    for data in _records(log.read_bytes()):
        record = Record.FromString(data)
        for item in record.history.item:
            metrics[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        code = record.exit.exit_code if record.HasField("exit") else code
        artifact = record.artifact if record.HasField("artifact") else record.request.log_artifact.artifact
        if artifact.name:
            files = [entry.path for entry in artifact.manifest.contents]
            artifacts[artifact.type] = {"metadata": json.loads(artifact.metadata), "files": files}
    return {"metrics": metrics, "artifacts": artifacts, "exit code": code}


def _records(content: bytes) -> Iterator[bytes]:
    at, record = HEADER, b""  # the file begins with a header of the same length as a record
    while at < len(content):
        left_in_block = BLOCK - at % BLOCK
        if left_in_block < HEADER:
            at += left_in_block
            continue
        size, kind = struct.unpack("<HB", content[at + 4 : at + HEADER])
        record += content[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in ENDS:
            yield record
            record = b""


if __name__ == "__main__":
    print(json.dumps(read_mlflow(*sys.argv[2:]) if sys.argv[1] == "mlflow" else read_wandb(Path(sys.argv[2]))))

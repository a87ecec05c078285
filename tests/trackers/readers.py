"""Read back what trackers wrote."""

import json
import struct
from pathlib import Path

Figures = dict[str, list[tuple[int, float]]]  # by name: steps and values


def read_tensorboard(folder: Path) -> Figures:
    """The scalars of all event files, as TensorBoard shows them: a start event discards later steps before it."""
    from tensorboardX.crc32c import crc32c
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    def masked(data: bytes) -> int:
        crc = crc32c(data)
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    found: Figures = {}
    for file in sorted(folder.glob("events.*"), key=lambda path: int(path.suffix[1:])):
        content, at = file.read_bytes(), 0
        while at < len(content):
            header, data_at = content[at : at + 8], at + 12
            (size,), (check,) = struct.unpack("<Q", header), struct.unpack("<I", content[at + 8 : data_at])
            data = content[data_at : data_at + size]
            assert check == masked(header)
            assert struct.unpack("<I", content[data_at + size : data_at + size + 4])[0] == masked(data)
            at = data_at + size + 4
            event = Event.FromString(data)
            if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                found = {key: [one for one in values if one[0] < event.step] for key, values in found.items()}
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def read_wandb(folder: Path) -> Figures:
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    found: Figures = {}
    for file in sorted(folder.glob("offline-run-*/*.wandb")):
        store = DataStore()
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = Record.FromString(bytes(data))
            for item in record.history.item:
                name = "/".join(item.nested_key) or item.key
                if not name.startswith("_"):
                    found.setdefault(name, []).append((record.history.step.num, json.loads(item.value_json)))
    return {name: sorted(values) for name, values in found.items()}  # names of files are not in the order of time


def read_mlflow(folder: Path) -> Figures:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("bespoke")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert run.data.params["method"] == "ditto" and run.data.params["set.prox_weight"] == "1.0"
    history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: sorted((one.step, one.value) for one in values) for name, values in history.items()}

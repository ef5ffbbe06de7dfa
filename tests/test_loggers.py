"""Loggers are told what metrics.jsonl has; MLflow and Weights & Biases themselves read back what they were told."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from conftest import TINY, TinyConfig
from fewtags import Tagger
from fewtags.data.prepare import split_data
from fewtags.engine.run_log import read_rows
from fewtags.engine.training import train
from fewtags.errors import MissingExtra, UserError
from fewtags.loggers import Logger, logger_class, opened
from fewtags.models.saved import load_model


class Recorder(Logger):
    def __init__(self):
        self.told = []

    def start(self, folder, settings):
        self.told.append(("start", folder, settings))

    def row(self, kind, epoch, values):
        self.told.append(("row", kind, epoch, dict(values)))

    def finish(self, result, categories):
        self.told.append(("finish", result, categories))

    def artifact(self, file):
        self.told.append(("artifact", file))

    def close(self, failed=False):
        self.told.append(("close", failed))


def trained_with(patches, folder: Path, recorder: Logger, **options):
    config = TinyConfig.make()
    with opened([recorder]) as loggers:
        train(
            config, folder, data=split_data(patches, config.data, config.seed), quiet=True, loggers=loggers, **options
        )


def test_a_logger_is_told_what_the_run_writes(patches, tmp_path):
    recorder = Recorder()
    trained_with(patches, tmp_path / "run", recorder)
    (start, folder, settings), *rows, (_, result, categories), close = recorder.told
    assert (start, folder, close) == ("start", tmp_path / "run", ("close", False))
    assert (settings["train.epochs"], settings["method.name"]) == (2, "an")
    written = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [(kind, epoch) for _, kind, epoch, _ in rows] == [(row["kind"], row["epoch"]) for row in written]
    assert rows[0][3]["loss"] == written[0]["loss"]
    assert result["test"] == json.loads((tmp_path / "run" / "result.json").read_text())["test"]
    assert [row["category"] for row in categories] == patches.categories
    assert [row["test_ap"] for row in categories] == result["test"]["per_category"]
    assert [row["known_images"] for row in categories] == load_model(tmp_path / "run").data["known_positives"]


def test_a_failed_run_is_closed_as_such(patches, tmp_path):
    class Broken(Recorder):
        def row(self, kind, epoch, values):
            raise OSError("the tracker's disk is full")

    recorder = Broken()
    with pytest.raises(OSError, match="disk is full"):
        trained_with(patches, tmp_path / "run", recorder)
    assert recorder.told[-1] == ("close", True)


def test_a_tagger_takes_loggers(patches):
    recorder = Recorder()
    settings = [setting for setting in TINY if not setting.startswith(("method", "model.backbone", "model.pretrained"))]
    Tagger("an", "test_resnet", pretrained=False, settings=settings, loggers=[recorder]).fit(patches)
    assert [what for what, *_ in recorder.told if what != "row"] == ["start", "finish", "close"]


def test_unknown_and_missing_loggers_are_named(monkeypatch):
    with pytest.raises(UserError, match="no logger 'mlflwo'; did you mean 'mlflow'"):
        logger_class("mlflwo")
    for name, extra in (("mlflow", "mlflow"), ("wandb", "wandb")):
        monkeypatch.setitem(__import__("sys").modules, name, None)
        with pytest.raises(MissingExtra, match=rf"fewtags\[{extra}\]"):
            logger_class(name)()


# --- the trackers themselves ---

TRAIN = """
import sys
from fewtags.cli import main
sys.argv = ["fewtags", "train", *sys.argv[1:]]
main()
"""

READ_MLFLOW = """
import json, sys
from pathlib import Path
import mlflow
client = mlflow.MlflowClient()
(run,) = client.search_runs(["0"])
id = run.info.run_id
names = sorted(file.path for file in client.list_artifacts(id))
text = Path(mlflow.artifacts.download_artifacts(run_id=id, artifact_path="categories.json")).read_text()
report = Path(mlflow.artifacts.download_artifacts(run_id=id, artifact_path="report.html")).read_text()
print(json.dumps({
    "name": run.info.run_name, "status": run.info.status, "params": run.data.params, "artifacts": names,
    "loss": [[m.step, m.value] for m in client.get_metric_history(id, "train/loss")],
    "map": [[m.step, m.value] for m in client.get_metric_history(id, "test/map")],
    "final": run.data.metrics["final-test/map"], "table": json.loads(text), "report": "<html" in report,
}))
"""


@pytest.fixture
def words(patches, tags_file, tmp_path) -> list[object]:
    return [
        patches.root,
        "--tags",
        tags_file,
        *TINY,
        "train.epochs=2",
        "train.schedule=none",
        "--quiet",
        "--out",
        tmp_path / "run",
    ]


def history(folder: Path, kind: str, name: str) -> list[tuple[int, float]]:
    return [(row["epoch"], row[name]) for row in read_rows(folder / "metrics.jsonl") if row["kind"] == kind]


@pytest.mark.slow
def test_mlflow_keeps_metrics_settings_table_and_report(other_side, words, tmp_path):
    place = {"MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    other_side("trackers", TRAIN, *words, "--logger", "mlflow", **place)
    kept = json.loads(other_side("trackers", READ_MLFLOW, **place).splitlines()[-1])
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (kept["name"], kept["status"]) == ("run", "FINISHED")
    assert kept["params"]["train.epochs"] == "2"
    np.testing.assert_allclose(kept["loss"], history(tmp_path / "run", "train", "loss"))
    np.testing.assert_allclose(kept["map"], history(tmp_path / "run", "eval", "map"))
    assert kept["final"] == pytest.approx(result["test"]["map"])
    assert kept["artifacts"] == ["categories.json", "report.html"]
    assert kept["report"]
    columns = kept["table"]["columns"]
    assert [row[columns.index("test_ap")] for row in kept["table"]["data"]] == pytest.approx(
        result["test"]["per_category"]
    )
    more = ["--resume", tmp_path / "run", "--epochs", 3, "--quiet", "--logger", "mlflow"]
    other_side("trackers", TRAIN, *more, **place)  # continues the same run of MLflow
    kept = json.loads(other_side("trackers", READ_MLFLOW, **place).splitlines()[-1])
    np.testing.assert_allclose(kept["loss"], history(tmp_path / "run", "train", "loss"))
    assert len(kept["loss"]) == 3


READ_WANDB = """
import json, sys
from pathlib import Path
from wandb.proto import wandb_internal_pb2 as pb
from wandb.sdk.internal import datastore
(file,) = Path(sys.argv[1]).glob("offline-run-*/run-*.wandb")
store = datastore.DataStore()
store.open_for_scan(str(file))
def read(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
found = {"history": [], "config": {}, "summary": {}, "artifacts": [], "exit": None}
while (data := store.scan_data()) is not None:
    record = pb.Record()
    record.ParseFromString(data)
    kind = record.WhichOneof("record_type")
    if kind == "history":
        found["history"].append(read(record.history.item))
    elif kind == "run":
        found["config"].update(read(record.run.config.update))
        found["name"] = record.run.display_name
    elif kind == "summary":
        found["summary"].update(read(record.summary.update))
    elif kind == "artifact":
        found["artifacts"].append(record.artifact.type)
    elif kind == "exit":
        found["exit"] = record.exit.exit_code
print(json.dumps(found))
"""


@pytest.mark.slow
def test_weights_and_biases_keeps_them_too_offline(other_side, words, tmp_path):
    where = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    other_side("trackers", TRAIN, *words, "--logger", "wandb", **where)
    kept = json.loads(other_side("trackers", READ_WANDB, tmp_path / "wandb").splitlines()[-1])
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (kept["name"], kept["exit"], kept["config"]["train.epochs"]) == ("run", 0, 2)
    losses = [(row["epoch"], row["train/loss"]) for row in kept["history"] if "train/loss" in row]
    np.testing.assert_allclose(losses, history(tmp_path / "run", "train", "loss"))
    assert kept["summary"]["final-test/map"] == pytest.approx(result["test"]["map"])
    (table,) = [row for row in kept["history"] if "categories/_type" in row]
    assert (table["categories/_type"], table["categories/nrows"]) == ("table-file", 3)
    assert "report" in kept["artifacts"]
    assert all(math.isfinite(value) for _, value in losses)

"""A Ray cluster gives what one process gives, whichever worker computed what, and however many were lost."""

from __future__ import annotations

import csv
import functools
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from conftest import TINY, Cli, TinyConfig
from fewtags.data.prepare import split_data
from fewtags.engine import ray_pass
from fewtags.engine.cluster import active_cluster, cluster, start_on_loopback
from fewtags.engine.prediction import predict_files
from fewtags.engine.training import train
from fewtags.errors import MissingExtra, UserError
from fewtags.models.saved import load_model

ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")


@pytest.fixture(scope="module")
def two_workers():
    """A Ray of this machine with two workers, which all of these tests share."""
    with pytest.MonkeyPatch.context() as patch:
        # Ray's workers stand back for every other process, and on a busy machine would take for ever.
        patch.setenv("RAY_worker_niceness", "0")
        patch.setattr(ray, "init", functools.partial(ray.init, num_cpus=2, object_store_memory=10**8))
        start_on_loopback(ray)
    yield
    ray.shutdown()


@pytest.fixture
def on_ray(two_workers, monkeypatch):
    """Compute on Ray, in shards of eight images."""
    monkeypatch.setattr(ray_pass, "SHARD", 8)
    with cluster("local") as machines:
        yield machines


def trained_by(config, patches, folder: Path) -> np.ndarray:
    train(config, folder, data=split_data(patches, config.data, config.seed), quiet=True)
    with np.load(folder / "predictions-test.npz") as kept:
        return kept["probabilities"]


def config_of(method: str, tmp_path: Path, name: str):
    return TinyConfig.make(f"method={method}", "model.train_from=head", f"cache.folder={tmp_path / name}")


@pytest.mark.parametrize("method", ["instant", "refined"])
def test_the_tagger_of_two_workers_is_that_of_one_process(method, patches, tmp_path, two_workers, monkeypatch):
    monkeypatch.setattr(ray_pass, "SHARD", 8)
    alone = trained_by(config_of(method, tmp_path, "cache-one"), patches, tmp_path / "one")
    with cluster("local"):
        together = trained_by(config_of(method, tmp_path, "cache-two"), patches, tmp_path / "two")
    np.testing.assert_array_equal(together, alone)
    first, second = (load_model(tmp_path / name).classifier.state_dict() for name in ("one", "two"))
    for name, value in first.items():
        np.testing.assert_array_equal(second[name].numpy(), value.numpy(), err_msg=name)


def kills_itself_once(read, row: int, marker: Path):
    """`read`, but the first worker that gets to this row dies of it."""

    def reader(key):
        if (key[0] if isinstance(key, tuple) else key) == row and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return read(key)

    return reader


def test_a_lost_workers_shard_is_done_again_and_counted_once(on_ray, trained, patches, tmp_path, monkeypatch):
    saved = load_model(trained)
    files = [patches.path(row) for row in range(len(patches))]
    over = ray_pass.RayPass.over
    marker = tmp_path / "killed"
    monkeypatch.setattr(
        ray_pass.RayPass, "over", lambda self, keys, read: over(self, keys, kills_itself_once(read, 17, marker))
    )
    found = list(predict_files(saved, files))
    monkeypatch.undo()
    assert marker.exists()
    assert [prediction.image for prediction in found] == [str(file) for file in files]
    with cluster(None):
        assert active_cluster() is not None  # the fixture's; a block without an address changes nothing
    expected = np.load(trained / "predictions-test.npz")["probabilities"]
    np.testing.assert_allclose(np.stack([one.probabilities for one in found[36:]]), expected, atol=1e-5)


def test_an_unreadable_image_is_told_by_the_worker(on_ray, trained, tmp_path):
    (tmp_path / "no.png").write_bytes(b"no image")
    (found,) = predict_files(load_model(trained), [tmp_path / "no.png"])
    assert found.probabilities is None
    assert "no.png" in found.problem


def test_workers_need_no_compiler(on_ray, trained, patches):
    """torch's takes longer to import than torch itself. Both workers are asked: each is busy for a while."""

    def imported() -> set[str]:
        time.sleep(0.05)
        return {"fewtags.engine.ray_pass", "timm", "torch._dynamo"} & set(sys.modules)

    list(predict_files(load_model(trained), [patches.path(row) for row in range(16)]))
    found = on_ray.ray.get([on_ray.task(imported)() for _ in range(8)])
    assert set.union(*found) == {"fewtags.engine.ray_pass", "timm"}


def test_what_is_trained_through_the_backbone_is_refused(on_ray, patches, tmp_path):
    with pytest.raises(UserError, match=r"freeze it .*or train with torchrun"):
        trained_by(TinyConfig.make("model.train_from=all"), patches, tmp_path / "run")


def test_more_than_any_machine_has_is_refused(two_workers, trained, patches):
    with cluster("local", cpus=1000), pytest.raises(UserError, match="needs 1000 CPUs and 0 GPUs"):
        list(predict_files(load_model(trained), [patches.path(0)]))


def listening(process: Any) -> dict[str, set[str]]:
    """By name of this process and those below it: the addresses at which they listen."""
    found = defaultdict[str, set[str]](set)
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            for socket in each.net_connections("inet"):
                if socket.status == psutil.CONN_LISTEN:
                    address = ip_address(socket.laddr.ip)
                    found[each.name()].add(str(getattr(address, "ipv4_mapped", None) or address))
    return found


def only_here(found: dict[str, set[str]]) -> bool:
    assert {"gcs_server", "raylet"} < set(found)  # workers and driver listen too
    assert len(found) >= 4
    return set.union(*found.values()) == {"127.0.0.1"}


def test_a_local_ray_cannot_be_reached_from_other_machines(on_ray):
    """Here Ray is imported before it is started, and has read by then whether it may be reached."""
    assert on_ray.ray.get(on_ray.task(lambda: os.getpid())()) != os.getpid()
    assert only_here(listening(psutil.Process()))


STARTED = """
import os, sys
from fewtags.engine.cluster import cluster
with cluster("local") as machines:
    print(machines.ray.get(machines.task(lambda: os.getpid())()) != os.getpid(), flush=True)
    sys.stdin.read()
"""


def test_nor_one_that_was_not_imported_before():
    words = [sys.executable, "-c", STARTED]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout.readline() == "True\n"
        found = listening(psutil.Process(driver.pid))
    assert only_here(found)


def test_commands_take_the_cluster(two_workers, cli: Cli, trained, patches, tmp_path):
    alone = cli("predict", trained, patches.root, "-q")
    together = cli("predict", trained, patches.root, "-q", "--ray", "local")
    assert (alone.code, together.code) == (0, 0)
    assert together.out.splitlines() == alone.out.splitlines()
    assert cli("discover", trained, "-q", "--ray", "local").code == 0


@pytest.mark.slow
def test_a_bench_on_ray_has_the_tables_of_one_machine(two_workers, cli: Cli, patches, tags_file, tmp_path):
    data = {"source": str(patches.root), "tags": str(tags_file), "options": {"complete": True}}
    grid = {
        "datasets": {"patches": {"data": data}}, "methods": {"an": None, "instant": None},
        "parts": [{"proportions": [0.5]}],
    }  # fmt: skip
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    for name, more in (("one", ()), ("two", ("--ray", "local"))):
        answer = cli("bench", tmp_path / "grid.yaml", *TINY[1:], "--out", tmp_path / name, "-q", *more)
        assert answer.code == 0, answer.err
    with (tmp_path / "one" / "runs.csv").open() as first, (tmp_path / "two" / "runs.csv").open() as second:
        for alone, together in zip(csv.DictReader(first), csv.DictReader(second), strict=True):
            assert {**alone, "seconds": 0} == {**together, "seconds": 0}


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"fewtags\[ray\]"), cluster("local"):
        pass


def test_no_cluster_at_the_address(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def refuse(**_: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(UserError, match=r"no Ray cluster at 'auto'.*ray start --head"), cluster("auto"):
        pass

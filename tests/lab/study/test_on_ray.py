"""Trials as tasks of a real Ray on this machine."""

import os
import signal
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address
from types import SimpleNamespace

import pytest
from lab.study.test_local import has_checkpoint
from lab.study.tiny import measurement, settle, statuses, training, use_in_processes

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.runs import names
from flashpoint.lab.runs.failure import Preempted
from flashpoint.lab.study import on_ray, store
from flashpoint.lab.study.on_ray import _work, require_ray, run_on_ray

LONG = {"steps": 600, "checkpoint_every": 20, "evaluate_every": 600, "log_every": 20}


@pytest.fixture
def ray(monkeypatch, tmp_path_factory):
    """Ray, whose processes find this module."""
    use_in_processes(monkeypatch, tmp_path_factory.mktemp("site"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    if find_spec("ray") is None:
        pytest.skip("needs ray: pip install '.[study]'")
    return require_ray()


def run(folders, on_look=lambda standing: None, jobs=2):
    run_on_ray(
        folders,
        address="ray",
        jobs=jobs,
        gpus_per_trial=0.25,
        keep_checkpoints=False,
        on_look=on_look,
    )


def listening():
    """Where this process and all that it started await connections: name and address."""
    import psutil  # Ray brings it along

    found = []
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):  # it ended meanwhile
            name = process.name()
            opened = process.net_connections("tcp")
            found += [(name, ip_address(c.laddr.ip)) for c in opened if c.status == "LISTEN"]
    return found


def is_loopback(address):
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


@pytest.mark.slow
def test_study_on_ray_is_stopped_goes_on_and_records_what_fails(ray, tmp_path):
    """One start of Ray for all that it must show: it costs more than the trials."""
    trials = [
        measurement("dead", "die"),
        measurement("bad", "break_down"),
        training("relu", **LONG),
    ]
    folders = dead, bad, relu = settle(tmp_path, trials)
    seen, places = [], []

    def look(standing):
        seen.append(dict(standing))
        if has_checkpoint(relu) and not places:
            places.extend(listening())
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Preempted, match="stopped by SIGTERM; what had begun is saved"):
        # one at a time: training begins, and can be stopped, when the others have failed
        run(folders, look, jobs=1)
    assert not ray.is_initialized()
    assert {"gcs_server", "raylet"} <= {name for name, _ in places}
    assert {place for place in places if not is_loopback(place[1])} == set()
    assert statuses(folders) == {"relu-seed0": "stopped", "bad": "failed", "dead": "failed"}
    assert seen[-1][relu] == "running"
    assert store.read_outcome(bad).reason == "ZeroDivisionError: division by zero"
    assert store.read_outcome(dead).reason.startswith("Ray: ")
    assert "stopped by SIGINT at step " in (relu / names.LOG).read_text()
    assert _work(str(relu), plain_text(relu), False) == ("finished", {})  # as on a node
    assert "going on from step " in (relu / names.LOG).read_text()
    assert not (relu / "checkpoints").exists()


def test_ray_that_others_could_reach_is_ended_and_refused(monkeypatch):
    ended = []
    ray = SimpleNamespace(
        init=lambda **options: None,
        shutdown=lambda: ended.append(True),
        util=SimpleNamespace(get_node_ip_address=lambda: "192.0.2.2"),
    )
    monkeypatch.setattr(on_ray, "require_ray", lambda: ray)
    with pytest.raises(UnsupportedError, match=r"started Ray at 192\.0\.2\.2, ") as caught:
        run([])
    assert "\n" not in str(caught.value)
    assert ended


@pytest.mark.parametrize(
    ("gpus", "share", "shared", "whole"),
    [
        (8, 0.25, {"num_cpus": 1, "num_gpus": 0.25}, {"num_cpus": 1, "num_gpus": 1.0}),
        (8, 2.0, {"num_cpus": 1, "num_gpus": 2.0}, {"num_cpus": 1, "num_gpus": 2.0}),
        (8, 0.0, {"num_cpus": 1}, {"num_cpus": 16.0}),
        (0, 0.25, {"num_cpus": 1}, {"num_cpus": 16.0}),
    ],
)
def test_what_is_timed_takes_a_whole_gpu_or_a_node(gpus, share, shared, whole):
    class Ray:
        @staticmethod
        def nodes():
            return [
                {"Alive": True, "Resources": {"CPU": 2.0}},
                {"Alive": True, "Resources": {"CPU": 16.0, **({"GPU": gpus} if gpus else {})}},
                {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 64.0}},
            ]

    assert on_ray._resources(Ray, share) == (shared, whole)
    if gpus:
        with pytest.raises(InputError, match=f"more than the {gpus} GPUs of any node"):
            on_ray._resources(Ray, 9.0)


def test_node_that_does_not_see_the_folder_gives_its_files(tmp_path):
    trial = training("relu")
    (folder,) = settle(tmp_path, [trial])
    ending, files = _work(str(tmp_path / "elsewhere" / "relu-seed0"), plain_text(folder), False)
    assert ending == "finished"
    assert {"record.json", "metrics.jsonl", "config.yaml", "log.txt"} <= set(files)
    assert not [name for name in files if name.startswith(("events", "checkpoints"))]
    assert {"attention/statistics.json", "attention/maps.png"} <= set(files)

    class Ray:
        class exceptions:
            RayError = RuntimeError

        @staticmethod
        def get(_):
            return ending, files

    assert on_ray._settle(Ray, folder, None) == "finished"
    assert (folder / "attention" / "maps.png").read_bytes() == files["attention/maps.png"]
    assert statuses([folder]) == {"relu-seed0": "finished"}
    assert not (tmp_path / "elsewhere").exists()


def plain_text(folder):
    return (folder / names.TRIAL).read_text()


def test_node_that_sees_the_folder_works_in_it(tmp_path):
    (folder,) = settle(tmp_path, [measurement("add", "add", x=1, y=1)])
    assert _work(str(folder), "not read", False) == ("finished", {})
    assert store.read_outcome(folder).numbers["sum"] == 2.0


def test_cluster_that_does_not_answer_is_one_line(monkeypatch):
    class Ray:
        @staticmethod
        def init(**options):
            raise ConnectionError("ray client connection timeout")

    monkeypatch.setattr(on_ray, "require_ray", lambda: Ray)
    with pytest.raises(InputError, match="no Ray to work with: ray client connection timeout"):
        run_on_ray(
            [],
            address="ray://nowhere:1",
            jobs=None,
            gpus_per_trial=1.0,
            keep_checkpoints=False,
            on_look=print,
        )


def test_without_ray_it_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnsupportedError, match=r"pip install '\.\[study\]'"):
        run([])

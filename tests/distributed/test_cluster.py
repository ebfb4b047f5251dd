# SPDX-License-Identifier: Apache-2.0
"""Work on a real Dask scheduler with workers in processes of their own, some of which are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

import dask
import numpy as np
import onnx
import pytest
from cluster_work import dies, dies_once, is_older, ports_listened_on, process_of, refuses, sum_of_files
from command_line import mcugen
from dask_cluster import Cluster, run_dask, running_cluster, scheduler_address
from distributed import Client, Security
from onnx_models import Net

from mcugen.core.errors import DoesNotFitError, ToolMissingError, UsageError
from mcugen.distributed import cluster
from mcugen.distributed.environment import environment
from mcugen.distributed.sharing import Workers


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def two(running: Cluster) -> Cluster:
    """With two workers, whatever became of those before."""
    while len(running.workers) < 2:
        running.add()
    return running


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    net = Net()
    h = net.input("x", 1, 1, 8, 8)
    for number in range(3):
        h = net.op("Relu", net.op("Conv", h, net.const(random.normal(size=(4, 4 if number else 1, 3, 3)))))
    net.output(net.op("MatMul", net.op("Flatten", h), net.const(random.normal(size=(16, 3))), out="y"))
    folder = tmp_path_factory.mktemp("model")
    onnx.save(net.model(), folder / "small.onnx")
    np.savez(folder / "samples.npz", x=random.normal(size=(80, 1, 8, 8)).astype(np.float32))
    np.savez(folder / "few.npz", x=random.normal(size=(16, 1, 8, 8)).astype(np.float32))
    return folder / "small.onnx"


# ------------------------------------------------------------------------------------------------ tasks


def test_workers_share_tasks(two: Cluster) -> None:
    found = dict(Workers(cluster=two.address).run_tasks(process_of, range(40)))
    assert sorted(found) == list(range(40))
    assert os.getpid() not in found.values()
    assert len(set(found.values())) == 2
    assert list(Workers(cluster=two.address).run_tasks(process_of, [])) == []


def test_a_killed_worker_loses_nothing(two: Cluster) -> None:
    results = Workers(cluster=two.address).run_tasks(process_of, range(60))
    (_, first) = next(results)
    two.kill(first)
    rest = list(results)
    assert sorted(number for number, _ in rest) != list(range(60))
    assert len(rest) == 59
    assert {pid for _, pid in rest[-20:]} == set(two.workers)


def test_what_kills_a_worker_is_done_again_by_another(two: Cluster, tmp_path: Path) -> None:
    work = partial(dies_once, str(tmp_path / "died"))
    assert dict(Workers(cluster=two.address).run_tasks(work, range(6))) == {n: n * n for n in range(6)}
    two.workers = {pid: w for pid, w in two.workers.items() if w.poll() is None}
    assert len(two.workers) == 1


def test_a_refusal_comes_back_whole(two: Cluster) -> None:
    with pytest.raises(DoesNotFitError) as error:
        list(Workers(cluster=two.address).run_tasks(refuses, range(3)))
    assert (error.value.rule, error.value.found, error.value.remedy) == ("a rule", "this", "that")


def test_files_go_along_with_work(two: Cluster, tmp_path: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "inner" / "a.npy").write_bytes(b"a")
    (tmp_path / "model.onnx").write_bytes(b"model")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.onnx").write_bytes(b"other")
    names = {"model": "model.onnx", "other": "other/model.onnx", "folder": "folder", "none": "none.npz"}
    work = partial(sum_of_files, {name: tmp_path / path for name, path in names.items() if name != "none"})
    found = dict(Workers(cluster=two.address).run_tasks(work, ["model", "other", "folder"]))
    assert [content for _, content, _ in found.values()].count(b"model") == 1
    assert found["other"][1] == b"other"
    assert found["folder"][2] == ["a.npy", "inner"]
    assert not any(path.startswith(str(tmp_path)) for path, _, _ in found.values())
    assert Path(found["model"][0]).parent == Path(found["folder"][0]).parent != Path(found["other"][0]).parent


def test_workers_of_other_versions_are_refused(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "environment", lambda: {**environment(), "onnxruntime": "0.1"})
    with pytest.raises(ToolMissingError, match=r"onnxruntime \d.*, not 0.1"):
        list(Workers(cluster=two.address).run_tasks(process_of, range(3)))
    with pytest.raises(ToolMissingError, match=r"numpy .*, not 1\.0"):
        is_older(0)


def test_addresses_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_SECONDS", 1)
    for address in ("tcp://127.0.0.1:1", "tls://127.0.0.1:1", "nonsense://x", "\x1b[31m"):
        with pytest.raises(UsageError, match="--cluster local"):
            list(Workers(cluster=address).run_tasks(process_of, range(3)))


def test_a_client_that_reaches_nobody_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the garbage collector it would be closed in any thread, of the next client's too, which then never started."""
    from distributed import Client

    class Watched(Client):
        made: ClassVar[list[Client]] = []

        def __init__(self, *arguments: object, **settings: object) -> None:
            self.made.append(self)
            super().__init__(*arguments, **settings)

    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_SECONDS", 1)
    with pytest.raises(OSError, match=r"127\.0\.0\.1:1"):
        cluster._client(Watched, "tcp://127.0.0.1:1")
    assert [client.status for client in Watched.made] == ["closed"]


def test_what_kills_every_worker_ends(two: Cluster) -> None:
    for _ in range(4):
        two.add()
    two.wait()
    with pytest.raises(DoesNotFitError, match="worker's memory"):
        list(Workers(cluster=two.address).run_tasks(dies, range(1)))
    two.workers = {pid: w for pid, w in two.workers.items() if w.poll() is None}


def test_the_rest_is_done_here_once_all_workers_are_gone(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which Dask would wait for, for ever."""
    monkeypatch.setattr(cluster, "NO_WORKER_TIMEOUT_SECONDS", 2)
    two.wait()
    results = Workers(cluster=two.address).run_tasks(process_of, range(60))
    found, there = dict([next(results)]), list(two.workers)
    for pid in there:
        two.kill(pid)
    found |= results
    assert sorted(found) == list(range(60))
    assert set(found.values()) - set(there)
    assert os.getpid() not in found.values()  # what they were lost by might take this process along


def test_what_all_workers_were_lost_by_ends(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, too: two workers are fewer than Dask gives it to before it gives up."""
    monkeypatch.setattr(cluster, "NO_WORKER_TIMEOUT_SECONDS", 2)
    two.wait()
    with pytest.raises(DoesNotFitError, match="memory"):
        list(Workers(cluster=two.address).run_tasks(dies, range(1)))
    two.workers = {pid: w for pid, w in two.workers.items() if w.poll() is None}


def test_a_cluster_that_gets_another_worker_goes_on(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "NO_WORKER_TIMEOUT_SECONDS", 60)
    two.wait()
    results = Workers(cluster=two.address).run_tasks(process_of, range(60))
    found = dict([next(results)])
    for pid in list(two.workers):
        two.kill(pid)
    two.add()
    found |= results
    assert sorted(found) == list(range(60))
    assert next(iter(two.workers)) in found.values()


# ------------------------------------------------------------------------------------------------ commands


@pytest.mark.slow
@pytest.mark.qemu
def test_explore_gives_the_same_as_one_computer(two: Cluster, model: Path, tmp_path: Path) -> None:
    arguments = ["explore", model, "--boards", "stm32f446", "--calibration", model.with_name("samples.npz")]
    arguments += ["--json", "-", "--quiet", "-j", 1, "--cache"]
    here = mcugen(*arguments, tmp_path / "here")
    there = mcugen(*arguments, tmp_path / "there", "--cluster", two.address)
    assert there.code == 0, there.err
    assert there.out == here.out
    assert {p.name for p in (tmp_path / "there").glob("*.json")} <= {p.name for p in (tmp_path / "here").glob("*.json")}
    assert len(list((tmp_path / "there").glob("*.json"))) == 2
    assert list((two.folder / "elsewhere").rglob("*.onnx"))  # quantized there


@contextmanager
def one_killed(running: Cluster) -> Iterator[None]:
    """As soon as it is at work, one worker is killed; it must have come to that within the block."""
    killed: list[int] = []

    def kill() -> None:
        with Client(running.address, set_as_default=False) as client:
            numbers = client.run(os.getpid)
            begun.set()
            while not killed and not done.wait(0.01):
                busy = [address for address, tasks in client.processing().items() if tasks and address in numbers]
                killed.extend(numbers[address] for address in busy[:1])
        if killed:
            running.kill(killed[0])

    begun, done = threading.Event(), threading.Event()
    watcher = threading.Thread(target=kill)
    watcher.start()
    begun.wait(60)
    yield
    done.set()
    watcher.join()
    assert killed


def without_command(text: str) -> dict[str, object]:
    return {key: value for key, value in json.loads(text).items() if key != "command"}


@pytest.mark.qemu
def test_report_is_the_same_while_a_worker_is_killed(two: Cluster, model: Path) -> None:
    two.wait()
    arguments = ["report", model, "--board", "stm32f446", "--data", model.with_name("samples.npz"), "--json", "-"]
    here = mcugen(*arguments, "--quiet", "-j", 1)
    with one_killed(two):
        there = mcugen(*arguments, "--quiet", "--cluster", two.address)
    assert there.code == 0, there.err
    assert without_command(there.out) == without_command(here.out)


def test_quantize_is_the_same_while_a_worker_is_killed(two: Cluster, model: Path, tmp_path: Path) -> None:
    two.wait()
    arguments = ["quantize", model, "--calibration", model.with_name("few.npz"), "--precision", "auto"]
    arguments += ["--min-sqnr", 35, "--quiet", "-o"]
    here = mcugen(*arguments, tmp_path / "here.onnx")
    with one_killed(two):
        there = mcugen(*arguments, tmp_path / "there.onnx", "--cluster", two.address)
    assert (here.code, there.code) == (0, 0), there.err
    assert (tmp_path / "there.onnx").read_bytes() == (tmp_path / "here.onnx").read_bytes()
    tensors = {tensor.data_type for tensor in onnx.load(tmp_path / "here.onnx").graph.initializer}
    assert onnx.TensorProto.INT16 in tensors  # the search raised a layer


@pytest.mark.parametrize("command", ["report", "quantize"])
def test_commands_refuse_workers_of_other_versions(
    two: Cluster, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    two.wait()
    monkeypatch.setattr(cluster, "environment", lambda: {**environment(), "onnxruntime": "0.1"})
    samples = model.with_name("samples.npz")
    words = {
        "report": ["--board", "stm32f446", "--data", samples],
        "quantize": ["--calibration", samples, "--precision", "auto", "--min-sqnr", 45, "-o", tmp_path / "made.onnx"],
    }[command]
    done = mcugen(command, model, *words, "--quiet", "--cluster", two.address)
    assert done.code == ToolMissingError.exit_code
    assert "not 0.1" in done.err and "same versions" in done.err
    assert not (tmp_path / "made.onnx").exists()


def test_local_workers_listen_on_no_port() -> None:
    """A scheduler on a loopback address would run the code of any process of this computer."""
    ports = dict(Workers(2, "local").run_tasks(ports_listened_on, range(4)))
    assert ports == {task: [] for task in range(4)}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys and certificates: of an authority `ca`, of a `member` that it signed, and of a `stranger`."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj")
    for name in ("ca", "stranger"):
        openssl(*new, f"/CN={name}", "-x509", "-days", "1", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    openssl(*new, "/CN=member", "-keyout", "member.key", "-out", "member.csr")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1", "-out", "member.pem")
    openssl("x509", "-req", "-in", "member.csr", *signed)
    return folder


def _tls(folder: Path, name: str) -> Security:
    files = {"tls_ca_file": folder / "ca.pem", "tls_client_cert": folder / f"{name}.pem"}
    return Security(**{k: str(v) for k, v in files.items()}, tls_client_key=str(folder / f"{name}.key"))


def test_a_cluster_with_tls_refuses_strangers(
    certificates: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "scheduler.json"
    files = {"--tls-ca-file": "ca.pem", "--tls-cert": "member.pem", "--tls-key": "member.key"}
    tls = [word for option, name in files.items() for word in (option, str(certificates / name))]
    own = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--protocol", "tls", "--scheduler-file", str(told)]
    processes = [run_dask("scheduler", *own, *tls, home=tmp_path)]
    try:
        address = scheduler_address(told)
        assert address.startswith("tls://127.0.0.1:")
        worker = ("--no-nanny", "--nthreads", "1", "--no-dashboard", "--local-directory", str(tmp_path))
        processes.append(run_dask("worker", address, *worker, *tls, home=tmp_path))
        with pytest.raises(OSError, match=r"127\.0\.0\.1"):
            Client(address.replace("tls:", "tcp:"), timeout=2, set_as_default=False)
        with pytest.raises(OSError, match=r"127\.0\.0\.1"):
            Client(address, timeout=2, set_as_default=False, security=_tls(certificates, "stranger"))
        known = {"ca-file": "ca.pem", "client.cert": "member.pem", "client.key": "member.key"}
        own_files = {f"distributed.comm.tls.{key}": str(certificates / name) for key, name in known.items()}
        capfd.readouterr()
        with dask.config.set(own_files):
            assert dict(Workers(cluster=address).run_tasks(partial(pow, 2), range(3))) == {0: 1, 1: 2, 2: 4}
        assert "TLS" not in capfd.readouterr().err
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def test_a_cluster_without_tls_is_warned_of_once(two: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster._warn_without_tls.cache_clear()
    for _ in range(2):
        list(Workers(cluster=two.address).run_tasks(partial(pow, 2), range(2)))
    assert capfd.readouterr().err.count("is not protected by TLS") == 1


def test_a_cluster_of_this_computer() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert dict(Workers(1, "local").run_tasks(partial(pow, 2), range(3))) == {0: 1, 1: 2, 2: 4}
    assert signal.getsignal(signal.SIGINT) is before

# SPDX-License-Identifier: Apache-2.0
"""Files of torch.export.save are compiled; hostile ones are refused before PyTorch reads them."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import mcugen as run

import mcugen
from mcugen.core.errors import ModelError

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'mcugen[torch]')")
pytest.importorskip("onnxscript", reason="onnxscript is not installed (pip install 'mcugen[torch]')")

MODEL, WEIGHTS, CONSTANTS = (
    "models/model.json",
    "data/weights/model_weights_config.json",
    "data/constants/model_constants_config.json",
)


class Trap:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.write_text, (self.file, "run")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    torch.export.save(torch.export.export(net, (torch.zeros(1, 4),)), path)
    return path


def changed(saved: Path, path: Path, changes: dict[str, Callable[[Any], Any]], more: dict[str, bytes]) -> Path:
    """Write a copy of an archive with changed JSON entries and replaced or added ones."""
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            folder, _, entry = name.partition("/")
            data = source.read(name)
            if entry in changes:
                data = json.dumps(changes[entry](json.loads(data))).encode()
            if entry not in more:
                target.writestr(name, data)
        for entry, data in more.items():
            target.writestr(f"{folder}/{entry}", data)
    return path


def with_target(name: str) -> Callable[[Any], Any]:
    def change(program: Any) -> Any:
        program["graph_module"]["graph"]["nodes"][0]["target"] = name
        return program

    return change


def with_size(text: str) -> Callable[[Any], Any]:
    def change(program: Any) -> Any:
        tensor = next(iter(program["graph_module"]["graph"]["tensor_values"].values()))
        tensor["sizes"][0] = {"as_expr": {"expr_str": text, "hint": {"as_int": 1}}}
        return program

    return change


def with_container(program: Any) -> Any:
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    context = {"default_factory_module": "antigravity", "default_factory_name": "fly", "dict_context": []}
    holder = {"type": "collections.defaultdict", "context": json.dumps(context), "children_spec": []}
    signature["in_spec"] = json.dumps([1, holder])
    return program


def with_pickle(configuration: Any) -> Any:
    next(iter(configuration["config"].values()))["use_pickle"] = True
    return configuration


def with_object(configuration: Any) -> Any:
    configuration["config"]["x"] = {
        "path_name": "opaque_obj_0",
        "is_param": False,
        "use_pickle": False,
        "tensor_meta": None,
    }
    return configuration


HOSTILE = {
    "pickled weight": ({WEIGHTS: with_pickle}, "a pickle"),
    "pickled object": ({CONSTANTS: with_object}, "a pickle"),
    "operator of torch": ({MODEL: with_target("torch.hub.load")}, "the operator torch.hub.load"),
    "operator on files": ({MODEL: with_target("torch.ops.aten.from_file.default")}, "the operator torch.ops.aten"),
    "caller of methods": ({MODEL: with_target("_operator.methodcaller")}, "the operator _operator.methodcaller"),
    "size": ({MODEL: with_size("__import__('os').getcwd()")}, "the size"),
    "endless size": ({MODEL: with_size("9**9**9**9")}, "the size"),
    "container": ({MODEL: with_container}, "the container 'collections.defaultdict'"),
}


def test_a_file_computes_what_its_program_does(saved: Path) -> None:
    samples = np.random.default_rng(0).standard_normal((3, 1, 4)).astype(np.float32)
    program = torch.export.load(saved).module()
    result = mcugen.compile(saved).run(samples)["output"]
    expected = [program(torch.from_numpy(sample)).detach().numpy() for sample in samples]
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_a_command_takes_a_file(saved: Path, tmp_path: Path) -> None:
    run("compile", saved, "--board", "rp2040", "-o", tmp_path / "net")
    assert "from net.pt2" in (tmp_path / "net" / "net.c").read_text()


@pytest.mark.parametrize(("changes", "fault"), HOSTILE.values(), ids=HOSTILE)
def test_what_may_run_code_is_refused(
    saved: Path, tmp_path: Path, changes: dict[str, Callable[[Any], Any]], fault: str
) -> None:
    path = changed(saved, tmp_path / "net.pt2", changes, {})
    with pytest.raises(ModelError, match=r"must hold only a program and its tensors") as error:
        mcugen.compile(path)
    assert fault in str(error.value)


def test_pickled_example_inputs_are_not_loaded(saved: Path, tmp_path: Path) -> None:
    """`torch.export.load` runs them."""
    trap = tmp_path / "run"
    path = changed(saved, tmp_path / "net.pt2", {}, {"data/sample_inputs/model.pt": pickle.dumps(Trap(trap))})
    mcugen.compile(path)
    assert not trap.exists()


@pytest.mark.parametrize("entry", [MODEL, WEIGHTS, CONSTANTS])
def test_a_broken_archive_is_one_error(saved: Path, tmp_path: Path, entry: str) -> None:
    path = changed(saved, tmp_path / "net.pt2", {}, {entry: b"{"})
    with pytest.raises(ModelError, match=rf"no valid {entry}"):
        mcugen.compile(path)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(ModelError, match=r"a PyTorch pickle, .*try: .*torch\.export\.save"):
        mcugen.compile(tmp_path / "model.pt")

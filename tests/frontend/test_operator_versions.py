# SPDX-License-Identifier: Apache-2.0
"""Every version of every operator from opset 6 on, beside ONNX Runtime or ONNX's reference on the file as it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_models import Feeds, onnxruntime_outputs, reference_outputs
from version_cases import Version, VersionCase, official_cases, own_cases, run_imported, versions

from mcugen.core.errors import McugenError
from mcugen.hir.types import Array

ENOUGH = 2
"""Models of a version that are compared."""

REFERENCE_DECIDES = {
    "MaxUnpool": "ONNX Runtime ignores the strides of the pooled tensor where an output shape is given",
    "Cast": "ONNX Runtime saturates to float8 where it was told not to",
}
"""Operators that ONNX Runtime computes otherwise than ONNX's own tests expect."""

NO_REFERENCE = {"AveragePool-1": "the reference counts elements of the padding, which the text excludes"}
"""Versions that ONNX's reference computes otherwise than their text says."""

_UNTESTED_BY_REASON = {
    "random numbers": (
        "Bernoulli-15 Bernoulli-22 Multinomial-7 Multinomial-22 RandomNormal-1 RandomNormal-22 RandomNormalLike-1 "
        "RandomNormalLike-22 RandomUniform-1 RandomUniform-22 RandomUniformLike-1 RandomUniformLike-22"
    ),
    "strings": "RegexFullMatch-20 StringConcat-20 StringNormalizer-10 StringSplit-20",
    "sequences of results": "SequenceMap-17",
    "image files": "ImageDecoder-20",
}
UNTESTED = {version for listed in _UNTESTED_BY_REASON.values() for version in listed.split()}
"""Versions that mcugen does not compile, or that neither ONNX Runtime nor the reference runs."""


class Unusable(Exception):
    """A model that mcugen refuses, or that nothing else runs."""


@pytest.mark.parametrize("version", versions(), ids=str)
def test_agrees_on_the_unconverted_file(version: Version) -> None:
    compared: list[VersionCase] = []
    reasons: list[str] = []
    own = own_cases(version)
    for case in (*own, *official_cases(version)):
        if len(compared) >= max(ENOUGH, len(own)):
            break
        try:
            compare(version, case)
            compared.append(case)
        except Unusable as error:
            reasons.append(f"{case.name}: {error}")
    if str(version) in UNTESTED:
        assert not compared, f"{version} can be tested: take it off the list"
        return
    assert compared[: len(own)] == own, f"models of our own could not be compared: {reasons}"
    assert compared, f"no model of {version} could be compared: {reasons}"
    can_differ = any(not attribute.required for attribute in version.schema.attributes.values())
    assert not can_differ or not compared[0].is_plain, f"no attribute of {version} was set"


def compare(version: Version, case: VersionCase) -> None:
    try:
        found, model, feeds = run_imported(case.model, case.feeds)
    except McugenError as error:
        raise Unusable(str(error)) from error
    expected = case.expected or oracle(version, model, feeds)
    for name, array in expected.items():
        got = np.asarray(found[name])
        assert got.ndim == array.ndim, case.name
        got = got[tuple(map(slice, array.shape))]  # what depends on values comes in the largest shape
        assert got.shape == array.shape, case.name
        np.testing.assert_allclose(*map(_wide, (got, array)), **tolerance(array), err_msg=f"{case.name}: {name}")


def oracle(version: Version, model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """Return what ONNX Runtime, or else the reference, computes of a model as it is."""
    runs = [onnxruntime_outputs] * (version.op_type not in REFERENCE_DECIDES)
    runs += [reference_outputs] * (str(version) not in NO_REFERENCE)
    for run in runs:
        try:
            return run(model, feeds)
        except Exception as error:  # each raises whatever its own code meets
            reason = str(error)
    raise Unusable(reason[:200])


def _wide(array: Array) -> Array:
    return array.astype(np.float64)


def tolerance(array: Array) -> dict[str, float]:
    """Return the rounding of an element type, relative to the largest finite element."""
    wide = _wide(array)
    largest = np.abs(wide[np.isfinite(wide)]).max(initial=1e-6)
    narrow = array.dtype.kind not in "biu" and array.dtype.itemsize <= 2
    relative = (1e-2 if narrow else 1e-5) * (array.dtype.kind not in "biu")
    return {"rtol": relative, "atol": relative * float(largest)}

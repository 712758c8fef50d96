"""Steps that once got another name, were accused although sound, or were not put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from amp_course.audit import audit
from tests.audit.written import SOUND, make, read

CASES = read("edge_*.toml")


@pytest.mark.parametrize("name", CASES)
def test_a_report_says_what_a_step_deserves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case: dict[str, Any] = CASES[name]
    if case.get("sampled"):  # as of a model whose gradients are too many to keep
        monkeypatch.setattr("amp_course.watching.gradients._MOST", 64)
    step, arguments, _ = make(name, case, SOUND)
    models = arguments["model"] if isinstance(arguments["model"], list) else [arguments["model"]]
    before = [(p, p.detach().clone()) for model in models for p in model.parameters()]
    report = audit(step, **arguments)
    assert set(report.names) == set(case.get("faults", ())), report
    assert set(case.get("right", ())) <= set(report.right)
    assert set(case.get("wrong", ())).isdisjoint(report.right)
    observed = "\n".join(report.observations)
    assert case.get("observed", "") in observed, report
    assert "silent" not in case or case["silent"] not in observed, report
    for behaviour, words in case.get("unjudged", {}).items():
        assert words in dict(report.not_checked)[behaviour], report
    assert set(dict(report.not_put_back)) == set(case.get("lost", ())), report
    for one in report.findings:
        assert case.get("fix", "") in one.fix
        assert case.get("evidence", {}).items() <= one.evidence.items()
    assert case.get("says", "") in repr(report)
    assert not torch.is_autocast_enabled("cpu")
    now = [p for model in models for p in model.parameters()]
    assert all(p is own and torch.equal(p, was) for p, (own, was) in zip(now, before, strict=True))

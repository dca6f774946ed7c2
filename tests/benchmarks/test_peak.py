"""Peak memory is measured in a process of its own."""

import pytest

from benchmarks import peak


def test_the_status_of_this_process_is_read() -> None:
    resident, highest = peak.status_bytes("VmRSS"), peak.status_bytes("VmHWM")
    assert 10_000_000 < resident <= highest


def test_every_kind_is_compared_with_a_plain_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"plain": 400_000_000, "exact": 1, "sampled": 2, "empirical": 3}
    monkeypatch.setattr(peak, "in_a_process", sizes.__getitem__)
    (table,) = peak.tables(ours_only=True)
    assert table.rows[0] == {"method": "plain forward+backward", "megabytes": 400.0}
    assert {row["method"] for row in table.rows[1:]} == {
        f"ewc {kind}" for kind in sizes if kind != "plain"
    }


@pytest.mark.parametrize("kind", ["plain", "sampled"])
def test_extra_memory_is_that_of_one_batch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {"VmRSS": 100, "VmHWM": 150}
    monkeypatch.setattr(peak, "status_bytes", marks.__getitem__)
    monkeypatch.setattr(peak, "BATCH_SIZE", 2)
    assert peak.extra_bytes(kind) == 50
